"""When an alarm rings: in order, once, never before its time."""

import asyncio
import time

import pytest

from loadslice.serve.alarm import Alarm
from loadslice.serve.loop import new_loop


def rung_at(*, fallback: bool, delays_ns: list[int]) -> list[int]:
    """Set an alarm anew each time it has rung; how long after each wanted instant it rang."""

    async def run() -> list[int]:
        late_ns: list[int] = []
        done = asyncio.Event()
        alarm = Alarm(lambda: done.set())
        if fallback:
            alarm.close()
        for delay_ns in delays_ns:
            at_ns = time.monotonic_ns() + delay_ns
            alarm.set(at_ns)
            await done.wait()
            late_ns.append(time.monotonic_ns() - at_ns)
            done.clear()
        alarm.close()
        return late_ns

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(run())


def test_it_never_rings_early_whatever_the_instant() -> None:
    assert all(late_ns >= 0 for late_ns in rung_at(fallback=False, delays_ns=[0, -5, 700_000, 1_300_001, 137_000]))


def test_it_rings_where_the_system_has_no_such_timers() -> None:
    assert len(rung_at(fallback=True, delays_ns=[0, 1_300_001])) == 2


@pytest.mark.parametrize("second_ms", [1, 60])
def test_the_last_setting_counts_alone(second_ms: int) -> None:
    async def run() -> tuple[int, float]:
        rung, first = [], asyncio.Event()

        def ring() -> None:
            rung.append(time.monotonic_ns())
            first.set()

        alarm = Alarm(ring)
        began_ns = time.monotonic_ns()
        alarm.set(began_ns + 20_000_000)
        alarm.set(began_ns + second_ms * 1_000_000)
        async with asyncio.timeout(20):
            await first.wait()
        await asyncio.sleep(0.1)  # in which the setting that does not count could ring
        alarm.close()
        return len(rung), rung[0] - began_ns

    with asyncio.Runner(loop_factory=new_loop) as runner:
        count, after_ns = runner.run(run())
    assert count == 1
    assert after_ns >= second_ms * 1_000_000


def test_it_is_silent_once_closed() -> None:
    async def run() -> list[int]:
        rung: list[int] = []
        alarm = Alarm(lambda: rung.append(1))
        alarm.set(time.monotonic_ns() + 1_000_000)
        alarm.close()
        await asyncio.sleep(0.02)
        return rung

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(run()) == []
