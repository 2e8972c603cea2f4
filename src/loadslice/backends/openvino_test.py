import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openvino", reason="the extra 'openvino' is not installed")

from loadslice.backends import checks
from loadslice.backends.base import open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine


def test_openvino_keeps_the_contract(tmp_path: Path) -> None:
    checks.run_all(open_backend("openvino"), tmp_path)


def test_precision_is_what_was_asked_and_never_the_runtimes_own_choice(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    session = open_backend("openvino").load(model, Engine(backend="openvino"))
    assert session.describe()["precision"] == "fp32"


def test_describe_tells_the_precision_really_computed(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    session = open_backend("openvino").load(model, Engine(backend="openvino", precision="bf16"))
    assert session.describe()["precision"] in ("bf16", "fp32")


@pytest.mark.parametrize("device", ["NPU9", "AUTO:NPU9,CPU", "HETERO:CPU,NPU9"])
def test_an_absent_device_is_refused_wherever_it_is_named(tmp_path: Path, device: str) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"no device 'NPU9' here \(there are CPU"):
        open_backend("openvino").load(model, Engine(backend="openvino", device=device))


def test_an_unknown_runtime_option_is_refused_by_name(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="NO_SUCH_KEY"):
        open_backend("openvino").load(model, Engine(backend="openvino", options={"NO_SUCH_KEY": 1}))


def test_a_signal_is_heard_after_models_were_closed_in_the_order_they_were_opened(tmp_path: Path) -> None:
    """Where the processor has AMX, plug-ins that went in that order left the handlers a stack that was gone."""
    script = f"""
import os, signal, sys
import subprocess
import sys
from pathlib import Path
from loadslice.backends import checks
from loadslice.backends.base import open_backend
from loadslice.spec.pipeline import Engine
model = checks.write_model(Path({str(tmp_path / "m.onnx")!r}))
sessions = [open_backend("openvino").load(model, Engine(backend="openvino")) for _ in range(3)]
while sessions:
    sessions.pop(0).close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 7, ended.stderr
