"""The real Ethos-U compiler, where `loadslice toolchain install vela` has put it."""

from pathlib import Path

import pytest

from loadslice.app.toolchain_time import HostTime, host_time
from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.compile import compile_model
from loadslice.backends.toolchains.process import ToolchainError
from loadslice.spec.errors import InputError

pytestmark = pytest.mark.skipif(
    environment.installed(registry.VELA) is None,
    reason="the Ethos-U compiler is not installed: loadslice toolchain install vela",
)


SHARED = Path(__file__).parents[4] / "shared/data/models/mlperf_tiny"


def tiny(name: str) -> Path:
    """A model of MLPerf Tiny (Apache-2.0)."""
    if not (SHARED / name).is_file():
        pytest.skip(f"{name} is not beside the checkout")
    return SHARED / name


@pytest.mark.shared
def test_an_int8_model_runs_whole_and_its_cycles_are_the_compilers(tmp_path: Path) -> None:
    report = compile_model(tiny("vww_96_int8.tflite"), "ethos-u55-256", out=tmp_path)
    assert report.figures["host_layers"] == 0
    assert report.figures["macs"] == 7_491_972
    assert report.figures["device_ms_modelled"] == pytest.approx(0.3229, abs=1e-3)
    assert (tmp_path / "vww_96_int8_vela.tflite").is_file()
    assert host_time(report, HostTime(operations_per_s=None)).figures["host_ms_modelled"] == 0


@pytest.mark.shared
def test_a_float_model_takes_no_time_only_in_the_compilers_eyes() -> None:
    """Every layer falls back at 0 cycles; what we add is the model's own work over the CPU's rate."""
    report = compile_model(tiny("vww_96_float.tflite"), "ethos-u55-256")
    assert report.figures["device_ms_modelled"] is None
    assert {layer.on for layer in report.layers} == {"host"}
    assert all("unsupported DataType Float32" in (layer.reason or "") for layer in report.layers)
    work = sum(layer.host_operations or 0 for layer in report.layers)
    assert work == pytest.approx(2 * 7_491_972, rel=0.02)
    assert host_time(report, HostTime(operations_per_s=None)).figures["total_ms_modelled"] is None
    timed = host_time(report, HostTime(operations_per_s=2e8))
    assert timed.figures["total_ms_modelled"] == pytest.approx(work / 2e8 * 1e3)


def test_what_is_no_tflite_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(b"not a model")
    with pytest.raises(ToolchainError):
        compile_model(tmp_path / "m.tflite", "ethos-u55-256")
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(InputError, match="int8 TFLite"):
        compile_model(tmp_path / "m.onnx", "ethos-u55-256")
