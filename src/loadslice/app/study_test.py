import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from loadslice.app import cli, study_folder, study_rehearsal
from loadslice.app.study import _rehearse, study
from loadslice.app.study_findings import Options
from loadslice.app.study_server import ServerError, serving
from loadslice.evaluate import pace
from loadslice.evaluate.rehearsed import Rehearsed
from loadslice.spec import report as reports
from loadslice.spec.errors import InputError
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Stage

STAGES = """
import time

import numpy as np

from loadslice.spec.work import Sample, Work

TEXTS = {b"long": 0.03, b"short": 0.01}


def samples():
    return [Sample(body.decode(), "text/plain", body, [body.decode()]) for body in TEXTS]


def assign(tokens_in):
    return ["long" if tokens > 100 else "short" for tokens in tokens_in]


def score(truth, texts):
    return (sum(a != b for a, b in zip(truth[0], texts[0], strict=False)), len(truth[0]))


def read(work):
    end = time.perf_counter() + TEXTS[work.context.body]
    while time.perf_counter() < end:
        pass
    return Work({"text": np.array([work.context.body.decode()], object)})


def fall(work):
    raise RuntimeError("broken on purpose")
"""

PIPELINE = """
version: 1
pipeline: reader
inputs: mine:samples
engines:
  host: {{backend: python}}
stages:
  - {{name: read, python: "mine:{function}", engine: host}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    made.mkdir()
    (made / "mine.py").write_text(STAGES)
    (made / "pipeline.yaml").write_text(PIPELINE.format(function="read"))
    (made / "budget.yaml").write_text("slo: {p95_ms: 2000, error_rate: 0.1}\n")
    draw = np.random.default_rng(0)
    times_s = np.cumsum(draw.exponential(0.05, 400))
    pl.DataFrame({"arrival_s": times_s - times_s[0], "tokens_in": draw.integers(1, 200, 400)}).write_parquet(
        made / "traffic.parquet"
    )
    return made


def options(**changed: float | None) -> Options:
    return Options(**({"profile_s": 1.0, "replay_s": 4.0, "speed": None, "seed": 1, "command": "study mine"} | changed))


@pytest.mark.live
def test_a_folder_with_one_plan_is_studied_to_the_end(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = study(study_folder.read(folder), out, options())
    (plan,) = report.plans
    assert [step.state for step in report.provenance.steps] == ["done"] * len(report.provenance.steps)
    assert plan.meets_slo
    assert report.verdict.recommended == plan.name
    assert [account.run for account in plan.accounts] == ["simulated", "live, client", "live, server"]
    assert all(account.holds for account in plan.accounts)
    assert len({account.submitted for account in plan.accounts}) == 1
    assert plan.measured is not None
    assert plan.measured.accuracy is not None
    assert plan.measured.accuracy.wrong_characters == 0
    assert plan.cpu is not None
    assert plan.cpu.server_cpu_s > 0
    assert plan.stages[0].measured is not None
    assert 10 < plan.stages[0].measured.service_ms_mean < 200
    assert reports.load(out / "report.json") == report
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert (out / "plans" / plan.name / "journal" / "journal.json").exists()
    assert (out / "plans" / plan.name / "replay.parquet").exists()


@pytest.mark.live
def test_a_plan_that_fails_is_named_and_the_report_still_comes(folder: Path, tmp_path: Path) -> None:
    (folder / "pipeline.broken.yaml").write_text(PIPELINE.format(function="fall"))
    out = tmp_path / "out"
    report = study(study_folder.read(folder), out, options())
    good, broken = report.plans
    assert good.measured is not None
    assert broken.measured is None
    assert broken.failed is not None
    assert "broken on purpose" in broken.failed
    assert report.verdict.recommended == good.name
    assert "broken on purpose" in (out / "report.html").read_text()


@pytest.mark.live
def test_an_interrupted_study_ends_its_server_and_says_130(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "loadslice", "study", str(folder), "--out", str(out), "--quick", "--speed", "0.5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "replay" in line:
                break
        ready = out / "plans" / "main" / "ready"
        while not ready.exists():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "interrupted" in said
    assert not ready.exists()
    journal = json.loads((out / "plans" / "main" / "journal" / "journal.json").read_bytes())
    assert journal["clean"]
    assert sum(journal["outcomes"].values()) == journal["requests"]


@pytest.mark.live
def test_a_server_that_does_not_start_is_one_line(folder: Path, tmp_path: Path) -> None:
    (folder / "pipeline.yaml").write_text("version: 9\n")
    with (
        pytest.raises(ServerError, match=r"ended with code 2: loadslice: .*version"),
        serving(folder / "pipeline.yaml", tmp_path / "out", None),
    ):
        pass


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("pipeline.yaml", "no pipeline.yaml. Add the pipeline"),
        ("budget.yaml", "no budget.yaml. Add one"),
        ("traffic.parquet", "no trace"),
    ],
)
def test_a_missing_file_is_named_with_what_to_add(
    folder: Path, remove: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / remove).unlink()
    assert cli.run(["study", str(folder), "--out", str(folder / "out")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (folder / "out").exists()


def test_a_rehearsal_is_an_ordinary_stretch_at_the_pace_that_is_predicted() -> None:
    draw = np.random.default_rng(0)
    gaps_s = np.concatenate([np.full(10, 1.0), draw.exponential(0.1, 2000)])
    frame = pl.DataFrame({"arrival_s": np.cumsum(gaps_s), "input": ["long"] * len(gaps_s)})
    traffic = study_rehearsal.at_pace(frame, 2.0)
    times_s = traffic["arrival_s"].to_numpy()
    assert times_s[0] == 0.0
    assert 0.9 * study_rehearsal.REHEARSED_S < times_s[-1] <= study_rehearsal.REHEARSED_S
    assert 135 < traffic.height < 185, "not the quiet beginning"
    assert traffic["row"].min() == study_rehearsal.LONE_REQUESTS, "rows of lone requests come before"


def test_a_rehearsal_never_reaches_the_half_of_a_trace_that_is_predicted() -> None:
    frame = pl.DataFrame({"arrival_s": np.linspace(0.0, 8.0, 81), "input": ["long"] * 81})
    window = pace.choose_window(frame, real_s=3.0, speed=1.0)
    from_s, for_s = pace.rehearsal_window(frame, real_s=study_rehearsal.REHEARSED_S, speed=1.0)
    assert from_s + for_s <= 4.0 <= window.from_s
    assert study_rehearsal.at_pace(frame, 1.0).height == 41, "all of the first half"


def test_mild_traffic_is_as_far_apart_as_it_is_told_to_be() -> None:
    draw = np.random.default_rng(0)
    frame = pl.DataFrame({"arrival_s": np.cumsum(draw.exponential(60.0, 500)), "input": ["long"] * 500})
    traffic = study_rehearsal.mild(frame, 0.15)
    assert traffic.height == study_rehearsal.MILD_REQUESTS
    assert np.diff(traffic["arrival_s"].to_numpy()).mean() == pytest.approx(0.15)
    at_once = pl.DataFrame({"arrival_s": [0.0] * 3, "input": ["long"] * 3})
    assert study_rehearsal.mild(at_once)["arrival_s"].to_list() == [0.0] * 3


def test_an_engine_of_several_threads_counts_for_all_of_them_and_one_elsewhere_for_none() -> None:
    engines = {
        "one": Engine(backend="onnxruntime", threads=1),
        "four": Engine(backend="openvino", device="CPU", threads=4),
        "gpu": Engine(backend="openvino", device="GPU", threads=4),
    }
    stages = [Stage(name=name, variant="v", engine=name) for name in engines]
    rows = pl.DataFrame(
        {
            "engine": ["one", "four", "gpu", "one"],
            "copy_ns": [10_000_000, 0, 5, None],
            "compute_ns": [90_000_000, 100_000_000, 10**12, None],
        }
    )
    pipeline = Pipeline(version=1, pipeline="p", engines=engines, stages=stages)
    assert study_rehearsal.in_engines_s(rows, pipeline) == pytest.approx(0.1 + 4 * 0.1)


def rehearsed(front: Milliseconds, handover: Milliseconds, cpu_ms: float) -> study_rehearsal.Rehearsal:
    nothing = pl.DataFrame()
    return study_rehearsal.Rehearsal(front, handover, cpu_ms, nothing, 1.0, front, nothing, np.zeros(0))


def test_a_plan_on_an_emulated_device_keeps_its_sheets_times_and_a_dilated_front_looks_faster() -> None:
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={"npu": Engine(backend="twin", device="rk3588-npu")},
        stages=[Stage(name="s", variant="v", engine="npu")],
    )
    entry = Entry(variant="v", engine="npu", batch=1, latency_ms=Milliseconds(p50=5.0), basis="emulated")
    front, handover = Milliseconds(samples=[2.0]), Milliseconds(samples=[0.4])
    rehearsal = rehearsed(front, handover, 6.0)
    learnt = study_rehearsal.learn(LatencyTable(entries=[entry]), pipeline, [rehearsal])
    assert learnt.table.entries == [entry]
    slow = study_rehearsal.dilated(learnt.table, 20.0)
    assert slow.entries == [entry]
    assert slow.overhead_ms == Milliseconds(samples=[0.1])
    assert slow.handover_ms == Milliseconds(samples=[0.02])
    assert slow.overhead_cpu_ms == 0.3
    assert study_rehearsal.said(learnt, pipeline) == "times as profiled"


def test_what_a_plan_with_emulated_devices_used_is_not_taken_for_the_front_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []

    def rehearse(_: Any, __: Any, ___: Any, cpu_ms: float | None) -> tuple[study_rehearsal.Rehearsal, str]:
        asked.append(cpu_ms)
        times = Milliseconds(samples=[1.0])
        return rehearsed(times, times, float(len(asked))), ""

    def plan(backend: str) -> Any:
        engine = Engine(backend=backend, device="rk3588-npu" if backend == "twin" else None)
        stages = [Stage(name="s", variant="v", engine="e")]
        pipeline = Pipeline(version=1, pipeline="p", engines={"e": engine}, stages=stages)
        table = LatencyTable(entries=[])
        return SimpleNamespace(plan=SimpleNamespace(pipeline=pipeline), folder=tmp_path, table=table, dilate=1.0)

    monkeypatch.setattr(study_rehearsal, "rehearse", rehearse)
    monkeypatch.setattr(study_rehearsal, "as_rehearsed", lambda table, *_: Rehearsed(table, {}, {}, [], []))
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0, 2.0]})
    found: Any = SimpleNamespace(
        chosen=SimpleNamespace(speed=1.0), frame=frame, inputs=None, front_cpu_ms=None, rehearsed=[]
    )
    for backend in ("twin", "python", "python"):
        _rehearse(found, plan(backend))
    assert asked == [None, None, 2.0]


def test_two_traces_are_not_guessed_between(folder: Path) -> None:
    (folder / "traffic.parquet").rename(folder / "monday.parquet")
    assert study_folder.read(folder).trace.name == "monday.parquet"
    (folder / "tuesday.csv").write_text("")
    with pytest.raises(InputError, match="could each be the trace"):
        study_folder.read(folder)


def test_plans_are_named_after_their_files_and_engines(folder: Path) -> None:
    model = "  - {{name: m, model: m.onnx, engines: [{engines}]}}\n"
    engines = "engines: {ort: {backend: onnxruntime}, ov: {backend: openvino}}\n"
    head = "version: 1\npipeline: p\ninputs: mine:samples\n" + engines + "stages:\n"
    (folder / "pipeline.yaml").write_text(head + model.format(engines="ort, ov"))
    (folder / "pipeline.openvino.yaml").write_text(head + model.format(engines="ov"))
    (folder / "pipeline.small.yaml").write_text(head + model.format(engines="ort"))
    found = study_folder.read(folder).plans
    assert [(plan.name, plan.title) for plan in found] == [
        ("hybrid", "Hybrid"),
        ("openvino", "OpenVINO alone"),
        ("small", "ONNX Runtime alone (small)"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said_before_any_work(folder: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(InputError, match="cannot be written"):
        study(study_folder.read(folder), closed / "out", options())


def test_a_file_in_the_place_of_the_output_folder_is_said_before_any_work(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        study(study_folder.read(folder), tmp_path / "taken", options())
