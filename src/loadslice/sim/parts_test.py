"""A trace in parts is simulated as if it had come whole."""

from collections.abc import Iterator

import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.policy import invariants
from loadslice.sim import addition, memory, pieces, simulate, tally
from loadslice.sim import record as r
from loadslice.spec.errors import InputError
from loadslice.spec.faults import Fault
from loadslice.spec.latency import Entry, InputWork, LatencyTable, Milliseconds, StageWork
from loadslice.spec.pipeline import CLASSES, Batch, Engine, Failover, Pipeline, Queue, Stage, check
from loadslice.spec.simulation import Simulation

REQUESTS = 600


def plan() -> Pipeline:
    """Two stages, so that requests that a part leaves inside are asked about again; deadlines, batches, failover."""
    return check(
        Pipeline(
            version=1,
            pipeline="two",
            engines={
                "npu": Engine(backend="twin", queue=Queue(limit=12, overflow_at=3), active_w=5, idle_w=1),
                "cpu": Engine(backend="twin", max_inflight=2, queue=Queue(limit=30), active_w=40, idle_w=10),
            },
            stages=[
                Stage(
                    name="s",
                    variant="s",
                    engines=["npu", "cpu"],
                    batch={"npu": Batch(size=4, window_ms=3)},
                    failover=Failover(to="cpu", share=0.3),
                ),
                Stage(name="t", variant="t", engines=["cpu"]),
            ],
            max_requests=64,
            deadline_ms=400,
        ),
        "test",
    )


def profile(*, inputs: bool = False) -> LatencyTable:
    times = [("s", "npu", 6.0), ("s", "cpu", 4.0), ("t", "cpu", 3.0)]
    entries = [
        Entry(
            variant=variant,
            engine=engine,
            batch=1,
            latency_ms=Milliseconds(mean=mean, family="lognormal", cv=0.4),
            basis="modelled",
        )
        for variant, engine, mean in times
    ]
    works = [
        InputWork(input=name, stages=[StageWork(stage="s", items=1), StageWork(stage="t", items=items)])
        for name, items in (("short", 1), ("long", 3), ("longest", 4))
    ]
    overhead = Milliseconds(p50=1.0, p99=4.0)
    return LatencyTable(entries=entries, inputs=works if inputs else [], overhead_ms=overhead)


def trace() -> pl.DataFrame:
    draws = np.random.default_rng(5)
    return pl.DataFrame(
        {
            "arrival_s": 3.0 + np.cumsum(draws.gamma(0.4, 0.004 / 0.4, REQUESTS)),
            "items": draws.choice([1, 2, 3, 100_000], REQUESTS, p=[0.5, 0.3, 0.19, 0.01]),
            "class": draws.choice(list(CLASSES), REQUESTS),
        }
    )


HANG = Fault(at_s=0.3, for_s=0.9, engine="npu", kind="hang")


def cut(frame: pl.DataFrame, rows: int) -> Iterator[pl.DataFrame]:
    yield from frame.iter_slices(rows)


