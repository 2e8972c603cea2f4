"""Nothing phones home: what dependencies would send by themselves is off before any of them is there."""

import subprocess
import sys
from pathlib import Path


def test_the_package_through_which_openvinos_tools_send_is_not_there_for_us(tmp_path: Path) -> None:
    (tmp_path / "openvino_telemetry.py").write_text("print('sending')")
    code = "import loadslice\ntry:\n    import openvino_telemetry\nexcept ImportError:\n    print('nothing is sent')"
    run = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{code}"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "nothing is sent\n"
