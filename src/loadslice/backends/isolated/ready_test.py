"""Batches made ready once: found again, never all forgotten, never in the way of running one from its message."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.backends.base import EngineError, NotPreparedError, TensorInfo, open_backend
from loadslice.backends.isolated import ready, worker
from loadslice.backends.isolated.arena import INPUTS, Arena
from loadslice.backends.isolated.messages import Failed, Ran, Run, encoder
from loadslice.backends.isolated.ready import Ready
from loadslice.spec.pipeline import Engine

F32 = np.dtype(np.float32)


class Copier:
    """A session that gives its input, counts how often it makes a batch ready, and fails when told to."""

    def __init__(self) -> None:
        self.inputs, self.outputs = [TensorInfo("x", F32, (None,))], [TensorInfo("y", F32, (None,))]
        self.prepared_count = self.run_count = 0
        self.fails: Exception | None = None

    def run(self, feeds: Any, slot: int = 0) -> dict[str, Any]:
        self.run_count += 1
        return {"y": feeds["x"].copy()}

    def prepared(self, feeds: Any, slot: int, place: Any) -> Callable[[], None] | None:
        self.prepared_count += 1
        outputs = place(self.outputs, [feeds["x"].shape])

        def run() -> None:
            if self.fails is not None:
                raise self.fails
            outputs["y"][...] = feeds["x"]

        return run


class Slot:
    """One slot of an engine's process, without the process."""

    def __init__(self, session: Any) -> None:
        self.arena = Arena.create(1 << 20)
        self.models = worker.Models({0: session}, [Ready(self.arena, 0)])

    def run(self, rows: int, value: float = 1.0, section: int = 1) -> Ran | Failed:
        placed = self.arena.put({"x": np.full(rows, value, F32)}, INPUTS)
        return worker._run(encoder.encode(Run(0, placed, section)), self.arena, self.models, 0)

    def answer(self, rows: int, value: float = 1.0, section: int = 1) -> list[float]:
        ran = self.run(rows, value, section)
        assert isinstance(ran, Ran), ran
        return self.arena.views(ran.outputs)["y"].tolist()


def test_what_comes_again_is_run_as_it_was_made_ready() -> None:
    session = Copier()
    slot = Slot(session)
    for value in (1.0, 2.0, 3.0):
        assert slot.answer(3, value) == [value] * 3
    assert (session.prepared_count, session.run_count) == (1, 0)


def test_more_kinds_of_batches_than_are_kept_do_not_make_every_one_of_them_ready_in_turn() -> None:
    session = Copier()
    slot = Slot(session)
    kinds = ready.READY_MAX + 40
    for _ in range(4):
        for rows in range(1, kinds + 1):
            assert slot.answer(rows, rows) == [rows] * rows
    assert len(slot.models.ready[0]) == ready.READY_MAX
    assert session.prepared_count <= ready.READY_MAX + 4 * kinds / ready.TURNOVER


def test_what_was_ready_gives_way_in_time_to_what_comes_now() -> None:
    session = Copier()
    slot = Slot(session)
    for rows in range(1, ready.READY_MAX + 1):
        slot.run(rows)
    for _ in range(2 * ready.TURNOVER):
        slot.run(ready.READY_MAX + 1)
    before = session.run_count
    slot.run(ready.READY_MAX + 1)
    assert session.run_count == before


def test_a_failure_of_the_runtime_is_this_batchs_and_what_is_ready_stays() -> None:
    session = Copier()
    slot = Slot(session)
    slot.run(2)
    slot.run(3)
    session.fails = EngineError("index 9 is out of bounds")
    assert slot.run(3) == Failed("engine", "index 9 is out of bounds")
    session.fails = None
    assert slot.answer(3) == [1.0] * 3
    assert slot.answer(2) == [1.0] * 2
    assert (session.prepared_count, session.run_count) == (2, 0)


def test_a_batch_that_cannot_be_run_as_it_was_made_ready_is_run_from_its_message_and_loses_nothing() -> None:
    session = Copier()
    slot = Slot(session)
    slot.run(3)
    session.fails = NotPreparedError("outputs are longer")
    assert slot.answer(3, 7.0) == [7.0] * 3
    assert session.run_count == 1


def write(path: Path, node: onnx.NodeProto, x: tuple[int, list[Any]], y: tuple[int, list[Any]], *more: Any) -> Path:
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", *y)],
        list(more),
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_model_that_gives_more_than_it_says_is_served_from_the_first_batch_on_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    model = write(tmp_path / "m.onnx", node, (TensorProto.FLOAT, ["n"]), (TensorProto.FLOAT, ["n"]))
    slot = Slot(open_backend("onnxruntime").load(model, Engine(backend="onnxruntime")))
    for rows in (1, 2, 3, 2):
        assert slot.answer(rows, 4.0) == [4.0] * (2 * rows)
    (said,) = caplog.records
    assert "shape {1} but the computed" in said.getMessage()


def test_a_request_the_runtime_cannot_compute_fails_alone_and_the_next_is_run_as_it_was_made_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    table = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    model = write(tmp_path / "m.onnx", node, (TensorProto.INT64, ["n"]), (TensorProto.FLOAT, ["n"]), table)
    slot = Slot(open_backend("onnxruntime").load(model, Engine(backend="onnxruntime")))

    def ask(index: int) -> Ran | Failed:
        placed = slot.arena.put({"x": np.array([index])}, INPUTS)
        return worker._run(encoder.encode(Run(0, placed, 1)), slot.arena, slot.models, 0)

    assert isinstance(ask(1), Ran)
    failed = ask(99)
    assert isinstance(failed, Failed)
    assert (failed.kind, "idx=99" in failed.text) == ("engine", True)
    assert isinstance(ask(2), Ran)
    assert len(slot.models.ready[0]) == 1
    assert caplog.records == []


def test_an_output_that_cannot_be_bound_is_copied_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = write(tmp_path / "m.onnx", node, (TensorProto.FLOAT, ["n"]), (TensorProto.FLOAT, ["n"]))
    session = open_backend("onnxruntime").load(model, Engine(backend="onnxruntime"))
    slot = Slot(session)
    real = session._sessions[0].io_binding

    class Binding:
        def __init__(self) -> None:
            self.real = real()

        def bind_output(self, *_given: object) -> None:
            raise RuntimeError("Only binding Tensors is currently supported")

        bind_cpu_input = bind_output

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    monkeypatch.setattr(session._sessions[0], "io_binding", Binding)
    for rows in (1, 2):
        assert slot.answer(rows) == [1.0] * rows
        assert session.room(0, ((rows,),)) is None
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "onnxruntime: outputs are copied from now on",
        "onnxruntime: inputs are copied from now on",
    ]
