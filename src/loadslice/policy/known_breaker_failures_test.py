"""What went wrong in other circuit breakers, each as a claim about this core. Time is a number."""

import msgspec
import numpy as np
import pytest

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.desk_test import MS, TWIN, Desk, one_stage, placements
from loadslice.policy.known_failures_test import (
    BREAKER,
    busy,
    guarded,
    keep_timers,
    leave,
    long_queue,
)
from loadslice.spec.pipeline import Retry


def breaker_state(run: Desk, engine: int = 0) -> int:
    return int(run.state.breakers[0, engine, c.X_STATE])


def open_and_half_open(run: Desk) -> None:
    for _ in range(4):
        run.arrive()
        run.failed(0)
    assert breaker_state(run) == c.OPEN
    run.timer(run.now_ns + 100 * MS)
    assert breaker_state(run) == c.HALF_OPEN


def test_an_error_that_does_not_count_never_keeps_a_breaker_half_open() -> None:
    """An exception that was to be ignored ended a probe without a verdict, and its permit was gone."""
    run = guarded()
    open_and_half_open(run)
    for _ in range(2):
        run.arrive()
        slot = busy(run)[0]
        epoch = int(run.state.batches[slot, c.B_EPOCH])
        desk.on_batch_done(run.now_ns, run.tables, run.state, slot, epoch, np.array([[-1, 0]], np.int64))
        run.effects()
    assert breaker_state(run) == c.CLOSED, "a refused input is the request's fault; the engine has answered"


def test_a_cancelled_probe_never_keeps_a_breaker_half_open() -> None:
    """A probe whose client had left kept its permit, and no other was ever let through."""
    run = guarded()
    open_and_half_open(run)
    for _ in range(10):
        run.arrive()
        leave(run, run.tag - 1)
        run.done(busy(run)[0])
    assert run.state.breakers[0, 0, c.X_PROBES] == 0
    for _ in range(2):
        assert placements(run.arrive())[0][1] == 0
        run.done(busy(run)[0])
    assert breaker_state(run) == c.CLOSED


def test_a_probe_on_a_lost_engine_gives_its_permit_back() -> None:
    """A permit that was taken and never recorded left the breaker half-open for ever."""
    run = guarded()
    open_and_half_open(run)
    run.arrive()
    run.arrive()
    assert run.state.breakers[0, 0, c.X_PROBES] == 2
    desk.on_engine_down(run.now_ns, run.tables, run.state, 0)
    run.effects()
    assert run.state.breakers[0, 0, c.X_PROBES] == 0
    desk.on_engine_up(run.now_ns, run.tables, run.state, 0)
    for _ in range(2):
        assert placements(run.arrive())[0][1] == 0
        run.done(busy(run)[0])
    assert breaker_state(run) == c.CLOSED


def test_an_engine_that_was_well_for_long_is_left_alone_no_longer_than_the_first_time() -> None:
    """Time in ejection only ever grew, so that one bad spell in a month cost minutes."""
    breaker = msgspec.structs.replace(BREAKER, open_ms_max=800)
    plan = one_stage({"a": long_queue(slots=4), "b": long_queue(slots=4)}, breaker=breaker)
    run = Desk(msgspec.structs.replace(plan, retry=Retry(attempts=1)))
    open_ms = []
    for well_for_ms in (0, 10, 10_000, 10):
        run.now_ns += well_for_ms * MS
        while breaker_state(run) == c.CLOSED:
            run.arrive()
            run.failed(0)
        until_ns = int(run.state.breakers[0, 0, c.X_UNTIL_NS])
        open_ms.append((until_ns - run.now_ns) // MS)
        run.timer(until_ns)
        for _ in range(2):
            run.arrive()
            run.done(busy(run)[0])
        assert breaker_state(run) == c.CLOSED
    assert open_ms == [100, 200, 100, 200]


def test_half_open_lets_no_more_than_its_permits_through_in_the_instant_it_begins() -> None:
    """Calls that came together with the end of the open time all went through."""
    run = guarded()
    for _ in range(4):
        run.arrive()
        run.failed(0)
    run.timer(run.now_ns + 100 * MS)
    assert [placements(run.arrive())[0][1] for _ in range(12)].count(0) == BREAKER.permits


@pytest.mark.parametrize("from_state", [c.OPEN, c.HALF_OPEN])
def test_a_late_success_never_closes_a_breaker(from_state: int) -> None:
    """A success of a call from before the failures closed a breaker that had just opened."""
    run = guarded(a=long_queue(slots=6), b=long_queue(slots=9))
    for _ in range(6):
        run.arrive()
    for slot in range(4):
        run.failed(slot)
    if from_state == c.HALF_OPEN:
        run.timer(run.now_ns + 100 * MS)
    for slot in (4, 5):
        run.done(slot)
        assert breaker_state(run) == from_state
    assert run.state.breakers[0, 0, c.X_PROBED] == 0


def test_ejection_is_bounded_by_what_is_left_afterwards() -> None:
    """Two of three hosts were ejected at a limit of one half: the share was taken before the ejection, not after."""
    run = guarded(a=long_queue(slots=8), b=long_queue(slots=8), c=long_queue(slots=8))
    for engine in range(3):
        for _ in range(8):
            run.arrive()
        for slot in [slot for slot in busy(run) if slot // 8 == engine]:
            run.failed(slot)
    assert [breaker_state(run, engine) for engine in range(3)] == [c.OPEN, c.OPEN, c.CLOSED]
    assert placements(run.arrive())[0][1] == 2


def test_a_hung_engine_leaves_the_rotation_without_a_single_answer() -> None:
    """A hung backend stayed in rotation for 85 minutes, and every retry went there too."""
    plan = one_stage({"a": TWIN, "b": long_queue(slots=4)}, breaker=BREAKER, timeout_ms=50)
    run = Desk(msgspec.structs.replace(plan, retry=Retry(attempts=2, reserve=4)))
    to_hung = []
    for step in range(100):
        keep_timers(run, step * 10 * MS)
        placed = placements(run.arrive())
        if placed and placed[0][1] == 0:
            to_hung.append(run.now_ns)
        for slot in [slot for slot in busy(run) if slot > 0]:
            run.done(slot)
    # Four calls are out of time at 80 ms. From then on only probes, one set each time it has been open for 100 ms.
    assert to_hung[:9] == [ms * MS for ms in (*range(0, 80, 10), 180)]
    assert len(to_hung) <= 8 + BREAKER.permits * 10
    assert run.state.counters[c.C_RETRIES] <= 0.1 * 100 + 1 + 4
