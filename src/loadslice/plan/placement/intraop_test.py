import numpy as np

from loadslice.plan.placement.intraop import Split, best_split


def test_equal_devices_share_in_halves_when_joining_costs_less_than_it_saves() -> None:
    found = best_split(64, 8, lambda n: 100 * n, lambda n: 100 * n, sync_ns=50, merge_ns=30)
    assert found == Split(32, 3200 + 80)


def test_the_slower_device_gets_the_smaller_part_in_whole_tiles() -> None:
    found = best_split(64, 16, lambda n: 100 * n, lambda n: 300 * n, sync_ns=0, merge_ns=0)
    assert found == Split(48, 4800)


def test_an_operator_stays_whole_when_joining_costs_more_than_it_saves() -> None:
    found = best_split(64, 8, lambda n: 100 * n, lambda n: 90 * n, sync_ns=2900, merge_ns=0)
    assert found == Split(0, 64 * 90)


def test_a_device_that_rounds_up_to_its_tiles_is_used_at_a_tile() -> None:
    """The second device computes 32 units at a time, so 33 cost it as much as 64."""
    found = best_split(96, 1, lambda n: 100 * n, lambda n: 2000 * -(-n // 32), sync_ns=10, merge_ns=10)
    assert found == Split(32, 4020)


def test_no_aligned_part_is_better() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        units, tile = int(rng.integers(1, 90)), int(rng.integers(1, 20))
        first = np.cumsum(rng.integers(1, 100, units + 1))
        second = np.cumsum(rng.integers(1, 100, units + 1))
        sync = int(rng.integers(0, 500))
        found = best_split(
            units, tile, lambda n, t=first: int(t[n]), lambda n, t=second: int(t[n]), sync_ns=sync, merge_ns=7
        )
        options = {0: int(second[units]), units: int(first[units])}
        for part in range(1, units):
            if part % tile == 0:
                options[part] = max(int(first[part]), int(second[units - part])) + sync + 7
        assert found.ns == min(options.values()) == options[found.first_units]
