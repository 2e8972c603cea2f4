"""Machines into racks."""

from collections.abc import Iterable

RACK_UNITS = 42.0
"""Height units of a rack (IEC 60297)."""


def racks_needed(boxes_w: Iterable[float], boxes_units: Iterable[float], per_rack_w: float) -> int | None:
    """Racks that hold the machines, first fit of the hungriest first.

    First fit decreasing needs at most 11/9 of the fewest plus one where power alone limits (Johnson 1973); with equal
    machines it is exact.

    Args:
        boxes_w: Of each machine at full load.
        boxes_units: Height of each, 0: it stands in no rack's way.
        per_rack_w: What one rack may draw; inf: height alone limits.

    Returns:
        ``None``: a machine is too much for any rack.
    """
    racks: list[tuple[float, float]] = []
    for box_w, units in sorted(zip(boxes_w, boxes_units, strict=True), reverse=True):
        if box_w > per_rack_w + 1e-9 or units > RACK_UNITS:
            return None
        for index, (used_w, used_units) in enumerate(racks):
            if used_w + box_w <= per_rack_w + 1e-9 and used_units + units <= RACK_UNITS + 1e-9:
                racks[index] = (used_w + box_w, used_units + units)
                break
        else:
            racks.append((box_w, units))
    return len(racks)