def without_stages(result: Simulation) -> Simulation:
    """Per-stage times are kept for whole traces only."""
    return msgspec.structs.replace(result, stages={})


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize(("rows", "piece_rows"), [(1, 9), (7, 2), (256, 100), (REQUESTS, 3), (REQUESTS, REQUESTS)])
def test_parts_of_any_size_give_the_result_of_the_whole_digest_included(
    rows: int, piece_rows: int, inputs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", piece_rows)
    frame = trace().drop("items") if inputs else trace()
    prepared = simulate.prepare(frame, plan(), profile(inputs=inputs), seed=3, faults=[HANG])
    whole = simulate.run(prepared, seed=3)
    rate_per_s = simulate.rate_per_s(REQUESTS, float(frame["arrival_s"][-1] - frame["arrival_s"][0]))
    parts = simulate.run_parts(
        cut(frame, rows), plan(), profile(inputs=inputs), rate_per_s=rate_per_s, seed=3, faults=[HANG]
    )
    assert simulate.summarise(parts) == without_stages(simulate.summarise(whole))
    assert len(set(whole.record.outcome.tolist())) >= 3
    invariants.check_idle(parts.state)


def test_of_each_part_it_is_told_whether_another_follows() -> None:
    assert list(pieces.and_whether_more(iter([]))) == []
    assert list(pieces.and_whether_more(iter([7]))) == [(7, False)]
    assert list(pieces.and_whether_more(iter([7, 8, 9]))) == [(7, True), (8, True), (9, False)]


def test_an_empty_trace_in_parts_is_one_readable_line() -> None:
    with pytest.raises(InputError, match="the trace is empty"):
        simulate.run_parts(iter([]), plan(), profile(), rate_per_s=1.0)


def test_times_that_fall_from_one_part_to_the_next_are_named_with_their_row() -> None:
    parts = [trace()[:10], trace()[5:]]
    with pytest.raises(InputError, match="trace row 11: arrival_s falls"):
        simulate.run_parts(iter(parts), plan(), profile(), rate_per_s=1.0)


def test_the_histogram_is_as_near_to_the_true_percentiles_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "EXACT_MAX", 50)
    run = simulate.run(simulate.prepare(trace(), plan(), profile()))
    times_ms = simulate.latency_ms(run)
    found = simulate.summarise(run)
    assert found.latency_error == tally.ERROR_MAX
    assert found.latency_ms.mean == pytest.approx(times_ms.mean(), rel=1e-12)
    for share, percentile in ((50, found.latency_ms.p50), (95, found.latency_ms.p95), (99, found.latency_ms.p99)):
        assert percentile == pytest.approx(np.percentile(times_ms, share, method="lower"), rel=tally.ERROR_MAX)


def read_back(words: list[int]) -> Iterator[list[int]]:
    """Tag, start, outcome, reason, end and hint of each attempt that `addition.say` has put into words."""
    end_ns = 0
    while words:
        what, *times = words[: addition.LONG_WORDS if words[0] & 1 else addition.SHORT_WORDS]
        words = words[1 + len(times) :]
        if what & 1:
            end_ns, start_ns, hint_ns = times
        else:
            end_ns, hint_ns = end_ns + (times[0] >> 32), 0
            start_ns = end_ns - (times[0] & 0xFFFFFFFF)
        yield [what >> 11, start_ns, what >> 1 & 7, what >> 4 & 127, end_ns, hint_ns]


def test_all_that_is_known_of_an_attempts_end_is_hashed() -> None:
    last = pl.DataFrame({"arrival_s": [900.0], "items": [9]})  # nothing ends for longer than 31 bits hold
    prepared = simulate.prepare(pl.concat([trace(), last], how="diagonal_relaxed"), plan(), profile(), faults=[HANG])
    run = simulate.run(prepared)
    sums = addition.no_sums()
    addition.add_up(0, len(run.record.ended), 0, run.traffic, run.record, sums)
    words = sums.said[: sums.totals[addition.S_WORDS]].tolist()
    known = run.record.attempts[run.record.ended, : r.A_HINT_NS + 1].tolist()
    assert list(read_back(words)) == known
    assert addition.SHORT_WORDS * len(known) < len(words) < addition.LONG_WORDS * len(known)
    assert max(end for *_, end, _ in known) > 2**31 + sorted(end for *_, end, _ in known)[-2]


def test_every_cell_of_the_histogram_is_as_narrow_as_it_says() -> None:
    for taken_ns in (1, 2, 2047, 2049, 999_983, 123_456_789_012, 2**61):
        cells = np.zeros(addition.CELLS, np.int64)
        addition.count_cells(np.array([taken_ns]), cells)
        (cell,) = np.flatnonzero(cells).tolist()
        low_ns, high_ns = addition.lower_end_ns(cell), addition.lower_end_ns(cell + 1)
        assert low_ns <= taken_ns < high_ns
        assert high_ns - low_ns <= 1.0 or (low_ns + high_ns) / 2 == pytest.approx(taken_ns, rel=tally.ERROR_MAX)


def test_a_run_that_memory_cannot_hold_is_refused_with_the_size_that_fits() -> None:
    each = memory.bytes_per_request(stages=2, attempts=3, journal=False)
    memory.check_fits(1000, 1000 * each, "--clients", stages=2, attempts=3, journal=False)
    with pytest.raises(InputError, match="999 requests would fit"):
        memory.check_fits(1000, 1000 * each - 1, "--clients", stages=2, attempts=3, journal=False)
