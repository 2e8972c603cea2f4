"""Queues that grow: more comes than goes, and why."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from loadslice.evaluate.diagnose.evidence import Evidence, Floats, NotSeenError, Timeline
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Confidence, Finding

BINS_MIN = 8
GROWTH_BINS = 4
"""Over which a queue must have grown: shorter growth is a burst."""
QUEUE_MIN = 8.0
GROWN_MIN = 3.0
USUAL = 0.9
"""Quantile of a queue that counts as its usual height: queues of a steady load come and go."""
SLOWER = 1.5
FASTER = 1.3


def _look(evidence: Evidence) -> Iterable[Finding]:
    line = evidence.timeline
    if line is None:
        raise NotSeenError("no course of queue lengths over time is known")
    if len(line.arrivals) < BINS_MIN:
        raise NotSeenError(f"a course over time of {len(line.arrivals)} steps is too short to tell growth from a jump")
    for engine in range(len(line.engines)):
        found = _of(line, engine, evidence)
        if found is not None:
            yield found


def growth(queue: Floats) -> tuple[int, int] | None:
    """The stretch, first and last bin, over which a queue grew most; ``None``: it did not grow enough to matter.

    Enough: it ends at `QUEUE_MIN` or more, at least `GROWN_MIN` times where it began and its usual height, rose over
    `GROWTH_BINS` bins or more, and did not fall by more than a tenth of its height on the way.
    """
    best: tuple[float, int, int] | None = None
    begin, peak = 0, 0
    for at in range(1, len(queue)):
        if queue[at] < queue[peak] - 0.1 * max(queue[peak] - queue[begin], 1.0) or queue[at] <= queue[begin]:
            begin = peak = at
        elif queue[at] >= queue[peak]:
            peak = at
            rise = float(queue[peak] - queue[begin])
            if peak - begin >= GROWTH_BINS and (best is None or rise > best[0]):
                best = (rise, begin, peak)
    if best is None:
        return None
    _, begin, peak = best
    usual = max(_usual(queue, begin, peak), float(queue[begin]), 1.0)
    return (begin, peak) if queue[peak] >= QUEUE_MIN and queue[peak] >= GROWN_MIN * usual else None


def _usual(queue: Floats, begin: int, peak: int) -> float:
    """Height of a queue before it grew; where that is too short to tell, of most of the rest, which has its fall in it.

    A queue that grew all the time has no other height than the one it began at.
    """
    if begin >= BINS_MIN:
        return float(np.quantile(queue[: begin + 1], USUAL))
    rest = np.concatenate([queue[:begin], queue[peak + 1 :]])
    return float(np.quantile(rest, 0.75)) if len(rest) > len(queue) / 2 else 0.0


def _of(line: Timeline, engine: int, evidence: Evidence) -> Finding | None:
    queue = line.queue[engine]
    stretch = growth(queue)
    if stretch is None:
        return None
    begin, peak = stretch
    inside = np.zeros(len(queue), bool)
    inside[begin : peak + 1] = True
    service, placed = line.service_ms[engine], line.placed[engine]
    slower = _ratio(service, inside)
    faster = _ratio(placed, inside)
    busy = float(np.nanmean(line.busy[engine][inside])) if np.isfinite(line.busy[engine][inside]).any() else None
    cause, remedy, confidence = _why(slower, faster, busy)
    name = line.engines[engine]
    from_s, to_s = line.begin_s + begin * line.step_s, line.begin_s + (peak + 1) * line.step_s
    return Finding(
        rule=RULE.name,
        symptom=f"the queue of '{name}' grew",
        evidence=f"from {queue[begin]:.0f} to {queue[peak]:.0f} waiting between {from_s:.1f} and {to_s:.1f} s"
        + ("" if slower is None else f"; a batch took {slower:.2f} times its usual time")
        + ("" if faster is None else f", {faster:.2f} times as much arrived there")
        + ("" if busy is None else f", {busy:.0%} of its slots busy"),
        cause=cause,
        remedy=remedy,
        confidence=confidence,
        basis=evidence.basis,
        figures={"engine": name, "from_s": from_s, "to_s": to_s, "queue_from": float(queue[begin]),
                 "queue_to": float(queue[peak]), "service_ratio": slower, "arrival_ratio": faster, "busy": busy},
    )  # fmt: skip


def _ratio(values: Floats, inside: npt.NDArray[np.bool_]) -> float | None:
    """Mean in a stretch over what was usual before it, or around it where too little was before; ``None``: unknown."""
    before = values[: int(inside.argmax())]
    rest = before if len(before) >= BINS_MIN else values[~inside]
    within, rest = values[inside], rest[np.isfinite(rest)]
    within = within[np.isfinite(within)]
    usual = float(np.median(rest)) if len(rest) else 0.0
    return float(within.mean()) / usual if len(within) and usual > 0 else None


def _why(slower: float | None, faster: float | None, busy: float | None) -> tuple[str, str, Confidence]:
    is_slow, is_more = slower is not None and slower >= SLOWER, faster is not None and faster >= FASTER
    if is_slow and not is_more and faster is not None:
        return (
            "the engine became slower while no more arrived",
            (
                "give its stage a `breaker` with `slow_ms` and a `failover`; look at what shares the device, and at "
                "its "
                "temperature and power"
            ),
            "high",
        )
    if is_more and not is_slow:
        return (
            "more arrived than it can do, at its usual pace",
            (
                "bound what waits (`queue.wait_limit_ms`, deadlines), let lower classes be shed, and size the fleet "
                "for the "
                "peak: `loadslice plan`"
            ),
            "high",
        )
    if is_slow:
        return (
            "the engine became slower, and how much more arrived is not known"
            if faster is None
            else "more arrived and the engine became slower: either leads to the other",
            "find out which came first with a shorter journal; deadlines and a retry budget keep both bounded",
            "low",
        )
    if busy is not None and busy < 0.5:
        return (
            (
                "work waited although the engine was not busy: it was down, or its breaker open, or batches waited for "
                "company"
            ),
            "look at `loadslice_engine_up`, `loadslice_breaker_state` and `batch.window_ms`",
            "low",
        )
    return (
        "the load is more than this engine can do",
        "more of it, larger batches, or a cheaper variant (`loadslice squeeze`); `loadslice plan` says which pays",
        "medium",
    )


RULE = Rule(
    name="queue-growth",
    formula=f"waiting rises over {GROWTH_BINS} bins to {QUEUE_MIN:g} or more and {GROWN_MIN:g} x its usual level",
    reason="a queue that empties again within a few bins has done its work",
    needs=f"a journal, or {BINS_MIN + 1} looks at a server or more (a longer --for-s, a shorter --every-s)",
    look=_look,
)
