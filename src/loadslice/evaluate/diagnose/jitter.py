"""Jitter between stages: work is handed on in lumps, and the next stage waits, then drowns, though it has time."""

from collections.abc import Iterable

from loadslice.evaluate.diagnose.evidence import Evidence, NotSeenError, StageSeen
from loadslice.evaluate.diagnose.rule import Rule
from loadslice.spec.diagnosis import Confidence, Finding

REQUESTS_MIN = 100
BUSY_MAX = 0.8
"""Above, waiting is what a busy engine has, however even its work comes."""
SPREAD_MIN = 2.0
"""P95 less P50 of the wait, in services: a queue that is fed at random and half busy has 1.5 (M/D/1)."""
VARIATION_RATIO = 1.5
STALL_RATIO = 3.0


def _look(evidence: Evidence) -> Iterable[Finding]:
    known = [one for one in evidence.stages if one.wait_ms_p95 is not None and one.service_ms_p50]
    if not any(one.position > 0 for one in known):
        raise NotSeenError("there is no second stage whose waits are known")
    busy = {engine.name: engine.utilisation for engine in evidence.engines}
    first = max((one for one in known if one.position == 0), key=lambda one: one.requests, default=None)
    for one in known:
        if one.position > 0 and one.requests >= REQUESTS_MIN and busy.get(one.engine, 0.0) < BUSY_MAX:
            before = [other for other in evidence.stages if other.position == one.position - 1]
            found = _of(one, before, first, busy.get(one.engine, 0.0), evidence)
            if found is not None:
                yield found


def _of(
    one: StageSeen, before: list[StageSeen], first: StageSeen | None, busy: float, evidence: Evidence
) -> Finding | None:
    assert one.wait_ms_p95 is not None
    assert one.service_ms_p50
    spread_ms = one.wait_ms_p95 - (one.wait_ms_p50 or 0.0)
    spread = spread_ms / one.service_ms_p50
    door = None if first is None else first.gap_variation
    lumpy = one.gap_variation is not None and door is not None and one.gap_variation >= VARIATION_RATIO * max(door, 0.1)
    batched = max((other.rows_mean or 1.0 for other in before), default=1.0)
    bunched = (one.bunch or 0.0) >= 1.5 or (one.bunch is None and batched >= 2.0 * (one.rows_mean or 1.0))
    if spread < SPREAD_MIN or not (lumpy or bunched):
        return None
    stall = max(
        (
            other.service_ms_p99 / other.service_ms_p50
            for other in before
            if other.service_ms_p99 and other.service_ms_p50
        ),
        default=1.0,
    )
    cause, remedy, confidence = _why(bunched, batched, stall, one.bunch)
    variation = "" if one.gap_variation is None else (
        f"; gaps between requests that reach it vary {one.gap_variation:.2f} times their mean"
        + ("" if door is None else f", at the door {door:.2f}")
    )  # fmt: skip
    return Finding(
        rule=RULE.name,
        symptom=f"jitter before stage '{one.stage}' on '{one.engine}'",
        evidence=f"its wait is {one.wait_ms_p50 or 0:.3g} ms at P50 and {one.wait_ms_p95:.3g} at P95, {spread:.1f} "
        "services "
        f"apart, with {busy:.0%} of its time in use{variation}",
        cause=cause,
        remedy=remedy,
        confidence=confidence,
        basis=evidence.basis,
        figures={"spread_ms": spread_ms, "spread_services": spread, "gap_variation": one.gap_variation,
                 "gap_variation_door": door, "bunch": one.bunch, "utilisation": busy, "stage": one.stage},
    )  # fmt: skip


def _why(bunched: bool, batched: float, stall: float, bunch: float | None) -> tuple[str, str, Confidence]:
    if bunched:
        size = f"{bunch:.1f}" if bunch is not None else f"{batched:.1f}"
        return (
            f"the stage before hands on whole batches, {size} requests at a time",
            "a smaller `batch.size` or `window_ms` before it, or a `batch` at this stage that takes the lump as one",
            "high" if bunch is not None else "medium",
        )
    if stall >= STALL_RATIO:
        return (
            f"the stage before stalls now and then: its slowest service is {stall:.1f} times its usual one",
            "find its stalls (shapes that change, a device that is shared, garbage); give it a `timeout_ms`",
            "medium",
        )
    return (
        "work reaches this stage less evenly than it came in",
        "look at what joins here: retries, failover, several engines before it",
        "low",
    )


RULE = Rule(
    name="stage-jitter",
    formula=f"P95 - P50 of the wait >= {SPREAD_MIN:g} services while < {BUSY_MAX:.0%} busy, and requests come in "
    "lumps, or "
    f"in gaps that vary {VARIATION_RATIO:g} x what they do at the door",
    reason="an evenly fed engine that is half busy spreads by some 1.5 services",
    needs="a journal or a server with two stages or more, and a hundred requests",
    look=_look,
)
