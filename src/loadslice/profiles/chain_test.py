import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.backends import checks
from loadslice.backends.isolated.session import IsolatedSession
from loadslice.profiles.chain import close, open_steps, walk
from loadslice.spec.pipeline import Engine, Pipeline, Stage
from loadslice.spec.work import Sample


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    checks.write_model(tmp_path / "m.onnx")
    (tmp_path / "chain_stages.py").write_text(
        "from loadslice.spec.work import Work\n"
        "def spoil(work):\n"
        "    work.tensors['x'] = work.tensors.pop('y') * 0\n"
        "    return Work({'x': work.tensors['x']}, work.context)\n"
    )
    engines = {"a": Engine(backend="onnxruntime"), "b": Engine(backend="onnxruntime")}
    stages = [
        Stage(name="first", model="m.onnx", engines=["a", "b"], buckets=[[3, 8]]),
        Stage(name="spoil", python="chain_stages:spoil", engine="a"),
        Stage(name="second", model="m.onnx", engine="b"),
    ]
    return Pipeline(version=1, pipeline="chain", engines=engines, stages=stages)


def test_a_walk_gives_what_every_stage_found_and_the_answer(pipeline: Pipeline, tmp_path: Path) -> None:
    steps = open_steps(pipeline, tmp_path)
    x = np.ones((2, 3, 5), np.float32)
    first, spoil, second, answer = walk(Sample("one", "", b"", tensors={"x": x}), steps)
    assert first.tensors["x"] is x
    assert spoil.tensors["y"].shape == (2, 3, 8), "padded to the bucket"
    assert (second.tensors["x"] == 0).all()
    assert answer.tensors["s"].tolist() == [24.0, 24.0]
    close(steps)


def test_rows_that_are_not_there_need_no_engine(pipeline: Pipeline, tmp_path: Path) -> None:
    steps = open_steps(pipeline, tmp_path)
    *_, answer = walk(Sample("none", "", b"", tensors={"x": np.zeros((0, 3, 5), np.float32)}), steps)
    assert answer.items == 0
    assert answer.tensors["s"].shape == (0,)


def test_only_the_engines_asked_for_are_loaded_and_every_stage_has_one(pipeline: Pipeline, tmp_path: Path) -> None:
    loaded = [list(step.sessions) for step in open_steps(pipeline, tmp_path, on=["a"])]
    assert loaded == [["a"], [], ["b"]]


def test_what_an_engine_runs_in_a_process_of_its_own_is_walked_there_and_ended_afterwards(tmp_path: Path) -> None:
    checks.write_model(tmp_path / "checks.onnx")
    stage = Stage(name="s", model="checks.onnx", engines=["e"])
    pipeline = Pipeline(
        version=1, pipeline="p", engines={"e": Engine(backend="onnxruntime", isolation="process")}, stages=[stage]
    )
    steps = open_steps(pipeline, tmp_path)
    session = steps[0].sessions["e"]
    assert isinstance(session, IsolatedSession)
    pid = session.process.pid
    assert pid is not None
    answer = walk(Sample("one", "", b"", tensors={"x": np.ones((1, 3, 4), np.float32)}), steps)[-1]
    assert np.array_equal(answer.tensors["y"], np.full((1, 3, 4), 3, np.float32))
    close(steps)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
