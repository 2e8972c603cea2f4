"""`loadslice simulate` and `loadslice check` as a user meets them."""

import json
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.app import cli
from loadslice.app.commands import simulate as command
from loadslice.sim.parts_test import plan, profile, trace
from loadslice.spec.files import encode_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pipeline = plan()
    engines = {name: msgspec.structs.replace(engine, cost_per_hour=2.0) for name, engine in pipeline.engines.items()}
    priced = msgspec.structs.replace(pipeline, engines=engines, currency="EUR")
    (tmp_path / "pipeline.yaml").write_bytes(msgspec.yaml.encode(priced))
    (tmp_path / "latency.json").write_bytes(encode_json(profile()))
    trace().write_parquet(tmp_path / "trace.parquet")
    return tmp_path


def simulate(folder: Path, *options: str) -> int:
    plan_options = ["--pipeline", str(folder / "pipeline.yaml"), "--profile", str(folder / "latency.json")]
    return cli.run(["simulate", str(folder / "trace.parquet"), *plan_options, *options])


def test_a_trace_read_in_parts_and_one_read_whole_print_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert simulate(folder, "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(command, "WHOLE_ROWS_MAX", 100)
    assert simulate(folder, "--json") == 0
    parts = json.loads(capsys.readouterr().out)
    timed = {"requests_per_wall_s", "requests_per_cpu_s", "compile_s", "stages"}
    assert {key: value for key, value in parts.items() if key not in timed} == {
        key: value for key, value in whole.items() if key not in timed
    }
    assert whole["cost"]["total"] == pytest.approx(4.0 * whole["span_s"] / 3600)
    assert whole["energy_j"] > 0
    assert sum(count for name, count in whole["decisions"].items() if name.startswith("ended_")) > 0


def test_a_person_reads_money_and_decisions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder) == 0
    text = capsys.readouterr().out
    assert " EUR, " in text
    assert "per 1,000 completed" in text
    assert "overflow_sent" in text


def test_clients_of_a_trace_that_memory_cannot_hold_are_refused_with_the_size_that_fits(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "clients.yaml").write_text("{timeout_ms: 100, attempts: 3}", encoding="utf-8")
    monkeypatch.setattr(command, "WHOLE_ROWS_MAX", 100)
    assert simulate(folder, "--clients", str(folder / "clients.yaml")) == 0
    monkeypatch.setattr(command, "available_bytes", lambda: 100_000)
    capsys.readouterr()
    assert simulate(folder, "--clients", str(folder / "clients.yaml"), "--out", str(folder / "out")) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert "requests would fit" in said
    assert "--clients" in said
    assert not list((folder / "out").glob("*"))


@pytest.mark.parametrize(
    ("times", "says"),
    [([], "no requests"), ([0.0, float("nan")], "not finite (row 2)"), ([1.0, 0.5], "earlier than the row before")],
)
def test_a_trace_that_is_none_is_one_line_and_exit_2(
    folder: Path, capsys: pytest.CaptureFixture[str], times: list[float], says: str
) -> None:
    pl.DataFrame({"arrival_s": np.array(times, np.float64)}).write_parquet(folder / "trace.parquet")
    assert simulate(folder) == 2
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert says in said


def test_a_simulated_journal_keeps_sources_and_inputs_of_the_trace(folder: Path, tmp_path: Path) -> None:
    rows = trace()
    sources = [f"client {row % 3}" for row in range(rows.height)]
    rows.with_columns(source=pl.Series(sources)).write_parquet(folder / "trace.parquet")
    assert simulate(folder, "--journal", str(tmp_path / "j")) == 0
    kept = pl.read_parquet(tmp_path / "j" / "requests.parquet").sort("tag")
    assert kept["source"].to_list() == sources
    assert cli.run(["check", str(tmp_path / "j")]) == 0


def test_a_p99_of_few_requests_is_said_to_be_little_more_than_the_slowest(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(folder, "--json") == 0
    assert not any("p99 of" in line for line in json.loads(capsys.readouterr().out)["warnings"])
    trace().head(50).write_parquet(folder / "trace.parquet")
    assert simulate(folder, "--json") == 0
    assert any("p99 of" in line for line in json.loads(capsys.readouterr().out)["warnings"])
