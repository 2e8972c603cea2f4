"""A checker that cannot fail checks nothing: every promise is broken here once."""

from pathlib import Path

import msgspec
import polars as pl
import pytest

from loadslice.policy import events
from loadslice.sim import journal as sim_journal
from loadslice.sim.check import check
from loadslice.sim.convert import convert
from loadslice.sim.faults_test import TIMES, plan, run
from loadslice.spec import journal
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Clients, Fault
from loadslice.spec.files import encode_json, write_bytes
from loadslice.spec.pipeline import Failover

CLIENTS = Clients(timeout_ms=60, attempts=2, disconnect_share=0.2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pipeline = plan(failover=Failover(to="cpu"), timeout_ms=40)
    finished = run(pipeline, [Fault(at_s=1, for_s=2, engine="npu", kind="slow", factor=5)], CLIENTS, requests=200)
    sim_journal.write(finished, tmp_path, msgspec.yaml.encode(pipeline).decode())
    write_bytes(tmp_path / "latency.json", encode_json(TIMES))
    return tmp_path


def broken(folder: Path) -> list[str]:
    return [finding.promise for finding in check(journal.load(folder), folder) if not finding.held]


def rewrite(folder: Path, table: str, change: pl.Expr) -> None:
    path = folder / f"{table}.parquet"
    pl.read_parquet(path).with_columns(change).write_parquet(path)


def test_a_simulated_journal_keeps_every_promise(folder: Path) -> None:
    assert broken(folder) == []


def test_a_lost_request_is_seen(folder: Path) -> None:
    path = folder / "requests.parquet"
    pl.read_parquet(path).slice(1).write_parquet(path)
    assert broken(folder) == ["submitted = sum of outcomes"]


def test_a_repeated_request_is_seen(folder: Path) -> None:
    rewrite(folder, "requests", pl.when(pl.col("tag") == 5).then(6).otherwise("tag").cast(pl.Int64).alias("tag"))
    assert "exactly one outcome per request" in broken(folder)


def test_a_passage_out_of_order_is_seen(folder: Path) -> None:
    rewrite(folder, "stages", (pl.col("dispatched_ns") - 10**9).alias("dispatched_ns"))
    assert broken(folder) == ["arrive <= enqueue <= dispatch <= start <= done"]


def test_a_changed_event_is_seen(folder: Path) -> None:
    first = pl.int_range(pl.len()) == 0
    rewrite(folder, "events", pl.when(first).then(12_345).otherwise("a0").cast(pl.Int64).alias("a0"))
    assert "the core takes the same decisions again" in broken(folder)


@pytest.mark.parametrize("value", [1_000_000, -1, 2**62])
@pytest.mark.parametrize("column", ["kind", "now_ns", "a1", "a4"])
def test_an_event_that_cannot_be_is_named_and_never_fed_to_the_core(folder: Path, column: str, value: int) -> None:
    row = pl.int_range(pl.len()) == 3
    rewrite(folder, "events", pl.when(row).then(value).otherwise(column).cast(pl.Int64).alias(column))
    findings = [one for one in check(journal.load(folder), folder) if not one.held]
    assert any("row 3" in one.figure or "decisions" in one.figure or "steps back" in one.figure for one in findings)


def test_events_out_of_order_break_the_clock_and_nothing_else_happens(folder: Path) -> None:
    path = folder / "events.parquet"
    pl.read_parquet(path).reverse().write_parquet(path)
    assert "the clock never goes back" in broken(folder)


def test_a_gap_in_the_events_is_one_readable_line(folder: Path) -> None:
    rewrite(folder, "events", pl.lit(None, pl.Int64).alias("a1"))
    with pytest.raises(InputError, match="whole numbers"):
        broken(folder)


def test_a_journal_of_a_killed_run_says_what_to_do_and_is_checked_as_far_as_it_goes(folder: Path) -> None:
    head = journal.load(folder).head
    killed = msgspec.structs.replace(head, clean=False, requests=0, outcomes={}, span_ns=0, effects_sha256=None)
    write_bytes(folder / "journal.json", encode_json(killed))
    findings = check(journal.load(folder), folder)
    assert [one.promise for one in findings if not one.held] == ["the run was closed in order"]
    assert "Start the server again with another --journal" in findings[0].figure
    assert {"every invariant of the state holds", "exactly one outcome per request"} <= {
        one.promise for one in findings
    }


def test_another_schema_version_is_named_with_the_way_to_convert_it(folder: Path) -> None:
    head = journal.load(folder).head
    write_bytes(folder / "journal.json", encode_json(msgspec.structs.replace(head, schema="journal/9")))
    with pytest.raises(InputError, match=f"'journal/9' is not '{journal.SCHEMA_VERSION}'.*--convert NEW_FOLDER"):
        journal.load(folder)
    with pytest.raises(InputError, match="no way from 'journal/9'"):
        convert(folder, folder / "new")


@pytest.fixture
def journal_1(folder: Path) -> Path:
    """A journal as it was before arrivals had a tenant and a key, and the schema in which they do."""
    written = pl.read_parquet(folder / "events.parquet")
    written.select(["kind", "now_ns", *(f"a{number}" for number in range(9))]).write_parquet(folder / "events.parquet")
    head = journal.load_head(folder)
    write_bytes(folder / "journal.json", encode_json(msgspec.structs.replace(head, schema="journal/1")))
    return folder


def test_a_journal_1_is_converted_and_keeps_every_promise(journal_1: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    convert(journal_1, new)
    assert broken(new) == []
    arrivals = journal.load(new).events.filter(pl.col("kind") == events.ARRIVAL)
    assert arrivals["a9"].unique().to_list() == [0]
    assert arrivals["a10"].unique().to_list() == [-1]
    assert (new / "latency.json").read_bytes() == (journal_1 / "latency.json").read_bytes()
    with pytest.raises(InputError, match="is not empty"):
        convert(journal_1, new)
    with pytest.raises(InputError, match="is journal/2 already"):
        convert(new, tmp_path / "newer")
