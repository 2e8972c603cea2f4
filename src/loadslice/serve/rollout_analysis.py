"""What a canary has shown so far, and what follows from it: pass, fail, or neither. Pure numbers, no clock.

Rules of this file: each signal ends in one of three ways by itself, and nothing but all of them passing passes; a
signal that is missing, stale or not a number cannot pass, and whether it fails is its own rule's business; a failure
needs evidence of harm, a pass needs evidence that there is none, and time alone is evidence of nothing.
"""

import math
from collections.abc import Mapping

import msgspec

from loadslice.serve.sequential import (
    BETTER,
    RiskTest,
    ShareTest,
    lower_bound,
    quarter,
    slowest,
    upper_bound,
)
from loadslice.spec.rollout import Decision, LatencyRule, MetricRule, Missing, RolloutPlan

CANARY_TIMES = 4
"""Of the canary, that make a window of latencies."""
STABLE_TIMES = 4
TIMES_MAX = 256
"""Of either version kept while the other has too few."""
STRATA_MAX = 256
"""Kinds of batch whose times are kept at once; of more, none."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """How one signal ended."""

    decision: Decision
    why: str
    figures: dict[str, float | int | None] = {}


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One posting of a business metric."""

    stable: float | None
    canary: float | None
    at_s: float
    """When it was posted, on the server's monotonic clock; means nothing to another run of it."""


class Window(msgspec.Struct, kw_only=True):
    """Times of batches of one kind since they were last compared."""

    canary: list[float] = []
    stable: list[float] = []


class Evidence(msgspec.Struct, kw_only=True):
    """Everything that is kept of a rollout; survives a restart but for the windows that are open."""

    requests: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    """Ended at this step, stable and canary; without those the client got wrong or left."""
    failures: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    pending: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0, 0])
    """Not yet in `error_harm`: stable and canary requests, stable and canary failures."""
    error_harm: RiskTest = msgspec.field(default_factory=RiskTest)
    latency_harm: RiskTest = msgspec.field(default_factory=RiskTest)
    latency_well: RiskTest = msgspec.field(default_factory=lambda: RiskTest(risks=BETTER))
    latency_windows: int = 0
    output_harm: ShareTest = msgspec.field(default_factory=lambda: ShareTest(limit=0.02))
    pairs: int = 0
    different: int = 0
    pairs_all: int = 0
    distance_max: float = 0.0
    values: dict[str, Value] = {}
    windows: dict[str, Window] = {}

    def next_step(self) -> None:
        """Begin another step: what a pass needs must be shown anew there; evidence of harm is never forgotten."""
        self.close_window()
        self.requests, self.failures = [0, 0], [0, 0]
        self.latency_well = RiskTest(risks=BETTER)
        self.latency_windows = 0
        self.pairs = self.different = 0

    def ended(self, version: int, *, failed: bool) -> None:
        """A request has ended through our doing, well or not.

        Args:
            version: 0 stable, 1 canary.
            failed: Whether it failed.
        """
        self.requests[version] += 1
        self.pending[version] += 1
        if failed:
            self.failures[version] += 1
            self.pending[2 + version] += 1

    def close_window(self) -> None:
        """Compare the failures since the last look, once both versions have served."""
        stable, canary, stable_failures, canary_failures = self.pending
        if stable and canary:
            self.error_harm.add(canary_failures, canary, stable_failures, stable)
            self.pending = [0, 0, 0, 0]

    def took(self, kind: str, version: int, time_s: float, rule: LatencyRule) -> None:
        """A batch has taken so long at a stage that differs.

        Args:
            kind: Stage, engine, bucket and rows: only times of one kind are compared.
            version: 0 stable, 1 canary.
            time_s: Copy and compute.
            rule: Margin that the canary has; it is granted before anything is compared.
        """
        window = self.windows.get(kind)
        if window is None:
            if len(self.windows) >= STRATA_MAX:
                return
            window = self.windows[kind] = Window()
        mine = window.canary if version else window.stable
        mine.append((time_s - rule.slower_max_ms / 1e3) / (1 + rule.slower_max) if version else time_s)
        if len(mine) > TIMES_MAX:
            del mine[0]
        if len(window.canary) < CANARY_TIMES or len(window.stable) < STABLE_TIMES:
            return
        total = quarter(len(window.canary) + len(window.stable))
        for test, doubt_for_canary in ((self.latency_harm, True), (self.latency_well, False)):
            hits = slowest(window.canary, window.stable, doubt_for_canary=doubt_for_canary)
            test.add(hits, len(window.canary), total - hits, len(window.stable))
        self.latency_windows += 1
        del self.windows[kind]

    def compared(self, distance: float, tolerance: float, different_max: float) -> None:
        """Both versions have answered one input.

        Args:
            distance: Relative; not a number counts as different.
            tolerance: From which on an answer is different.
            different_max: Share of answers that may be.
        """
        is_different = not distance <= tolerance
        self.output_harm.limit = different_max
        self.output_harm.add(is_different)
        self.pairs += 1
        self.pairs_all += 1
        self.different += is_different
        if math.isfinite(distance):
            self.distance_max = max(self.distance_max, distance)


def judge(plan: RolloutPlan, evidence: Evidence, dwelt_s: float, dwell_s: float, now_s: float) -> Finding:
    """What follows from everything.

    Args:
        plan: How to judge.
        evidence: What there is.
        dwelt_s: Seconds at this step.
        dwell_s: Seconds that it has to last.
        now_s: On the clock of `Value.at_s`, against which the ages of metrics are measured.

    Returns:
        The decision with the reason that decides; `findings` gives each signal's own.
    """
    found = findings(plan, evidence, now_s)
    for name, finding in found.items():
        if finding.decision == "fail":
            return Finding(decision="fail", why=f"{name}: {finding.why}")
    waiting = [f"{name}: {one.why}" for name, one in found.items() if one.decision != "pass"]
    if not 0 <= dwell_s <= dwelt_s:  # NaN as well
        waiting.append(f"this step lasts {dwell_s:g} s")
    return Finding(decision="inconclusive" if waiting else "pass", why="; ".join(waiting) or "every signal passes")


