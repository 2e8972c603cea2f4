"""loadslice: look at the load, squeeze the software, slice the work across CPU, GPU and NPU.

Importing any part of the package switches off the telemetry that dependencies would send by themselves, before
they can be imported: ONNX Runtime uploads by default since 1.29, and OpenVINO's tools and NNCF do through a package of
their own. Where that is not there they send nothing, and for this process it is not there.
"""

import os
import sys
from typing import Any, cast

__version__ = "0.1.0"

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["DO_NOT_TRACK"] = "1"
cast("dict[str, Any]", sys.modules)["openvino_telemetry"] = None
