import numpy as np
import pytest

from loadslice.profiles.drift import Timing, speeds, within
from loadslice.profiles.jobs import Key
from loadslice.profiles.sessions import pool
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds

KINDS = 20


def timings(likeness: float, period_s: float, *, seed: int, count: int = 2000) -> list[Timing]:
    """Kinds of work of 2 to 40 ms, one after the other, on a machine whose periods are known."""
    draw = np.random.default_rng(seed)
    common = draw.normal(size=100_000)
    found, now_s = [], 0.0
    for _ in range(count):
        kind = int(draw.integers(KINDS))
        score = np.sqrt(likeness) * common[int(now_s / period_s)] + np.sqrt(1 - likeness) * draw.normal()
        took_s = 0.002 * (kind + 1) * np.exp(0.1 * score)
        found.append(Timing(Key("v", "e", kind, None), round(now_s * 1e9), round(took_s * 1e9)))
        now_s += took_s
    return found


@pytest.mark.parametrize(("likeness", "period_s"), [(0.3, 1.0), (0.6, 1.0), (0.6, 2.0)])
def test_periods_that_were_put_in_are_found(likeness: float, period_s: float) -> None:
    found = [within(timings(likeness, period_s, seed=seed)) for seed in range(8)]
    known = [one for one in found if one is not None]
    assert len(known) == len(found)
    # Ranks within one recording lose what the whole of it has in common: a period in so many of its length.
    assert np.mean([one.likeness for one in known]) == pytest.approx(likeness, abs=0.1)
    assert np.mean([one.period_ms for one in known]) == pytest.approx(1000 * period_s, rel=0.35)


def test_a_machine_without_periods_has_none() -> None:
    found = [within(timings(0.0, 1.0, seed=seed)) for seed in range(20)]
    assert sum(one is not None for one in found) <= 2


def test_too_few_times_say_nothing() -> None:
    assert within(timings(0.6, 1.0, seed=0, count=60)) is None


def table(factor: float, drift: Drift | None = None) -> LatencyTable:
    entries = [
        Entry(
            variant="v",
            engine="e",
            batch=rows,
            latency_ms=Milliseconds(p50=10.0 * rows * factor, samples=[9.0 * rows * factor, 11.0 * rows * factor]),
            n=2,
            basis="measured",
        )
        for rows in (1, 2, 3)
    ]
    return LatencyTable(entries=entries, drift=drift)


def test_runs_of_a_faster_and_a_slower_machine_are_told_apart_whatever_the_work() -> None:
    longer = speeds([table(1.0), table(1.1), table(0.9)])
    assert longer is not None
    assert np.exp(longer) / np.exp(longer[0]) == pytest.approx([1.0, 1.1, 0.9])


def test_pooled_runs_keep_the_spread_of_one_run_and_say_how_far_they_differ() -> None:
    pooled = pool([table(1.0), table(1.1, Drift(period_ms=300.0, likeness=0.4)), table(1 / 1.1)])
    assert pooled.entries[0].latency_ms.samples == pytest.approx([9.0] * 3 + [11.0] * 3, abs=0.01)
    assert pooled.entries[0].n == 6
    assert pooled.drift is not None
    assert pooled.drift.between_runs == pytest.approx(np.log(1.1), abs=1e-4)
    assert pooled.drift.runs == 3
    assert (pooled.drift.period_ms, pooled.drift.likeness) == (300.0, pytest.approx(0.4 / 3, abs=1e-4))


def test_one_run_is_itself() -> None:
    alone = table(1.0)
    assert pool([alone]) is alone