def findings(plan: RolloutPlan, evidence: Evidence, now_s: float) -> dict[str, Finding]:
    """Each signal's own end."""
    tests = 1 + (plan.latency is not None) + (plan.outputs is not None)
    alarm_at = tests / plan.false_alarm
    found = {"errors": _errors(plan, evidence, alarm_at)}
    if plan.latency is not None:
        found["latency"] = _latency(plan, evidence, alarm_at, plan.latency.missing)
    if plan.outputs is not None:
        found["outputs"] = _outputs(plan, evidence, alarm_at)
    for name, rule in plan.metrics.items():
        found[f"metrics.{name}"] = metric(rule, evidence.values.get(name), now_s)
    return found


def _absent(missing: Missing, why: str, figures: Mapping[str, float | int | None]) -> Finding:
    return Finding(decision="fail" if missing == "fail" else "inconclusive", why=why, figures=dict(figures))


def _errors(plan: RolloutPlan, evidence: Evidence, alarm_at: float) -> Finding:
    stable, canary = evidence.requests
    miss = plan.false_pass / 2
    high = upper_bound(evidence.failures[1], canary, miss)
    low = lower_bound(evidence.failures[0], stable, miss)
    figures: dict[str, float | int | None] = {
        "stable_requests": stable,
        "canary_requests": canary,
        "stable_failure_rate": evidence.failures[0] / stable if stable else None,
        "canary_failure_rate": evidence.failures[1] / canary if canary else None,
        "excess_upper": high - low,
        "harm_evidence": _finite(evidence.error_harm.peak),
        "harm_evidence_alarm": alarm_at,
    }
    if evidence.error_harm.peak >= alarm_at:
        return Finding(decision="fail", why="the canary fails more often", figures=figures)
    if not canary or not stable:
        return _absent(plan.errors.missing, "no requests of one version", figures)
    if canary < plan.requests_min:
        return Finding(decision="inconclusive", why=f"{canary} of {plan.requests_min} requests", figures=figures)
    if high - low > plan.errors.excess_max:
        why = f"up to {high - low:.2g} more failures cannot be excluded"
        return Finding(decision="inconclusive", why=why, figures=figures)
    return Finding(decision="pass", why="no more failures than allowed", figures=figures)


def _latency(plan: RolloutPlan, evidence: Evidence, alarm_at: float, missing: Missing) -> Finding:
    figures: dict[str, float | int | None] = {
        "windows": evidence.latency_windows,
        "harm_evidence": _finite(evidence.latency_harm.peak),
        "harm_evidence_alarm": alarm_at,
        "well_evidence": _finite(evidence.latency_well.peak),
        "well_evidence_pass": 1 / plan.false_pass,
    }
    if evidence.latency_harm.peak >= alarm_at:
        return Finding(decision="fail", why="the canary is slower than allowed", figures=figures)
    if evidence.latency_windows == 0:
        return _absent(missing, "no batches of one kind in both versions yet", figures)
    if evidence.latency_well.peak < 1 / plan.false_pass:
        return Finding(decision="inconclusive", why="that it is not slower is not shown yet", figures=figures)
    return Finding(decision="pass", why="not slower than allowed", figures=figures)


def _outputs(plan: RolloutPlan, evidence: Evidence, alarm_at: float) -> Finding:
    rule = plan.outputs
    assert rule is not None
    high = upper_bound(evidence.different, evidence.pairs, plan.false_pass)
    figures: dict[str, float | int | None] = {
        "pairs": evidence.pairs,
        "different": evidence.different,
        "different_upper": high,
        "distance_max": evidence.distance_max if evidence.pairs_all else None,
        "harm_evidence": _finite(evidence.output_harm.peak),
        "harm_evidence_alarm": alarm_at,
    }
    if evidence.output_harm.peak >= alarm_at:
        return Finding(decision="fail", why="the canary answers otherwise", figures=figures)
    if evidence.pairs == 0:
        return _absent(rule.missing, "no answers have been compared", figures)
    if evidence.pairs < rule.pairs_min:
        return Finding(decision="inconclusive", why=f"{evidence.pairs} of {rule.pairs_min} pairs", figures=figures)
    if high > rule.different_max:
        why = f"up to {high:.2g} different answers cannot be excluded"
        return Finding(decision="inconclusive", why=why, figures=figures)
    return Finding(decision="pass", why="answers as the stable version does", figures=figures)


def metric(rule: MetricRule, value: Value | None, now_s: float) -> Finding:
    """How a business metric ends: by its latest values, if there are two, of now, that are numbers."""
    if value is None:
        return _absent(rule.missing, "nobody has posted it", {})
    figures: dict[str, float | int | None] = {
        "stable": _finite(value.stable),
        "canary": _finite(value.canary),
        "age_s": now_s - value.at_s,
    }
    if value.stable is None or value.canary is None or not math.isfinite(value.stable + value.canary):
        return _absent(rule.missing, "one of its values is not a number", figures)
    if not 0 <= now_s - value.at_s <= rule.age_max_s:
        return _absent(rule.missing, "its values are stale, or of the future", figures)
    worse = value.stable - value.canary if rule.better == "higher" else value.canary - value.stable
    if worse > rule.worse_max * abs(value.stable):
        return Finding(decision="fail", why="the canary's is worse than allowed", figures=figures)
    return Finding(decision="pass", why="not worse than allowed", figures=figures)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
