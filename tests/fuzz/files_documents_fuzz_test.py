"""Documents that commands write and read again, damaged: each command ends in order, with at most one line."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from tests.fuzz.files_fuzz_test import Reader, try_all
from tests.fuzz.filled import filled
from tests.same_core.language_journal_test import Player

from loadslice.app import cli, plan_evidence, watch_run
from loadslice.app.batch_journal import Journal, Result
from loadslice.app.batch_rows import look
from loadslice.app.repository import check_safetensors
from loadslice.evaluate.watch.drift import DriftWatch
from loadslice.plan.sweep import Ledger
from loadslice.sim.language_check import check_language_journal
from loadslice.sim.language_world_test import profile as language_profile
from loadslice.spec import environment, evaluation_report, fidelity, portrait, report, slices, variant
from loadslice.spec import watch as watching
from loadslice.spec.evaluation_report import EvaluationReport
from loadslice.spec.files import encode_json
from loadslice.spec.inspection import Inspection
from loadslice.spec.language import load_language
from loadslice.spec.language_journal import load_language_journal
from loadslice.spec.language_profile import load_profile
from loadslice.spec.repository import Current, Model
from loadslice.spec.simulation import Simulation
from loadslice.spec.variant import Manifest, Squeeze
from loadslice.spec.watch import Baseline, Sample, Samples, Signal, WatchPlan
from loadslice.workload import recording

SIGNALS = WatchPlan(signals=[Signal(name="confidence", output="c", take="mean")], minimum=100)
LANGUAGE = """
version: 1
language: tiny
model: none.gguf
context: 512
engines:
  prefill: {backend: none, roles: [prefill], seats: 2, step_tokens: 512}
  decode: {backend: none, chunk: 64}
links: [{from: prefill, to: decode}]
"""
BATCH_ROWS = b'{"inputs": []}\n' * 3


def of(kind: Any, **known: Any) -> bytes:
    """A document of a type; what has to go together is given."""
    return json.dumps(filled(kind) | known).encode()


def samples() -> bytes:
    head = Samples(plan=SIGNALS, pipeline="p", basis="measured", taken=9, samples=[])
    return watch_run.written(head, [Sample(n, float(n), None, [n / 9]) for n in range(1, 10)])


def baseline() -> bytes:
    rows = [[n / 100] for n in range(100)]
    return of(Baseline, plan=msgspec.to_builtins(SIGNALS), rows=rows, clumping=[1.5])


def manifest() -> bytes:
    document = filled(Manifest)
    document["variant"]["files"] = {}
    return json.dumps(document).encode()


def operator_times() -> bytes:
    document = filled(slices.OpTimes)
    document["devices"]["a"]["link"]["bytes_per_s"] = 1e9
    return json.dumps(document).encode()


def week() -> bytes:
    document = filled(portrait.Portrait)
    document["arrival"]["hour_of_week"] *= portrait.HOURS_PER_WEEK // len(document["arrival"]["hour_of_week"])
    return json.dumps(document).encode()


def batch_journal(folder: Path) -> bytes:
    (folder / "in.jsonl").write_bytes(BATCH_ROWS)
    with Journal(folder / "out.jsonl", look(folder / "in.jsonl")) as journal:
        journal.add(Result(1, "line 2", outcome="completed", status=200, outputs=msgspec.Raw(b"[1]")))
        return journal.path.read_bytes()


def part() -> bytes:
    held = io.BytesIO()
    frame = {"time_ns": [10**18, 10**18 + 10**9], "latency_ms": [1.0, None], "class": ["critical", None]}
    pl.DataFrame(frame).write_parquet(held)
    return held.getvalue()


def safetensors() -> bytes:
    head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(8)


def npy() -> bytes:
    held = io.BytesIO()
    np.save(held, np.arange(6, dtype=np.float32).reshape(3, 2))
    return held.getvalue()


def read_batch_journal(path: Path) -> None:
    (path.parent / "in.jsonl").write_bytes(BATCH_ROWS)
    with Journal(path.with_suffix(""), look(path.parent / "in.jsonl")):
        pass


def read_language_profile(path: Path) -> None:
    (path.parent / "chat.yaml").write_text(LANGUAGE)
    load_profile(path, load_language(path.parent / "chat.yaml"))


def read_array_row(path: Path) -> None:
    (path.parent / "rows.jsonl").write_text(json.dumps({"file": path.name}) + "\n")
    list(look(path.parent / "rows.jsonl"))


def diagnosed(path: Path) -> None:
    """The whole command, for what a document says goes into sentences and sums."""
    assert cli.run(["diagnose", str(path.parent), "--json"]) in (0, 2)


DOCUMENTS: dict[str, tuple[str, Callable[[], bytes] | bytes, Reader]] = {
    "inspection": ("i.json", lambda: of(Inspection), lambda path: plan_evidence.read(None, [path], [])),
    "squeeze": ("s.json", lambda: of(Squeeze), lambda path: plan_evidence.read(None, [], [path])),
    "variant manifest": ("manifest.json", manifest, variant.load_manifest),
    "evaluation report": ("e.json", lambda: of(EvaluationReport), evaluation_report.load),
    "study report": ("r.json", lambda: of(report.Report), report.load),
    "fidelity": ("f.json", lambda: of(fidelity.Fidelity), fidelity.load),
    "portrait": ("p.json", week, portrait.load),
    "environment": ("lock.json", lambda: of(environment.Environment), environment.load),
    "operator times": ("t.json", operator_times, slices.load_op_times),
    "language profile": ("l.json", lambda: encode_json(language_profile(context=512)), read_language_profile),
    "watch samples": ("s.jsonl", samples, watch_run.load_samples),
    "watch baseline": ("b.json", baseline, lambda path: DriftWatch(watching.load_baseline(path))),
    "current version": ("current.json", lambda: of(Current), lambda path: Model(path.parent).current()),
    "search ledger": ("verdicts.jsonl", b'{"key": "k", "counts": [1]}\n', lambda path: Ledger(path, "k")),
    "safetensors": ("w.safetensors", safetensors, check_safetensors),
    "array of a batch row": ("x.npy", npy, read_array_row),
    "recorded part": ("part-1.parquet", part, lambda path: recording.read(path.parent)),
    "inspection, diagnosed": ("inspection.json", lambda: of(Inspection), diagnosed),
    "squeeze, diagnosed": ("squeeze.json", lambda: of(Squeeze), diagnosed),
    "evaluation, diagnosed": ("evaluation.json", lambda: of(EvaluationReport), diagnosed),
    "simulation, diagnosed": ("simulation.json", lambda: of(Simulation), diagnosed),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_read_or_refused_in_one_line(name: str, tmp_path: Path, tried) -> None:
    file, whole, read = DOCUMENTS[name]
    try_all(tmp_path / file, whole if isinstance(whole, bytes) else whole(), read, tried)


def test_a_batch_that_was_interrupted_goes_on_or_is_refused_in_one_line(tmp_path: Path, tried) -> None:
    whole = batch_journal(tmp_path)
    try_all(tmp_path / "out.jsonl.part", whole, read_batch_journal, tried)


@pytest.mark.parametrize("file", ["journal.json", "requests.parquet", "events.parquet", "arguments.parquet"])
def test_a_language_models_journal_is_checked_or_refused_in_one_line(file: str, tmp_path: Path, tried) -> None:
    player = Player(tmp_path / "kept", seed=7)
    for _ in range(60):
        player.advance()
    player.end()
    path = tmp_path / "kept" / file
    try_all(path, path.read_bytes(), lambda _: check_language_journal(load_language_journal(path.parent)), tried)
