"""Avalanches: a spell of slowness whose refusals and retries outlive it. Which engine began it, and what fed it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadslice.evaluate.diagnose.evidence import Evidence, Floats, NotSeenError, Timeline
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Confidence, Finding

BINS_MIN = 12
FAILING = 0.2
"""Share of what ended badly, in a bin, from which on it counts as failing."""
FAILING_BINS = 3
RETRIES_MIN = 0.1
"""Share of further attempts among arrivals: a retry budget of a tenth would have held them there."""
SIGMAS = 4.0
QUEUE_RISE = 4.0
ERRORS_RISE = 2.0


@dataclass(frozen=True, slots=True)
class Onset:
    """When one series left its usual level."""

    engine: str
    what: str
    at_s: float
    usual: float
    then: float


def _look(evidence: Evidence) -> Iterable[Finding]:
    line = evidence.timeline
    if line is None:
        raise NotSeenError("no course of queues, errors and attempts over time is known")
    if len(line.arrivals) < BINS_MIN:
        raise NotSeenError(f"a course over time of {len(line.arrivals)} steps is too short to tell growth from a jump")
    bad = line.errors.sum(axis=0)
    share = bad / np.maximum(bad + line.completed, 1.0)
    again = line.retries / np.maximum(line.arrivals, 1.0)
    failing = np.flatnonzero((share >= FAILING) | (again >= RETRIES_MIN))
    arrived = float(line.arrivals[failing].sum())
    retries = float(line.retries[failing].sum())
    if len(failing) < FAILING_BINS or retries < RETRIES_MIN * max(arrived, 1.0):
        return []
    onsets = sorted(_onsets(line), key=lambda one: one.at_s)
    if not onsets:
        return []
    return [_finding(line, onsets, failing, retries / arrived, evidence)]


def _onsets(line: Timeline) -> Iterable[Onset]:
    for index, engine in enumerate(line.engines):
        for what, values, rise in (
            ("queue", line.queue[index], QUEUE_RISE), ("errors", line.errors[index], ERRORS_RISE)
        ):  # fmt: skip
            at = onset(values, rise)
            if at is not None:
                usual = float(np.median(values[: max(at, 1)]))
                yield Onset(engine, what, line.begin_s + at * line.step_s, usual, float(values[at : at + 5].max()))


def onset(values: Floats, rise: float) -> int | None:
    """First bin of a rise that lasts: two in a row above the usual level by `SIGMAS` of its spread and ``rise``.

    The usual level is that of the first tenth; a series that is high from the start has no onset.
    """
    head = values[: max(4, len(values) // 10)]
    limit = float(head.mean() + SIGMAS * head.std() + rise)
    above = values > limit
    both = np.flatnonzero(above[:-1] & above[1:])
    return int(both[0]) if len(both) else None


def _finding(
    line: Timeline, onsets: list[Onset], failing: npt.NDArray[np.int64], retried: float, evidence: Evidence
) -> Finding:
    first = onsets[0]
    tied = {one.engine for one in onsets if one.at_s <= first.at_s + line.step_s}
    began_s = line.begin_s + float(failing[0]) * line.step_s
    until_s = line.begin_s + float(failing[-1] + 1) * line.step_s
    more = np.flatnonzero(line.retries > RETRIES_MIN * np.maximum(line.arrivals, 1.0))
    retries_s = line.begin_s + float(more[0]) * line.step_s if len(more) else None
    index = line.engines.index(first.engine)
    service = line.service_ms[index]
    at = round((first.at_s - line.begin_s) / line.step_s)
    before, after = service[: max(at - 1, 1)], service[max(at - 2, 0) : at + 6]
    slower = None
    if np.isfinite(before).any() and np.isfinite(after).any():
        slower = float(np.nanmax(after) / np.nanmedian(before))
    ends = until_s >= line.begin_s + (len(line.arrivals) - 1) * line.step_s
    order = "; ".join(
        f"{one.what} of '{one.engine}' at {one.at_s:.1f} s ({one.usual:.0f} -> {one.then:.0f})" for one in onsets[:4]
    )
    confidence: Confidence = "high" if len(tied) == 1 and slower is not None and slower >= 1.5 else "medium"
    confidence = "low" if len(tied) > 1 else confidence
    fed = f"then further attempts, {retried:.0%} of what arrived in that time"
    fed += "" if retries_s is None else f", from {retries_s:.1f} s on"
    return Finding(
        rule=RULE.name,
        symptom=f"an avalanche: requests failed or were sent again from {began_s:.1f} s "
        + ("to the end" if ends else f"to {until_s:.1f} s"),
        evidence=f"first the {order}; {fed}",
        cause=f"'{first.engine}' rose first"
        + ("" if slower is None or slower < 1.5 else f", when a batch took {slower:.1f} times its usual time")
        + "; attempts repeated by clients then kept the load above what could be done",
        remedy="bound further attempts (`retry.budget`, clients that say x-loadslice-attempt), refuse what cannot "
        "be in "
        "time (`deadline_ms`), cancel what nobody waits for; and a `breaker` with `slow_ms` for that engine. "
        "`loadslice drill avalanche --pipeline P` shows whether it holds then",
        confidence=confidence,
        basis=evidence.basis,
        figures={"first_engine": first.engine, "first_what": first.what, "first_at_s": first.at_s,
                 "failing_from_s": began_s, "failing_to_s": until_s, "retries_share": retried,
                 "retries_from_s": retries_s, "service_ratio": slower},
    )  # fmt: skip


RULE = Rule(
    name="avalanche",
    formula=f"{FAILING_BINS} bins or more in which {FAILING:.0%} of the ends are bad or a tenth of the arrivals are "
    "further "
    f"attempts, a queue or errors that rose, and further attempts >= "
    f"{RETRIES_MIN:.0%} of what "
    "arrived meanwhile",
    reason="failures alone are an outage; failures that feed on retries do not end with their cause",
    needs=f"a journal, or {BINS_MIN + 1} looks at a server or more (a longer --for-s, a shorter --every-s)",
    look=_look,
)
