"""A service of one small model between two Python stages, squeezed as a user would."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("nncf", reason="the extra 'squeeze' is not installed")
pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")
pytest.importorskip("openvino", reason="the extra 'squeeze' is not installed")

from loadslice.app import squeeze_service
from loadslice.app.cli import run
from loadslice.backends.base import EngineError
from loadslice.profiles import service
from loadslice.profiles.chain import close, open_steps, walk
from loadslice.profiles.samples import of_pipeline
from loadslice.spec.files import stamp
from loadslice.spec.pipeline import Engine, load
from loadslice.spec.service import Service
from loadslice.spec.variant import CpuOffer
from loadslice.spec.work import Sample
from loadslice.variants import specimen, timing
from loadslice.variants.bench import Artefact, Failure, Workbench

STAGES = """
import numpy as np
from loadslice.spec.work import Sample, Work

def samples():
    draw = np.random.default_rng(0)
    shapes = [(1 + i % 3, 3, 16, 16 + 8 * (i % 2)) for i in range(8)]
    images = [draw.standard_normal(shape, dtype=np.float32) for shape in shapes]
    return [Sample(f"s{i}", "x", b"", ["a"], {"image": image}) for i, image in enumerate(images)]

def enter(work):
    return Work({"image": work.tensors["image"]})

def leave(work):
    (scores,) = work.tensors.values()
    return Work({"text": np.array([str(row.argmax()) for row in scores], object)})

def score(truth, texts):
    return (SCORE)
"""
PIPELINE = """
version: 1
pipeline: p
inputs: mine:samples
deadline_ms: 5000
engines:
  host: {backend: python}
  cpu: {backend: onnxruntime, queue: {limit: 9}}
stages:
  - {name: enter, python: "mine:enter", engine: host}
  - {name: look, model: m.onnx, engine: cpu, buckets: [[3, 16, 16], [3, 16, 24]]}
  - {name: leave, python: "mine:leave", engine: host}
