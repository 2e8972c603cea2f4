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
