"""The model runner on a real runtime: padding to buckets and static shapes, and whose fault a bad tensor is."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.backends.isolated.host import EngineLostError
from loadslice.backends.isolated.session import Hosts
from loadslice.serve.clock import Clock
from loadslice.serve.request import Batch
from loadslice.serve.runners import opened
from loadslice.serve.stages import LoadedStage, check_memory, close_stages, goes_by_turns, load_stages
from loadslice.serve.warm import warm_models
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Batch as BatchRule
from loadslice.spec.pipeline import Canary, Engine, Pipeline, Stage, check
from loadslice.spec.work import StageError, StageInputError, Work

PIPELINE = """
version: 1
pipeline: p
engines: {dynamic: {backend: onnxruntime}, static: {backend: onnxruntime}}
stages:
  - name: same
    model: same.onnx
    engines: [dynamic, static]
    buckets: [[4], [8]]
    accept: {static: {shape: [1, 16]}}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "w"])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "same",
        [value],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "w"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "same.onnx")
    return check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "p")


@pytest.fixture
def same(pipeline: Pipeline, tmp_path: Path):
    stages = load_stages(pipeline, tmp_path, Clock())
    warm_models(pipeline, stages)
    yield stages[0]
    close_stages(stages)


def run(same: LoadedStage, engine: int, *widths: int, dtype=np.float32) -> Batch:
    works = [Work({"x": np.ones((1, width), dtype)}, context=width) for width in widths]
    batch = Batch(0, 1, engine, 0, 0, same.bucket_of(works[0]), 0, 0, [], [], works)
    same.stable.runners[engine].run(batch, 0)
    return batch


@pytest.mark.parametrize(("engine", "width", "padded"), [(0, 3, 4), (0, 4, 4), (0, 5, 8), (0, 9, 9), (1, 3, 16)])
def test_rows_are_padded_to_their_bucket_or_to_the_engines_only_shape(same, engine, width, padded) -> None:
    (result,) = run(same, engine, width).results
    assert result.tensors["y"].tolist() == [[1.0] * width + [0.0] * (padded - width)]
    assert result.context == width


def test_rows_that_pad_a_batch_are_computed_and_never_come_back(pipeline, tmp_path) -> None:
    padded = msgspec.structs.replace(
        pipeline.stages[0], batch={"dynamic": BatchRule(size=8, pad_to=[2, 8])}, engines=["dynamic"], accept={}
    )
    stages = load_stages(msgspec.structs.replace(pipeline, stages=[padded]), tmp_path, Clock())
    given = []
    session = stages[0].stable.runners[0].session
    run_session = session.run
    session.run = lambda feeds, slot: (given.append(feeds["x"].copy()), run_session(feeds, slot))[1]
    works = [Work({"x": np.full((rows, 3), rows, np.float32)}) for rows in (1, 2)]
    batch = Batch(0, 1, 0, 0, 0, 0, 8, 0, [], [], works)
    stages[0].stable.runners[0].run(batch, 0)
    (rows,) = given
    assert rows.shape == (8, 4)
    assert rows[:3, :3].tolist() == [[1] * 3, [2] * 3, [2] * 3]
    assert not rows[3:].any()
    assert [result.tensors["y"][:, :3].tolist() for result in batch.results] == [[[1] * 3], [[2] * 3] * 2]
    close_stages(stages)


def test_a_canary_needs_an_engine_that_holds_both_versions_and_others_go_by_turns(pipeline) -> None:
    stage = msgspec.structs.replace(pipeline.stages[0], memory_mb=30, load_ms=5)
    two = msgspec.structs.replace(stage, name="two", canary=Canary(model="same.onnx"))
    plain = msgspec.structs.replace(stage, name="two")

    def of(memory_mb: float, *stages: Stage) -> Pipeline:
        engines = {name: Engine(backend="onnxruntime", memory_mb=memory_mb) for name in ("dynamic", "static")}
        return check(msgspec.structs.replace(pipeline, engines=engines, stages=[*stages]), "p")

    assert [goes_by_turns(of(memory_mb, stage, plain), "static") for memory_mb in (60, 59)] == [False, True]
    check_memory(of(59, stage, plain))
    check_memory(of(90, stage, two))
    with pytest.raises(InputError, match="memory_mb: 89 is less than the 90 that"):
        check_memory(of(89, stage, two))


def test_a_model_that_was_dropped_runs_again_once_it_is_loaded(same) -> None:
    runner = same.stable.runners[0]
    runner.close()
    assert not runner.is_open
    with opened(runner):
        assert len(run(same, 0, 3).results) == 1
    assert not runner.is_open
    runner.open()
    with opened(runner):
        assert runner.is_open
    assert runner.is_open


def test_copy_and_compute_are_stamped_apart(same) -> None:
    batch = run(same, 0, 3, 4)
    assert batch.copy_ns > 0
    assert batch.compute_ns > 0


def test_only_the_request_whose_tensor_does_not_fit_fails(same) -> None:
    good, bad = run(same, 0, 3, 7).results
    assert isinstance(good, Work)
    assert isinstance(bad, StageInputError)


def test_at_a_later_stage_a_bad_tensor_is_not_the_clients_fault(pipeline, tmp_path) -> None:
    twice = [*pipeline.stages, msgspec.structs.replace(pipeline.stages[0], name="again")]
    stages = load_stages(msgspec.structs.replace(pipeline, stages=twice), tmp_path, Clock())
    (result,) = run(stages[1], 0, 3, dtype=np.float64).results
    assert isinstance(result, StageError)
    assert not result.client_fault
    close_stages(stages)


def test_an_engine_that_ends_while_it_loads_is_one_line(pipeline, tmp_path, monkeypatch) -> None:
    def lost(*_: object) -> None:
        raise EngineLostError("engine 'dynamic': its process has ended.")

    monkeypatch.setattr(Hosts, "load", lost)
    with pytest.raises(InputError, match="stage 'same': cannot be loaded, engine 'dynamic': its process has ended"):
        load_stages(pipeline, tmp_path, Clock())


def test_a_bucket_that_the_model_cannot_take_is_found_before_the_first_client(pipeline, tmp_path) -> None:
    wide = msgspec.structs.replace(pipeline.stages[0], buckets=[[2, 2]], accept={})
    stages = load_stages(msgspec.structs.replace(pipeline, stages=[wide]), tmp_path, Clock())
    with pytest.raises(InputError, match=r"stage 'same' on engine 'dynamic': 1 rows of bucket \[2, 2\] do not run"):
        warm_models(msgspec.structs.replace(pipeline, stages=[wide]), stages)
    close_stages(stages)
