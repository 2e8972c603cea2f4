"""A fleet problem in numbers: what each engine type can do, takes, draws and costs, against what the traffic asks.

The rule a fleet must keep before anything is simulated: in every time bucket the work fits into the engines' time
(`capacity`). What the simulation then says of latency and errors comes on top; both together are "feasible".
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

HOURS_PER_YEAR = 8760.0
RACK_UNITS = 42.0


@dataclass(frozen=True, slots=True)
class Problem:
    """K engine types, B boxes, T time buckets, J classes of work (stage, shape, size)."""

    engines: tuple[str, ...]
    boxes: tuple[str, ...]
    box_of: Int64s
    """[K] index of the box each type stands in"""
    takes: Float64s
    """[K, 2] cores and cards of its box"""
    room: Int64s
    """[B, 2] cores and cards"""
    slots: Int64s
    """[K] batches at a time"""
    seconds: Float64s
    """[T] length of each bucket"""
    work_s: Float64s
    """[T, J, K] slot time that a class asks of a type in a bucket, seconds; inf: the type cannot run it"""
    per_hour: Float64s
    """[K] money for one engine that is there: its share of the purchase, rent, idle power"""
    box_per_hour: Float64s
    """[B]"""
    per_busy_s: Float64s
    """[K] money for one busy slot second, what power rises by"""
    purchase: Float64s
    """[K]"""
    box_purchase: Float64s
    """[B]"""
    watts: Float64s
    """[K, 2] idle and active; unknown: 0"""
    box_watts: Float64s
    """[B]"""
    rack_units: Float64s
    """[B]"""
    count_max: Int64s
    """[K]"""
    box_max: Int64s
    """[B]"""
    purchase_max: float = math.inf
    per_box_w: float = math.inf
    per_rack_w: float = math.inf
    owned: Int64s | None = None
    """[K + B] engines, then machines, that are there already; ``None``: none"""
    spared_per_hour: Float64s | None = None
    """[K + B] of what one costs, the part that one which is there already does not"""

    @property
    def hours(self) -> float:
        """Length of the traffic."""
        return float(self.seconds.sum()) / 3600


@dataclass(frozen=True, slots=True)
class Mix:
    """How many of each, with the flow that the cost was computed for."""

    counts: Int64s
    """[K]"""
    boxes: Int64s
    """[B]"""
    cost_per_hour: float
    busy: Float64s
    """[T, K] busy share of each type's slots, 0 where there are none"""
    share: Float64s
    """[T, J, K] of each class that goes to each type"""


def fixed_per_hour(problem: Problem, counts: Int64s, boxes: Int64s) -> float:
    """Money per hour that does not depend on how busy anything is."""
    total = float(counts @ problem.per_hour + boxes @ problem.box_per_hour)
    if problem.spared_per_hour is None:
        return total
    return total - float(_there(problem, counts, boxes) @ problem.spared_per_hour)


def purchase(problem: Problem, counts: Int64s, boxes: Int64s) -> float:
    """Money paid at once."""
    total = float(counts @ problem.purchase + boxes @ problem.box_purchase)
    if problem.owned is None:
        return total
    return total - float(_there(problem, counts, boxes) @ np.concatenate([problem.purchase, problem.box_purchase]))


def _there(problem: Problem, counts: Int64s, boxes: Int64s) -> Int64s:
    """[K + B] of a fleet, what is there already."""
    assert problem.owned is not None
    there: Int64s = np.minimum(np.concatenate([counts, boxes]), problem.owned)
    return there


def packed(problem: Problem, counts: Int64s) -> tuple[Int64s, float] | None:
    """Machines that hold these engines, and what the hungriest draws with everything busy, watts.

    Each type's engines are placed where they fit, the largest types first, the box that draws least so far taken
    (worst fit decreasing), so that no box is filled with all the hungry ones.

    Returns:
        Machines by type of box, and watts; ``None``: some engine fits into no box of its type by itself.
    """
    needed = np.zeros(len(problem.boxes), np.int64)
    hungriest_w = 0.0
    for b in range(len(problem.boxes)):
        machines, draws_w = packed_in(problem, counts, b)
        if machines is None:
            return None
        needed[b], hungriest_w = machines, max(hungriest_w, draws_w)
    return needed, hungriest_w


def packed_in(problem: Problem, counts: Int64s, b: int) -> tuple[int | None, float]:
    """The same for one type of box; ``None``: an engine fits into none."""
    inside = [k for k in range(len(problem.engines)) if problem.box_of[k] == b and counts[k] > 0]
    if not inside:
        return 0, 0.0
    for number in range(_least_boxes(problem, counts, b, inside), int(counts[inside].sum()) + 1):
        draws_w = _placed(problem, counts, b, inside, number)
        if draws_w is not None:
            return number, draws_w
    return None, 0.0


def _least_boxes(problem: Problem, counts: Int64s, b: int, inside: list[int]) -> int:
    """By cores, cards and watts as if engines could be cut."""
    most = 1.0
    for resource in range(2):
        asked = float(counts[inside] @ problem.takes[inside, resource])
        if asked > 0:
            most = max(most, asked / max(1, float(problem.room[b, resource])))
    spare_w = problem.per_box_w - problem.box_watts[b]
    if math.isfinite(spare_w) and spare_w > 0:
        most = max(most, float(counts[inside] @ problem.watts[inside, 1]) / spare_w)
    return math.ceil(most - 1e-9)


def _placed(problem: Problem, counts: Int64s, b: int, inside: list[int], number: int) -> float | None:
    """Draw of the hungriest of ``number`` boxes after placing everything; ``None``: it does not fit."""
    free = np.repeat(problem.room[b][None, :].astype(np.float64), number, axis=0)
    drawn_w = np.full(number, problem.box_watts[b])
    order = sorted(inside, key=lambda k: (problem.takes[k, 1], problem.takes[k, 0], problem.watts[k, 1]), reverse=True)
    for k in order:
        for _ in range(int(counts[k])):
            fits = (free >= problem.takes[k] - 1e-9).all(axis=1) & (
                drawn_w + problem.watts[k, 1] <= problem.per_box_w + 1e-9
            )
            if not fits.any():
                return None
            where = int(np.argmin(np.where(fits, drawn_w, math.inf)))
            free[where] -= problem.takes[k]
            drawn_w[where] += problem.watts[k, 1]
    return float(drawn_w.max())


def full_load_w(problem: Problem, counts: Int64s, boxes: Int64s) -> float:
    """Watts with everything busy."""
    return float(counts @ problem.watts[:, 1] + boxes @ problem.box_watts)


def racks(problem: Problem, counts: Int64s, boxes: Int64s) -> int:
    """Racks by height and by their power limit, boxes of the same kind alike."""
    units = float(boxes @ problem.rack_units)
    by_power = full_load_w(problem, counts, boxes) / problem.per_rack_w if math.isfinite(problem.per_rack_w) else 0.0
    return max(1, math.ceil(units / RACK_UNITS - 1e-9), math.ceil(by_power - 1e-9))
