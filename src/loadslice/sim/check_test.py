"""A checker that cannot fail checks nothing: every promise is broken here once."""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import Int64s, fresh, lower, rule_sources
from loadslice.policy.watch import follow
from loadslice.sim import journal as sim_journal
from loadslice.sim.check import LOOKED_ROWS, LOOKS, check, look_interval
from loadslice.sim.convert import convert
from loadslice.sim.faults_test import TIMES, plan, run
from loadslice.spec import journal
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Clients, Fault
from loadslice.spec.files import encode_json, write_bytes
from loadslice.spec.outcome import REASONS, Outcome
from loadslice.spec.pipeline import Batch, Engine, Failover, Pipeline, Stage
from loadslice.spec.pipeline import check as check_pipeline

CLIENTS = Clients(timeout_ms=60, attempts=2, disconnect_share=0.2)
PIPELINE = msgspec.structs.replace(plan(failover=Failover(to="cpu"), timeout_ms=40), max_requests=200)
TABLES = lower(PIPELINE, TIMES, rule_sources(PIPELINE))
REQUESTS = "the table of requests says what was decided"
PASSAGES = "the table of passages says what was decided"
HEAD = "the head says what was decided"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    finished = run(PIPELINE, [Fault(at_s=1, for_s=2, engine="npu", kind="slow", factor=5)], CLIENTS, requests=200)
    sim_journal.write(finished, tmp_path, msgspec.yaml.encode(PIPELINE).decode())
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
    assert broken(folder) == ["submitted = sum of outcomes", REQUESTS]


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


def test_a_journal_without_its_events_says_so(folder: Path) -> None:
    path = folder / "events.parquet"
    pl.read_parquet(path).clear().write_parquet(path)
    found = {one.promise: one for one in check(journal.load(folder), folder)}
    lacking = found["the core takes the same decisions again"]
    assert not lacking.held
    assert lacking.figure.startswith("no event is here, ")
    for name in ("requests", "stages"):
        pl.read_parquet(folder / f"{name}.parquet").clear().write_parquet(folder / f"{name}.parquet")
    assert "the core takes the same decisions again" not in broken(folder)


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
    assert "Stop the server (SIGTERM) and check again" in findings[0].figure
    assert "start it with another --journal folder" in findings[0].figure
    assert {"every invariant of the state holds", "exactly one outcome per request"} <= {
        one.promise for one in findings
    }


def figure(folder: Path, promise: str) -> str:
    return next(one.figure for one in check(journal.load(folder), folder) if one.promise == promise)


def forge(folder: Path, table: str, column: str, value: pl.Expr, row: int = 3) -> None:
    here = pl.int_range(pl.len()) == row
    rewrite(folder, table, pl.when(here).then(value).otherwise(column).cast(pl.Int64, strict=False).alias(column))


def forge_text(folder: Path, table: str, column: str, value: str, row: int = 3) -> None:
    here = pl.int_range(pl.len()) == row
    rewrite(folder, table, pl.when(here).then(pl.lit(value)).otherwise(column).alias(column))


@pytest.mark.parametrize("column", ["arrival_ns", "hint_ns", "end_ns"])
def test_a_forged_number_of_a_request_is_named(folder: Path, column: str) -> None:
    forge(folder, "requests", column, pl.col(column) - 1)
    assert broken(folder) == [REQUESTS]
    assert ": 1 of " in figure(folder, REQUESTS)
    assert f"request 3: {column} is " in figure(folder, REQUESTS)


@pytest.mark.parametrize(("column", "value"), [("outcome", "failed"), ("reason", "queue_full"), ("class", "sheddable")])
def test_a_forged_word_of_a_request_is_named(folder: Path, column: str, value: str) -> None:
    forge_text(folder, "requests", column, value)
    assert broken(folder) == [REQUESTS]
    assert f"request 3: {column} is {value}, decided " in figure(folder, REQUESTS)


def test_a_request_that_never_arrived_and_one_without_a_row_are_told_apart(folder: Path) -> None:
    forge(folder, "requests", "tag", pl.lit(12_345))
    assert "2 of " in figure(folder, REQUESTS)
    assert "first: request 3 has no row" in figure(folder, REQUESTS)


@pytest.mark.parametrize(("column", "value"), [("engine", "cpu"), ("placed", "rule"), ("stage", "t")])
def test_a_forged_word_of_a_passage_is_named(folder: Path, column: str, value: str) -> None:
    assert journal.load(folder).stages[column][3] != value
    forge_text(folder, "stages", column, value)
    assert broken(folder) == [PASSAGES]
    assert "first: request 3 at stage 's'" in figure(folder, PASSAGES)


