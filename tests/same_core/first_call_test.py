"""What compiled code refuses in a process that has never called it."""

import os
import subprocess
import sys

import numpy as np
import pytest

from loadslice.policy.kernel.cells_test import shelf, work

MESSAGE = "Shelf.boxes has rows of 4 columns, not of 3."
CODE = """
import numpy as np
from loadslice.policy.kernel.cells_test import shelf, work
work(shelf()._replace(boxes=np.zeros((3, 4), np.int64)), 0)
"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="NumPy itself takes any of these")
def test_rows_of_another_length_are_refused_from_the_first_call_on() -> None:
    first = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert "\nTypeError: " in first.stderr
    assert first.stderr.strip().endswith(MESSAGE)
    work(shelf(), 0)
    with pytest.raises(TypeError, match=MESSAGE):
        work(shelf()._replace(boxes=np.zeros((3, 4), np.int64)), 0)
