"""One operator shared by two devices (dual bank): how much of its output each computes.

min over r of max(t_A(r), t_B(1 - r)) + synchronisation + merge, r in whole tiles. Times of parts need not be linear
(accelerators round up to their tiles, small parts have fixed costs), so every r is tried rather than solved for. As
HeteroLLM (Chen et al., 2025) and CoDL (Jia et al., MobiSys 2022) do, the unsplit operator is one of the choices.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """The best way to share an operator."""

    first_units: int
    """On the first device; the rest on the second."""
    ns: int


def best_split(
    units: int,
    tile: int,
    first_ns: Callable[[int], int],
    second_ns: Callable[[int], int],
    *,
    sync_ns: int,
    merge_ns: int,
) -> Split:
    """Choose the part of the first device among whole tiles; all or nothing pays no synchronisation and no merge.

    Args:
        units: Output channels or rows, >= 1.
        tile: Units that a device computes at once, >= 1; the last tile may be partial and is the second device's.
        first_ns: Time of that many units on the first device; called with 1 to ``units``.
        second_ns: The same on the second.
        sync_ns: Until both devices know that both are done.
        merge_ns: Joining the parts.

    Returns:
        The least time; of equals the one with fewer units on the first device.
    """
    assert units >= 1
    assert tile >= 1
    found = [Split(0, second_ns(units)), Split(units, first_ns(units))]
    found += [
        Split(part, max(first_ns(part), second_ns(units - part)) + sync_ns + merge_ns)
        for part in range(tile, units, tile)
    ]
    return min(found, key=lambda split: (split.ns, split.first_units))
