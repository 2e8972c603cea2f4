"""loadslice: look at the load, squeeze the software, slice the work across CPU, GPU and NPU.

Importing any part of the package switches off the telemetry that dependencies would send by themselves, before
they can be imported: ONNX Runtime uploads by default since 1.29.
"""

import os

__version__ = "0.1.0"

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["DO_NOT_TRACK"] = "1"
