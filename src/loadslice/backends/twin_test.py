import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.backends import checks
from loadslice.backends.base import open_backend
from loadslice.backends.twin import TwinSession
from loadslice.backends.twin_numerics import halved, rounded
from loadslice.spec.errors import InputError
from loadslice.spec.inspection import Unsupported
from loadslice.spec.pipeline import Engine
from loadslice.spec.twin import TwinEngine, TwinSheet, TwinTime
from loadslice.spec.work import StageInputError


def sheet(**changed: object) -> TwinSheet:
    fast = TwinSheet(
        device="npu-test",
        precision="fp32",
        static_shapes=False,
        unsupported=[],
        operators="a table",
        needs_bytes=2_000_000,
        memory_bytes=4_000_000,
        compile_ms=0.0,
        times=[TwinTime(rows=1, shape=None, ms=1e-6, energy_j=0.5)],
        times_basis="modelled",
        times_source="roofline",
    )
    return replace(fast, **changed)


def load(model: Path, known: TwinSheet, **engine: object) -> TwinSession:
    session = open_backend("twin").load(
        model, TwinEngine(backend="twin", device=known.device, sheets={str(model): known}, **engine)
    )
    assert isinstance(session, TwinSession)
    return session


class WithSheets:
    """The twin as the contract asks for backends: an engine of the checks gets the sheet of a device named nowhere."""

    def load(self, model: Path, engine: Engine) -> TwinSession:
        known = sheet()
        whole = model.name in ("checks.onnx", "whole.onnx")
        return open_backend("twin").load(
            model,
            TwinEngine(
                backend="twin",
                device=engine.device,
                max_inflight=engine.max_inflight,
                sheets={str(model): known} if whole or model.is_file() else {},
            ),
        )


def test_the_twin_keeps_the_contract(tmp_path: Path) -> None:
    checks.run_all(WithSheets(), tmp_path)