@pytest.mark.parametrize("column", ["enqueued_ns", "done_ns"])
def test_a_forged_time_of_a_passage_is_named(folder: Path, column: str) -> None:
    forge(folder, "stages", column, pl.col(column) + 1)
    assert PASSAGES in broken(folder)
    assert "first: request 3 at stage 's'" in figure(folder, PASSAGES)


def test_a_passage_that_is_missing_or_there_twice_is_named(folder: Path) -> None:
    path = folder / "stages.parquet"
    kept = pl.read_parquet(path)
    pl.concat([kept[:3], kept[4:]]).write_parquet(path)
    assert broken(folder) == [PASSAGES]
    assert "1 decided without a row" in figure(folder, PASSAGES)
    pl.concat([kept, kept[5:6]]).write_parquet(path)
    assert broken(folder) == [PASSAGES]
    assert "2 repeated" in figure(folder, PASSAGES)


def test_a_forged_head_is_named(folder: Path) -> None:
    head = journal.load(folder).head
    moved = head.outcomes | {"completed": head.outcomes["completed"] - 1, "failed": head.outcomes["failed"] + 1}
    for forged in ({"span_ns": head.span_ns + 1}, {"span_ns": 5}, {"pipeline": "other"}, {"outcomes": moved}):
        write_bytes(folder / "journal.json", encode_json(msgspec.structs.replace(head, **forged)))
        assert broken(folder) == [HEAD]


def decided(log: Int64s) -> Int64s:
    """All effects, each with the time of its event."""
    state = fresh(TABLES, PIPELINE.max_requests)
    effects = np.zeros((len(log) * 4, c.EFFECT_COLUMNS + 1), np.int64)
    count = events.decide(log, TABLES, state, np.zeros((state.members.shape[1], 2), np.int64), effects)
    assert count > 0
    return effects[:count]


@pytest.fixture
def live(folder: Path) -> Path:
    """As a server writes it: a row for every placement, no hint where there is none, and the time of closing."""
    kept = journal.load(folder)
    effects = decided(np.ascontiguousarray(kept.events.to_numpy()))
    rows = effects[effects[:, c.F_KIND] == c.PLACED]
    assert len(rows) > len(np.unique(rows[:, c.F_TAG])), "some are placed again"
    ends = effects[(effects[:, c.F_KIND] == c.OUTCOME) & (effects[:, c.F_A] == Outcome.COMPLETED)]
    end_ns = dict(zip(ends[:, c.F_TAG].tolist(), ends[:, c.EFFECT_COLUMNS].tolist(), strict=True))
    columns = {
        "tag": rows[:, c.F_TAG],
        "stage": ["s"] * len(rows),
        "engine": [list(PIPELINE.engines)[code] for code in rows[:, c.F_B]],
        "placed": [REASONS[code] for code in rows[:, c.F_C]],
        "enqueued_ns": rows[:, c.EFFECT_COLUMNS],
        "done_ns": [end_ns.get(tag) for tag in rows[:, c.F_TAG].tolist()],
    }
    stages = pl.DataFrame({name: columns.get(name, [None] * len(rows)) for name in journal.STAGE_COLUMNS})
    stages.cast(journal.STAGE_COLUMNS).write_parquet(folder / "stages.parquet")  # type: ignore[arg-type]
    rewrite(folder, "requests", pl.when(pl.col("hint_ns") > 0).then("hint_ns").alias("hint_ns"))
    head = msgspec.structs.replace(kept.head, basis="measured", span_ns=kept.head.span_ns + 10**9)
    write_bytes(folder / "journal.json", encode_json(head))
    return folder


def test_a_servers_journal_keeps_every_promise(live: Path) -> None:
    assert broken(live) == []


def test_each_placement_in_a_servers_journal_has_its_row(live: Path) -> None:
    path = live / "stages.parquet"
    kept = pl.read_parquet(path)
    moved = kept.filter(pl.col("tag").is_duplicated())["tag"][0]
    first = kept["tag"].index_of(moved)
    assert first is not None
    pl.concat([kept[:first], kept[first + 1 :]]).write_parquet(path)
    assert broken(live) == [PASSAGES]
    assert f"first: request {moved} at" in figure(live, PASSAGES)


