"""A fleet problem in numbers: what each engine type can do, takes, draws and costs, against what the traffic asks.

The rule a fleet must keep before anything is simulated: in every time bucket the work fits into the engines' time
(`capacity`). What the simulation then says of latency and errors comes on top; both together are "feasible".
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.plan.racks import racks_needed
from loadslice.spec.currency import HOURS_PER_MONTH

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

HOURS_PER_YEAR = 12 * HOURS_PER_MONTH


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
    racks_max: int = 1
    """That may draw ``per_rack_w`` each; without that limit there are as many as are needed."""
    owned: Int64s | None = None
    """[K + B] engines, then machines, that are there already; ``None``: none"""
    spared_per_hour: Float64s | None = None
    """[K + B] of what one costs, the part that one which is there already does not"""

    @property
    def box_w_max(self) -> float:
        """What one machine may draw, alone in a rack if need be."""
        return min(self.per_box_w, self.per_rack_w)

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


class Standing(NamedTuple):
    """Machines that engines stand in."""

    machines: Int64s
    """[B]"""
    boxes_w: Float64s
    """[N] of each machine with everything busy"""
    boxes_units: Float64s
    """[N] height of each"""

    @property
    def hungriest_w(self) -> float:
        """Of the machine that draws most."""
        return float(self.boxes_w.max(initial=0.0))


def packed(problem: Problem, counts: Int64s) -> Standing | None:
    """Machines that hold these engines.

    Each type's engines are placed where they fit, the largest types first, the box that draws least so far taken
    (worst fit decreasing), so that no box is filled with all the hungry ones.

    Returns:
        ``None``: some engine fits into no box of its type by itself.
    """
    drawn = [packed_in(problem, counts, b) for b in range(len(problem.boxes))]
    known = [boxes_w for boxes_w in drawn if boxes_w is not None]
    if len(known) < len(drawn):
        return None
    machines = np.array([len(boxes_w) for boxes_w in known], np.int64)
    return Standing(machines, np.concatenate(known), np.repeat(problem.rack_units, machines))


def packed_in(problem: Problem, counts: Int64s, b: int) -> Float64s | None:
    """Watts of each machine of one type with everything busy; ``None``: an engine fits into none."""
    inside = [k for k in range(len(problem.engines)) if problem.box_of[k] == b and counts[k] > 0]
    if not inside:
        return np.zeros(0)
    for number in range(_least_boxes(problem, counts, b, inside), int(counts[inside].sum()) + 1):
        boxes_w = _placed(problem, counts, b, inside, number)
        if boxes_w is not None:
            return boxes_w
    return None


def allowed(problem: Problem, counts: Int64s) -> Standing | None:
    """Where a fleet stands; ``None``: there are no such machines, racks or money for it."""
    standing = packed(problem, counts)
    if standing is None or (standing.machines > problem.box_max).any() or not in_racks(problem, standing):
        return None
    paid = purchase(problem, counts, standing.machines)
    return standing if paid <= problem.purchase_max + 1e-9 else None


def in_racks(problem: Problem, standing: Standing) -> bool:
    """It fits into the racks whose power is limited."""
    if not math.isfinite(problem.per_rack_w):
        return True
    needed = racks(problem, standing)
    return needed is not None and needed <= problem.racks_max


def racks(problem: Problem, standing: Standing) -> int | None:
    """Racks by height and by their power limit; ``None``: a machine draws more than a rack may."""
    needed = racks_needed(standing.boxes_w, standing.boxes_units, problem.per_rack_w)
    return None if needed is None else max(1, needed)


def _least_boxes(problem: Problem, counts: Int64s, b: int, inside: list[int]) -> int:
    """By cores, cards and watts as if engines could be cut."""
    most = 1.0
    for resource in range(2):
        asked = float(counts[inside] @ problem.takes[inside, resource])
        if asked > 0:
            most = max(most, asked / max(1, float(problem.room[b, resource])))
    spare_w = problem.box_w_max - problem.box_watts[b]
    if math.isfinite(spare_w) and spare_w > 0:
        most = max(most, float(counts[inside] @ problem.watts[inside, 1]) / spare_w)
    return math.ceil(most - 1e-9)


def _placed(problem: Problem, counts: Int64s, b: int, inside: list[int], number: int) -> Float64s | None:
    """Draw of each of ``number`` boxes after placing everything; ``None``: it does not fit."""
    free = np.repeat(problem.room[b][None, :].astype(np.float64), number, axis=0)
    drawn_w = np.full(number, problem.box_watts[b])
    order = sorted(inside, key=lambda k: (problem.takes[k, 1], problem.takes[k, 0], problem.watts[k, 1]), reverse=True)
    for k in order:
        for _ in range(int(counts[k])):
            fits = (free >= problem.takes[k] - 1e-9).all(axis=1) & (
                drawn_w + problem.watts[k, 1] <= problem.box_w_max + 1e-9
            )
            if not fits.any():
                return None
            where = int(np.argmin(np.where(fits, drawn_w, math.inf)))
            free[where] -= problem.takes[k]
            drawn_w[where] += problem.watts[k, 1]
    return drawn_w


def full_load_w(problem: Problem, counts: Int64s, boxes: Int64s) -> float:
    """Watts with everything busy."""
    return float(counts @ problem.watts[:, 1] + boxes @ problem.box_watts)