def test_an_answer_comes_when_the_device_would_give_it_and_not_before(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    session = load(model, sheet(times=[TwinTime(rows=2, shape=(3, 4), ms=40.0, energy_j=None)]))
    began = time.perf_counter()
    session.run({"x": np.ones((2, 3, 4), np.float32)})
    assert time.perf_counter() - began >= 0.040
    assert session.late_runs == 0


def test_dilation_stretches_the_device_and_leaves_the_numbers_alone(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    session = load(model, sheet(times=[TwinTime(rows=2, shape=None, ms=4.0, energy_j=None)]), dilate=10.0)
    began = time.perf_counter()
    outputs = session.run({"x": x})
    assert time.perf_counter() - began >= 0.040
    assert session.time_of((2, 3, 4)).ms == 4.0
    np.testing.assert_allclose(outputs["y"], checks.expected(x)["y"])


def test_a_processor_slower_than_the_device_is_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = load(checks.write_model(tmp_path / "m.onnx"), sheet())
    with caplog.at_level(logging.WARNING):
        session.run({"x": np.ones((1, 3, 4), np.float32)})
        session.run({"x": np.ones((1, 3, 4), np.float32)})
    assert session.describe()["late_runs"] == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "--dilate" in caplog.text


def test_where_only_numbers_are_wanted_nothing_is_waited_for_and_nothing_is_late(tmp_path: Path) -> None:
    slow = sheet(compile_ms=1e6, times=[TwinTime(rows=1, shape=None, ms=1e6, energy_j=None)])
    fast = sheet()
    for known in (slow, fast):
        session = load(checks.write_model(tmp_path / "m.onnx"), known, keeps_time=False)
        session.run({"x": np.ones((1, 3, 4), np.float32)})
        assert session.late_runs == 0


def test_loading_takes_as_long_as_the_compiler_is_modelled_to(tmp_path: Path) -> None:
    began = time.perf_counter()
    load(checks.write_model(tmp_path / "m.onnx"), sheet(compile_ms=60.0))
    assert time.perf_counter() - began >= 0.060


def test_an_unsupported_operator_is_named_with_its_source(tmp_path: Path) -> None:
    nodes = [Unsupported(node=f"n{k}", op="Gather", reason="not in its list", source="vela 5.2.0") for k in range(5)]
    message = r"'npu-test' does not run 'n0' \(Gather: not in its list\), .* and 2 more, by vela 5\.2\.0"
    with pytest.raises(InputError, match=message):
        load(checks.write_model(tmp_path / "m.onnx"), sheet(unsupported=nodes))


def test_a_model_larger_than_the_devices_memory_is_refused_with_both_sizes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs 5\.0 MB at fp32, device 'npu-test' has 4\.0 MB"):
        load(checks.write_model(tmp_path / "m.onnx"), sheet(needs_bytes=5_000_000))


def test_what_nobody_knows_is_no_reason_to_refuse(tmp_path: Path) -> None:
    load(checks.write_model(tmp_path / "m.onnx"), sheet(needs_bytes=5_000_000, memory_bytes=None)).close()


def test_open_shapes_are_refused_on_a_device_of_fixed_shapes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fixed shapes only .* Give stages\.\*\.accept\.ENGINE\.shape"):
        load(checks.write_model(tmp_path / "m.onnx"), sheet(static_shapes=True))


def test_a_batch_of_another_shape_is_refused_by_a_device_of_fixed_shapes(tmp_path: Path) -> None:
    built = sheet(static_shapes=True, times=[TwinTime(rows=4, shape=(3, 8), ms=1e-6, energy_j=None)])
    session = load(checks.write_model(tmp_path / "m.onnx"), built)
    session.run({"x": np.ones((4, 3, 8), np.float32)})
    for shape in ((3, 3, 8), (4, 3, 9)):
        with pytest.raises(StageInputError, match=r"input 'x' has shape .* was built for 4x3x8"):
            session.run({"x": np.ones(shape, np.float32)})


def test_rows_between_known_ones_take_a_time_and_an_energy_between(tmp_path: Path) -> None:
    known = [TwinTime(rows=rows, shape=None, ms=ms, energy_j=ms / 10) for rows, ms in ((2, 10.0), (4, 14.0))]
    session = load(checks.write_model(tmp_path / "m.onnx"), sheet(times=known))
    assert [session.time_of((rows, 3, 4)).ms for rows in (1, 2, 3, 4, 8)] == [10.0, 10.0, 12.0, 14.0, 28.0]
    assert session.time_of((3, 3, 4)).energy_j == pytest.approx(1.2)


def test_an_engine_without_sheets_is_refused(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="inside a pipeline only"):
        open_backend("twin").load(model, Engine(backend="twin", device="hailo-8"))


def test_what_a_twin_says_of_itself_is_that_it_is_one(tmp_path: Path) -> None:
    said = load(checks.write_model(tmp_path / "m.onnx"), sheet()).describe()
    assert (said["basis"], said["times"], said["operators"]) == ("emulated", "modelled: roofline", "a table")


def matmul(folder: Path, weights: np.ndarray) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", sides])
        for name, sides in (("x", weights.shape[0]), ("y", weights.shape[1]))
    )
    graph = helper.make_graph([node], "m", [x], [y], [numpy_helper.from_array(weights.astype(np.float32), "w")])
    path = folder / "matmul.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_int8_rounds_each_output_channel_to_127_steps_of_its_own(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((16, 3)) * np.array([1.0, 10.0, 0.0])
    model, words = rounded(matmul(tmp_path, weights), "int8")
    assert model is not None
    kept = numpy_helper.to_array(model.graph.initializer[0])
    steps = np.abs(weights).max(axis=0) / 127
    assert np.all(np.abs(kept - weights) <= steps / 2 + 1e-6)
    assert [len(np.unique(column)) > 10 for column in kept.T] == [True, True, False]
    assert "float activations" in words


def test_fp16_answers_are_those_of_rounded_weights_and_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights, x = rng.standard_normal((64, 2)), rng.standard_normal((3, 64), dtype=np.float32)
    session = load(matmul(tmp_path, weights), sheet(precision="fp16"))
    given = session.run({"x": x})["y"]
    exact = x.astype(np.float64) @ weights
    assert np.array_equal(given, given.astype(np.float16).astype(np.float32))
    assert 0 < np.abs(given - exact).max() < 0.05


@pytest.mark.parametrize(("value", "kept"), [(1.0, 1.0), (1.00390625, 1.0), (1.01171875, 1.015625), (-3.0e38, -3.0e38)])
def test_bf16_rounds_to_the_nearest_of_eight_bits_and_ties_to_even(value: float, kept: float) -> None:
    (found,) = halved("bf16")(np.array([value], np.float32))
    assert found == pytest.approx(kept, rel=0.003 if abs(value) > 1e30 else 0)


def test_what_is_not_a_number_stays_so_in_bf16() -> None:
    found = halved("bf16")(np.array([np.nan, np.inf, -np.inf], np.float32))
    assert np.isnan(found[0])
    assert found[1:].tolist() == [np.inf, -np.inf]


def test_a_text_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    with pytest.raises(InputError, match=r"text\.onnx: not an ONNX model"):
        rounded(path, "int8")
