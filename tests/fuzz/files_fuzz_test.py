"""Every reader of files against files that are not quite right: they are read, or refused in one line."""

import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.app import batch_rows
from loadslice.serve import rollout_record
from loadslice.serve.access import Usage
from loadslice.serve.golden import Golden
from loadslice.serve.state_file import StateFile
from loadslice.sim import check
from loadslice.spec import (
    access,
    budget,
    coverage,
    device,
    evaluation,
    faults,
    journal,
    language,
    latency,
    offers,
    pipeline,
    prices,
    rollout,
    watch,
)
from loadslice.spec.errors import InputError
from loadslice.workload import importing, trace

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES, GRAPH = REPOSITORY / "examples", REPOSITORY / "src/loadslice/graph"

PROFILE = settings.get_profile("fuzz")

PIPELINE = b"""version: 1
pipeline: detect
max_requests: 256
deadline_ms: 5000
classes: {sheddable: {deadline_ms: 60000}}
engines:
  host: {backend: python, queue: {limit: 128}}
  ort: {backend: onnxruntime, threads: 2, queue: {limit: 64, overflow_at: 8, wait_limit_ms: 100}}
stages:
  - {name: prepare, python: "stages:prepare", engine: host}
  - name: detect
    variant: det
    engines: [ort, host]
    prefer: rules
    rules: [{when: {items: '>8', class: sheddable}, to: host}]
    buckets: [[3, 320, 320], [3, 640, 640]]
    batch: {ort: {size: 4, window_ms: 4}}
    failover: {to: host, share: 0.3}
    breaker: {failure_rate: 0.5}
"""
BUDGET = b"slo: {p95_ms: 400, error_rate: 0.01}\npower: {per_box_w: 400}\nmoney: {currency: EUR}\n"
LATENCY = json.dumps(
    {
        "entries": [
            {"variant": "det", "engine": "npu0", "batch": 1, "basis": "modelled",
             "latency_ms": {"mean": 12.0, "family": "lognormal", "cv": 0.2}},
            {"variant": "det", "engine": "npu0", "batch": 4, "basis": "modelled",
             "latency_ms": {"p50": 30.0, "p90": 33.0, "p99": 41.0}},
        ]
    }
).encode()  # fmt: skip
TOKENS = b"version: 1\ntokens: []\n"
CLIENTS = b"{timeout_ms: 1000, attempts: 3, backoff: {base_ms: 50, factor: 2, jitter: true}}"
JSONL = b'{"arrival_s": 0.0, "items": 3, "class": "critical"}\n{"arrival_s": 0.2, "items": 1, "latency_ms": 61.5}\n'
CSV = b"arrival_s,items,source\n0.0,1,api\n0.5,2,web\n"
NGINX = b'127.0.0.1 - - [10/Oct/2025:13:55:36 +0000] "GET /x HTTP/1.1" 200 23 "-" "curl" 0.012\n' * 3
ENVOY = (
    b'[2025-10-10T13:55:36.123Z] "POST /v2/models/x/infer HTTP/1.1" 200 - 154 1180 7 6 "-" "curl" "id-1" "host" '
    b'"10.0.0.1:8000"\n' * 3
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.03,3180,8\n"
BURSTGPT = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    b"45,ChatGPT,1087,230,1317,Conversation log\n"
)
MOONCAKE = (
    b'{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 3000, "input_length": 720, "output_length": 5, "hash_ids": [0, 7]}\n'
)
OTLP = json.dumps(
    {"resourceSpans": [{"scopeSpans": [{"spans": [
        {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "infer", "kind": 2,
         "startTimeUnixNano": "1760104536000000000", "endTimeUnixNano": "1760104536012000000"},
        {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203332", "name": "stage", "kind": 1,
         "parentSpanId": "b7ad6b7169203331",
         "startTimeUnixNano": "1760104536001000000", "endTimeUnixNano": "1760104536009000000"},
    ]}]}]}
).encode() + b"\n"  # fmt: skip
BATCH = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}\n{"file": "rows.jsonl"}\n'


def parquet() -> bytes:
    held = io.BytesIO()
    pl.DataFrame({"arrival_s": [0.0, 0.5, 1.0], "items": [1, 2, 3], "source": ["a", "b", None]}).write_parquet(held)
    return held.getvalue()


def arrays() -> bytes:
    held = io.BytesIO()
    np.savez(held, x=np.arange(6, dtype=np.float32).reshape(3, 2))
    return held.getvalue()


def golden_answers() -> bytes:
    head = {"tolerance": 0.001, "samples": [["one", ""], ["two", "text/plain"]], "routes": 1}
    held = io.BytesIO()
    np.savez_compressed(
        held,
        **{
            "0|in|x": np.ones((1, 4), np.float32),
            "0|out|0|y": np.ones((1, 4), np.float32),
            "1|body": np.frombuffer(b"1 2 3 4", np.uint8),
            "1|out|0|y": np.array([["text"]]),
            "head.json": np.frombuffer(json.dumps(head).encode(), np.uint8),
        },
    )
    return held.getvalue()


def remembered() -> bytes:
    """A state file with a rollout, its history, and what a token has used."""
    with tempfile.TemporaryDirectory() as folder:
        file = StateFile(Path(folder) / "state.sqlite")
        record = rollout_record.Record(state="running", step=1, about="x")
        rollout_record.write(file, record, "2026-01-01T00:00:00Z", "started", "by order").result()
        file.write_usage([Usage("0123456789ab", 1, 2, 1, 3)]).result()
        file.close()
        return (Path(folder) / "state.sqlite").read_bytes()


