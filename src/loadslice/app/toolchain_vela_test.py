"""The real Ethos-U compiler, where `loadslice toolchain install vela` has put it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.app.coverage import compile_onnx
from loadslice.app.toolchain_time import HostTime, host_time
from loadslice.backends.toolchains import environment, registry
from loadslice.backends.toolchains.compile import compile_model
from loadslice.backends.toolchains.process import ToolchainError
from loadslice.graph import rewrites
from loadslice.graph.coverage import by_compiler
from loadslice.graph.coverage_stage import stage
from loadslice.graph.shapes import infer
from loadslice.spec.errors import InputError

pytestmark = pytest.mark.skipif(
    not environment.usable(registry.VELA),
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
    (tmp_path / "m.bin").write_bytes(b"x")
    with pytest.raises(InputError, match=r"compiles \.tflite files"):
        compile_model(tmp_path / "m.bin", "ethos-u55-256")


@pytest.mark.skipif(
    not environment.usable(registry.TFLITE),
    reason="no interpreter with the converter is named: loadslice toolchain install tflite --python PATH",
)
def test_a_hard_sigmoid_falls_back_until_it_is_a_clip_at_six(tmp_path: Path) -> None:
    """The quantiser leaves an activation clipped at 1 in float, and float runs on the CPU."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "c0", pads=[1] * 4),
        helper.make_node("HardSigmoid", ["a"], ["b"], "gate"),
        helper.make_node("Mul", ["a", "b"], ["c"], "mix"),
        helper.make_node("Conv", ["c", "w"], ["y"], "c1", pads=[1] * 4),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 16, 16]) for name in "xy"]
    weights = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    hosted = []
    for one in (model, rewrites.apply(rewrites.find("hard-sigmoid-to-clip", {}), model).model):
        onnx.save(one, tmp_path / "m.onnx")
        report = compile_onnx(tmp_path / "m.onnx", {}, "ethos-u55-256")
        staged, names = stage(one, {})
        coverage = by_compiler(infer(staged, {}), report, names)
        hosted.append([node.op for node in coverage.nodes if node.on == "host"])
    assert hosted == [["HardSigmoid"], []]