def test_a_killed_servers_tables_are_compared_as_far_as_they_go(live: Path) -> None:
    head = journal.load(live).head
    killed = msgspec.structs.replace(head, clean=False, requests=0, outcomes={}, span_ns=0, effects_sha256=None)
    write_bytes(live / "journal.json", encode_json(killed))
    for table in ("requests", "stages"):
        path = live / f"{table}.parquet"
        pl.read_parquet(path).filter(pl.col("tag") < 150).write_parquet(path)
    path = live / "events.parquet"
    kept = pl.read_parquet(path)
    half = int((kept["kind"] != events.RESULT).arg_true()[300])
    kept[:half].write_parquet(path)
    assert broken(live) == ["the run was closed in order"]
    forge_text(live, "requests", "outcome", "failed")
    forge_text(live, "stages", "engine", "cpu")
    assert broken(live) == ["the run was closed in order", REQUESTS, PASSAGES]


def test_a_result_that_is_missing_is_named_with_its_row(folder: Path) -> None:
    path = folder / "events.parquet"
    kept = pl.read_parquet(path)
    done = int((kept["kind"] == events.BATCH_DONE).arg_true()[0])
    pl.concat([kept[: done + 1], kept[done + 2 :]]).write_parquet(path)
    assert f"event row {done} cannot be" in figure(folder, "every invariant of the state holds")
    log = np.ascontiguousarray(pl.read_parquet(path).to_numpy())
    assert f"event row {done} cannot be" in follow(log, PIPELINE, TABLES, fresh(TABLES, PIPELINE.max_requests))


def test_no_log_is_answered_with_an_exception(folder: Path) -> None:
    log = np.ascontiguousarray(journal.load(folder).events.to_numpy()[:120])
    draws = np.random.default_rng(1)
    answers = []
    for _ in range(60):
        row, column = draws.integers(len(log)), draws.integers(events.EVENT_COLUMNS)
        forged = np.delete(log, row, axis=0) if draws.random() < 0.5 else log.copy()
        forged[row - 1, column] = draws.choice([-1, 0, 1, 7, 10**6, 2**40])
        answers.append(follow(forged, PIPELINE, TABLES, fresh(TABLES, 200), look_every=50))
    answers += [follow(log[3:], PIPELINE, TABLES, fresh(TABLES, 200))]
    assert all(answer == "" or answer.startswith("event row ") for answer in answers)
    assert sum(answer != "" for answer in answers) > 10


def test_what_a_lost_engine_still_gives_back_may_be_more_than_runs_there_now() -> None:
    pipeline = check_pipeline(
        Pipeline(
            version=1,
            pipeline="one",
            engines={"npu": Engine(backend="twin")},
            stages=[Stage(name="s", variant="v", engine="npu", batch={"npu": Batch(size=4, window_ms=50)})],
        ),
        "test",
    )
    tables = lower(pipeline, TIMES, rule_sources(pipeline))
    arrival = (0, c.FOREVER, 1, 0, -1, -1, 0, 1, 0, -1)
    late_ns = 10**9
    rows: list[tuple[int, ...]] = [(events.ARRIVAL, 0, tag, *arrival) for tag in range(4)]
    rows += [(events.ENGINE_DOWN, 1, 0), (events.ENGINE_UP, 2, 0), (events.ARRIVAL, 3, 4, *arrival)]
    rows += [(events.TIMER, late_ns), (events.BATCH_DONE, late_ns + 1, 0, 1)]
    rows += [(events.RESULT, late_ns + 1, 1, 0)] * 4
    log = np.array([(*row, *[0] * (events.EVENT_COLUMNS - len(row))) for row in rows], np.int64)
    state = fresh(tables, pipeline.max_requests)
    assert follow(log, pipeline, tables, state) == ""
    assert (state.batches[0, c.B_BUSY], state.batches[0, c.B_COUNT]) == (1, 1)


def test_a_column_of_another_type_is_one_readable_line(folder: Path) -> None:
    for table, column, kind in (("requests", "tag", "String"), ("stages", "tag", "String"), ("events", "a3", "String")):
        path = folder / f"{table}.parquet"
        kept = pl.read_parquet(path)
        kept.with_columns(pl.col(column).cast(pl.String)).write_parquet(path)
        with pytest.raises(InputError, match=f"{table}.parquet: column '{column}' holds {kind}, not Int64"):
            journal.load(folder)
        kept.write_parquet(path)


@pytest.mark.parametrize("max_requests", [1, 1000, 5000, 100_000])
def test_looks_at_a_big_state_are_fewer(max_requests: int) -> None:
    state = fresh(TABLES, max_requests)
    for count in (0, 1, 400, 10_000, 10**7):
        looks = count / look_interval(count, state)
        assert looks <= LOOKS
        assert looks * max_requests <= max(LOOKED_ROWS, max_requests)


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
