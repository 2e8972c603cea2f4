from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.backends import checks
from loadslice.backends.base import open_backend
from loadslice.backends.onnxruntime import ROOM_BYTES_MAX
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import StageInputError


def test_onnxruntime_keeps_the_contract(tmp_path: Path) -> None:
    checks.run_all(open_backend("onnxruntime"), tmp_path)


def test_slots_of_many_threads_have_sessions_of_their_own(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    session = open_backend("onnxruntime").load(
        model, Engine(backend="onnxruntime", threads=2, max_inflight=checks.SLOTS)
    )
    checks.slots_do_not_mix(session)
    assert session.describe()["threads"] == 2


def test_an_execution_provider_that_is_absent_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"no device 'rocm' here \(there are .*CPUExecutionProvider"):
        open_backend("onnxruntime").load(model, Engine(backend="onnxruntime", device="rocm"))


def test_a_device_may_be_named_short_or_whole(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    for device in (None, "cpu", "CPU", "CPUExecutionProvider"):
        session = open_backend("onnxruntime").load(model, Engine(backend="onnxruntime", device=device))
        assert session.describe()["device"] == "CPUExecutionProvider"


def test_runtime_options_reach_the_runtime(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    backend = open_backend("onnxruntime")
    backend.load(model, Engine(backend="onnxruntime", options={"session.set_denormal_as_zero": "1"}))
    with pytest.raises(InputError, match=r"m\.onnx: onnxruntime cannot load"):
        backend.load(model, Engine(backend="onnxruntime", options={"session.set_denormal_as_zero": "1" * 100_000}))


def test_a_precision_that_the_runtime_would_not_compute_is_refused(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="has no bf16"):
        open_backend("onnxruntime").load(model, Engine(backend="onnxruntime", precision="bf16"))


def test_graph_optimisation_can_be_turned_down_and_an_unknown_level_is_refused(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    for level in ("none", "basic", "extended", "all"):
        engine = Engine(backend="onnxruntime", options={"graph_optimization_level": level})
        open_backend("onnxruntime").load(model, engine).close()
    wrong = Engine(backend="onnxruntime", options={"graph_optimization_level": "most"})
    with pytest.raises(InputError, match="graph_optimization_level: 'most' is none of none, basic, extended, all"):
        open_backend("onnxruntime").load(model, wrong)


def test_rows_written_into_the_runtimes_own_memory_are_read_in_place_and_answers_outlive_it(tmp_path: Path) -> None:
    session = open_backend("onnxruntime").load(checks.write_model(tmp_path / "m.onnx"), Engine(backend="onnxruntime"))
    rows = [np.random.default_rng(count).random((count, 3, 4), np.float32) for count in (3, 1, 5, 3)]
    expected = [session.run({"x": one}) for one in rows]
    answers = []
    for one in rows:
        room = session.room(0, (one.shape,))
        room["x"][...] = one
        answers.append(session.run(room))
        assert session.room(0, (one.shape,)) is room, "bound once"
    for answer, right in zip(answers, expected, strict=True):
        for name, tensor in right.items():
            np.testing.assert_allclose(answer[name], tensor, rtol=1e-6)


def test_memory_of_shapes_a_model_does_not_take_is_refused_by_name(tmp_path: Path) -> None:
    session = open_backend("onnxruntime").load(checks.write_model(tmp_path / "m.onnx"), Engine(backend="onnxruntime"))
    with pytest.raises(StageInputError, match="input 'x' has shape 2x2x4"):
        session.room(0, ((2, 2, 4),))
    assert session.room(0, ((0, 3, 4),)) is None
    assert session.room(0, ((ROOM_BYTES_MAX, 3, 4),)) is None


def test_a_model_whose_names_are_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    path = checks.write_model(tmp_path / "m.onnx")
    path.write_bytes(path.read_bytes().replace(b"\x01x", b"\x01\xff"))
    with pytest.raises(InputError, match="is not UTF-8; is the file damaged") as refused:
        open_backend("onnxruntime").load(path, Engine(backend="onnxruntime"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("sides", "is_ready"), [(["n", 2], True), (["n", "m"], True), ([3, 2], True), (["k", 2], False)]
)
def test_a_batch_is_made_ready_where_the_lengths_of_its_outputs_are_known(
    tmp_path: Path, sides: list[str | int], is_ready: bool
) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sides)],
    )
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    session = open_backend("onnxruntime").load(path, Engine(backend="onnxruntime"))
    x, y = np.full((3, 2), -1, np.float32), np.ones((3, 2), np.float32)
    run = session.prepared({"x": x}, 0, lambda _infos, shapes: {"y": y} if shapes == [(3, 2)] else None)
    assert (run is not None) == is_ready
    if run is not None:
        run()
        assert not y.any()
        x[0] = 5
        run()
        assert y.tolist() == [[5, 5], [0, 0], [0, 0]]
