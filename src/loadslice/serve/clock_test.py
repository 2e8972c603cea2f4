import time

import pytest

from loadslice.serve.clock import Clock


def test_a_dilated_clock_counts_a_fraction_of_what_passes() -> None:
    clock, dilated = Clock(), Clock(dilate=10.0)
    before, before_dilated = clock.now_ns(), dilated.now_ns()
    clock_ns = 0
    while clock_ns < 20_000_000:
        clock_ns = clock.now_ns() - before
    assert dilated.now_ns() - before_dilated == pytest.approx(clock_ns / 10, rel=0.05)


def test_an_instant_of_a_dilated_clock_is_found_again_on_the_loops() -> None:
    dilated = Clock(dilate=10.0)
    at_ns = dilated.now_ns() + 3_000_000
    assert dilated.loop_time(at_ns) - time.monotonic() == pytest.approx(0.03, abs=0.005)


def test_real_work_takes_as_long_on_a_dilated_clock_as_in_the_world() -> None:
    clock, dilated = Clock(), Clock(dilate=10.0)
    began, began_dilated = clock.now_ns(), dilated.now_ns()
    while clock.now_ns() - began < 3_000_000:
        pass
    worked = clock.now_ns() - began
    dilated.stretch(began_dilated)
    assert dilated.now_ns() - began_dilated == pytest.approx(worked, rel=0.2)