"""
ARGUMENTS = ["squeeze", "p.yaml", "--data", "t.parquet", "--seconds", "2", "--out", "kept", "--json"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    specimen.write_model(tmp_path / "m.onnx")
    (tmp_path / "p.yaml").write_text(PIPELINE)
    names = [f"s{i}" for i in range(8)] * 2 + ["s0"] * 8
    pl.DataFrame({"arrival_s": [float(i) for i in range(24)], "input": names}).write_parquet(tmp_path / "t.parquet")
    return tmp_path


def test_an_example_that_repeats_another_is_in_no_set_of_its_own() -> None:
    image = np.ones((1, 3), np.float32)
    given = [
        Sample("a", "image/png", b"1"),
        Sample("b", "image/png", b"1"),
        Sample("c", "image/png", b"1", truth=["x"]),
        Sample("d", "", b"", tensors={"image": image}),
        Sample("e", "", b"", tensors={"image": image.copy()}),
        Sample("f", "", b"", tensors={"image": image.reshape(3, 1)}),
    ]
    found, stands_for = squeeze_service._distinct(given)
    assert [one.name for one in found] == ["a", "c", "d", "f"]
    assert stands_for == {"a": "a", "b": "a", "c": "c", "d": "d", "e": "d", "f": "f"}


def test_a_service_is_squeezed_and_its_file_serves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(STAGES.replace("SCORE", "0, 1"))
    code = run(ARGUMENTS)
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((folder / "kept" / "service.json").read_text())
    (stage,) = record["stages"]
    front = [one for one in stage["candidates"] if one["on_front"]]
    assert stage["chosen"] in {one["name"] for one in front}
    assert max(one["cosine"] for one in stage["candidates"]) == max(one["cosine"] for one in front)
    assert stage["buckets_cpu_ms"].keys() == {"none", "traffic", "pipeline"}
    assert stage["batch_cpu_ms"].keys() == {"alone", "4", "8", "16"}
    assert record["tuned_metric"] == record["source_metric"] == 1.0
    assert {(rate["streams"], rate["threads"]) for rate in record["untuned"]} == {(1, record["cpu"]["cores_usable"])}
    assert code == (0 if record["throughput_speedup"] > 1 else 3)
    if code == 0:
        made = load(folder / "squeezed.yaml")
        assert [one.name for one in made.stages] == ["enter", "look", "leave"]
        assert made.deadline_ms == 5000
        steps = open_steps(made, folder)
        try:
            assert [walk(sample, steps)[-1].items for sample in of_pipeline(made, folder)] == [1, 2, 3, 1, 2, 3, 1, 2]
        finally:
            close(steps)


def test_a_service_whose_answers_nothing_keeps_is_not_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Whatever is asked first, the untuned service, is right; all else is wrong.
    (folder / "mine.py").write_text(
        STAGES.replace("SCORE", "asked.append(1) or int(len(asked) > 6), 1") + "\nasked = []\n"
    )
    assert run(ARGUMENTS) == 3
    record = json.loads(capsys.readouterr().out)
    assert record["tuned_metric"] < record["floor"]
    assert len(record["trials"]) >= len([one for one in record["stages"][0]["candidates"] if one["on_front"]])
    assert not (folder / "squeezed.yaml").exists()


def test_what_was_chosen_is_refused_by_inputs_that_chose_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # All are right on the two inputs to choose by, and whatever is not the untuned service is wrong on the four others.
    judged = [f"s{index}" for index in np.random.default_rng(0).permutation(8)[1::2]]
    score = f"asked.append(1) or int(len(asked) > 6 and truth[0] in {judged}), 1"
    text = STAGES.replace("SCORE", score).replace('["a"]', '[f"s{i}"]')
    (folder / "mine.py").write_text(f"{text}\nasked = []\n")
    code = run(ARGUMENTS)
    record = json.loads(capsys.readouterr().out)
    names = record["inputs"]
    assert names["judgement"] == judged
    assert [len(names[part]) for part in ("calibration", "choice")] == [2, 2]
    assert sorted(name for part in names.values() for name in part) == [f"s{i}" for i in range(8)]
    assert code == 3
    assert len(record["trials"]) == 2, "the cheapest, and the same as it would be served"
    assert all(trial["metric"] == 1.0 for trial in record["trials"])
    assert record["tuned_metric"] == 0.0
    assert not (folder / "squeezed.yaml").exists()


def test_a_tuned_file_does_not_outlive_the_verdict_on_its_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(STAGES.replace("SCORE", "0, 1"))
    record = Service(
        pipeline="p.yaml", metric="cosine", floor=0.99, source_metric=1.0, tuned_metric=0.5, judged_inputs=4, stages=[],
        trials=[], untuned=[], tuned=[], throughput_speedup=2.0, cpu_speedup=2.0, load_average_1m=None,
        cpu=CpuOffer(int8=None, bf16=None, fp16=None, numa_nodes=None, cores_usable=2), notes=[],
        stamp=stamp("service/1"),
    )  # fmt: skip
    monkeypatch.setattr(service, "squeeze", lambda *_: (record, {}))
    tuned, elsewhere = folder / "squeezed.yaml", PIPELINE.replace("m.onnx", "other/m.onnx")
    for text, stays in ((elsewhere, True), (PIPELINE.replace("m.onnx", "kept/look-int8.onnx"), False)):
        tuned.write_text(text)
        squeeze_service.run(folder / "p.yaml", None, 1.0, folder / "kept", 0)
        assert tuned.exists() is stays


def test_what_a_squeeze_wrote_is_not_squeezed_over_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "squeezed.yaml").write_text(PIPELINE)
    assert run(["squeeze", "squeezed.yaml", "--out", "kept"]) == 2
    assert "Squeeze the pipeline that it was made from" in capsys.readouterr().err
    assert (folder / "squeezed.yaml").read_text() == PIPELINE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model: m.onnx", "model: absent.onnx"), "absent.onnx"),
        (("inputs: mine:samples", ""), "names no example inputs"),
        (("range(8)", "range(3)"), "3 example inputs; at least four"),
        (("model: m.onnx", "to: c2, model: m.onnx"), "needs stages of whole models"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
) -> None:
    (folder / "mine.py").write_text(STAGES.replace("SCORE", "0, 1").replace(*change))
    (folder / "p.yaml").write_text(PIPELINE.replace(*change))
    assert run([argument for argument in ARGUMENTS if argument not in ("--data", "t.parquet")]) == 2
    assert message in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_stage_of_which_nothing_can_be_proven_is_one_line(folder, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(STAGES.replace("SCORE", "0, 1"))

    def refuse(bench: Workbench, artefact: Artefact, engine: Engine) -> None:
        bench.failures.append(Failure(artefact.name, artefact.target, artefact.scheme, "its runtime says no"))

    monkeypatch.setattr(Workbench, "prove", refuse)
    assert run(ARGUMENTS) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "stage 'look': nothing that was made of m.onnx runs" in said
    assert "its runtime says no" in said
    assert not (folder / "squeezed.yaml").exists()


def test_a_runtime_that_fails_while_it_is_timed_is_one_line(folder, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text(STAGES.replace("SCORE", "0, 1"))

    def fail(*_: object) -> None:
        raise EngineError("onnxruntime: out of memory")

    monkeypatch.setattr(timing, "in_turns", fail)
    assert run(ARGUMENTS) == 2
    assert "a runtime failed on what was recorded: onnxruntime: out of memory" in capsys.readouterr().err


def test_a_trace_of_other_inputs_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(STAGES.replace("SCORE", "0, 1"))
    pl.DataFrame({"arrival_s": [0.0, 1.0], "input": ["x", "y"]}).write_parquet(folder / "t.parquet")
    assert run(ARGUMENTS) == 2
    assert "none of its inputs is an example" in capsys.readouterr().err


def test_a_score_that_finds_nothing_right_is_no_floor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(STAGES.replace("SCORE", "1, 1"))
    assert run(ARGUMENTS) == 2
    assert "finds no character right in the untuned service's answers to 2 inputs" in capsys.readouterr().err