def read_state(path: Path) -> None:
    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()  # of the file that was here before
    file = StateFile(path)
    try:
        rollout_record.read(file)
        file.history()
        file.usage()
    finally:
        file.close()


ROLLOUT = b"dwell_s: [604800, 86400]\nerrors: {excess_max: 0.01}\nmetrics: {conversion: {better: higher}}\n"
WATCH = b"signals:\n  - {name: lines, output: confidence, take: rows}\n  - {name: c, output: text, take: characters}\n"

Reader = Callable[[Path], object]

READERS: dict[str, tuple[str, bytes, Reader]] = {
    "pipeline": ("p.yaml", PIPELINE, pipeline.load),
    "budget": ("b.yaml", BUDGET, budget.load),
    "latency": ("l.json", LATENCY, latency.load),
    "tokens": ("t.yaml", TOKENS, access.load),
    "clients": ("c.yaml", CLIENTS, faults.load_clients),
    "trace jsonl": ("t.jsonl", JSONL, importing.load),
    "trace csv": ("t.csv", CSV, importing.load),
    "trace parquet": ("t.parquet", parquet(), importing.load),
    "trace as simulate reads it": ("t.parquet", parquet(), trace.read),
    "rollout plan": ("r.yaml", ROLLOUT, rollout.load),
    "watch plan": ("w.yaml", WATCH, watch.load_plan),
    "evaluation": ("e.yaml", (EXAMPLES / "evaluation/evaluation.yaml").read_bytes(), evaluation.load),
    "offers": ("o.yaml", (EXAMPLES / "ocr/offers.yaml").read_bytes(), offers.load),
    "prices": ("p.yaml", (EXAMPLES / "ocr/prices.yaml").read_bytes(), prices.load),
    "language": ("l.yaml", (EXAMPLES / "chat/chat.yaml").read_bytes(), language.load_language),
    "device": ("d.yaml", (GRAPH / "devices/hailo-8.yaml").read_bytes(), device.load_device),
    "operators": ("o.yaml", (GRAPH / "ops/ethos-u55.yaml").read_bytes(), coverage.load_table),
    "golden answers": ("golden.npz", golden_answers(), lambda path: Golden(path).samples()),
    "state": ("state.sqlite", remembered(), read_state),
    "trace envoy": ("t.log", ENVOY, importing.load),
    "trace azure": ("t.csv", AZURE, importing.load),
    "trace burstgpt": ("t.csv", BURSTGPT, importing.load),
    "trace mooncake": ("t.jsonl", MOONCAKE, importing.load),
    "trace otlp": ("t.jsonl", OTLP, importing.load),
    "trace nginx": ("t.log", NGINX, importing.load),
    "batch jsonl": ("rows.jsonl", BATCH, lambda path: list(batch_rows.look(path))),
    "batch npz": ("rows.npz", arrays(), lambda path: list(batch_rows.look(path))),
}


def mangled(whole: bytes) -> st.SearchStrategy[bytes]:
    words = [
        b"\n",
        b"\0",
        b"\xff\xfe",
        b"nan",
        b"-1",
        b"1e999",
        b"99999999999999999999",
        b"[",
        b"{",
        b"&a",
        b"*a",
        b"~",
    ]

    @st.composite
    def change(draw: st.DrawFn) -> bytes:
        data = bytearray(whole)
        for _ in range(draw(st.integers(1, 5))):
            at = draw(st.integers(0, len(data)))
            how = draw(st.sampled_from(("flip", "cut", "insert", "repeat", "truncate")))
            if how == "flip" and at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            elif how == "cut":
                del data[at : at + draw(st.integers(1, 30))]
            elif how == "insert":
                data[at:at] = draw(st.sampled_from(words) | st.binary(min_size=1, max_size=6))
            elif how == "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 60))]
            else:
                del data[at:]
        return bytes(data)

    return change()


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 2000


def try_all(path: Path, whole: bytes, read: Reader, tried: Any) -> None:
    """Read a file as it is, which has to go well, and then as it should not be."""
    path.write_bytes(whole)
    read(path)

    @PROFILE
    @given(mangled(whole))
    def run(data: bytes) -> None:
        tried()
        path.write_bytes(data)
        try:
            read(path)
        except InputError as error:
            one_line(error)

    run()


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_read_or_refused_in_one_line(name: str, tmp_path: Path, tried) -> None:
    file, whole, read = READERS[name]
    try_all(tmp_path / file, whole, read, tried)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of a simulated run."""
    from loadslice.sim import journal as sim_journal
    from loadslice.sim import parts_test as parts
    from loadslice.sim import simulate

    folder = tmp_path_factory.mktemp("journal")
    prepared = simulate.prepare(parts.trace().head(40), parts.plan(), parts.profile(), seed=1)
    run = simulate.run(prepared, seed=1, journal=True)
    sim_journal.write(run, folder, msgspec.yaml.encode(parts.plan()).decode())
    (folder / "latency.json").write_bytes(msgspec.json.encode(parts.profile()))
    return folder


@pytest.mark.parametrize("file", ["journal.json", "requests.parquet", "stages.parquet", "events.parquet"])
def test_a_journal_is_checked_or_refused_in_one_line(file: str, recorded: Path, tried) -> None:
    whole = (recorded / file).read_bytes()

    @PROFILE
    @given(mangled(whole))
    def run(data: bytes) -> None:
        tried()
        (recorded / file).write_bytes(data)
        try:
            check.check(journal.load(recorded), recorded)
        except InputError as error:
            one_line(error)

    try:
        run()
    finally:
        (recorded / file).write_bytes(whole)
    assert journal.load(recorded).requests.height == 40
    assert all(finding.held for finding in check.check(journal.load(recorded), recorded))
