"""How a rollout is judged: the plan that `loadslice rollout start --plan FILE` reads, and what its status says.

Shares of traffic come from the pipeline's own ``rollout.steps``; this file says how long each step lasts and what must
be shown there. Rules: a signal that is missing, stale or not a number never passes, and its rule says whether it even
fails; every probability and every limit has a number.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml

Missing = Literal["inconclusive", "fail"]
Decision = Literal["pass", "fail", "inconclusive"]
RolloutState = Literal["none", "running", "promoted", "aborted", "rolled_back"]

WEEK_S = 604_800.0
DAY_S = 86_400.0
DWELL_S_MAX = 366 * DAY_S
METRICS_MAX = 32
NAME_LENGTH_MAX = 64


class ErrorRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests that failed through a stage or an engine; what the client got wrong does not count."""

    excess_max: float = 0.01
    """A step passes once the canary's failure rate is shown to be at most this far above the stable version's."""
    missing: Missing = "inconclusive"


class LatencyRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Copy and compute time at stages that differ, in batches of equal rows on the same engine."""

    slower_max: float = 0.25
    """Share by which the canary may be slower."""
    slower_max_ms: float = 0.5
    """And milliseconds by which it may be slower beside that: what gets a twentieth of the requests finds the
    processor's caches cold, which a model of some microseconds feels."""
    missing: Missing = "inconclusive"


class OutputRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers of both versions to the same input: requests of the stable version are asked again of the canary."""

    share: float = 0.05
    """Of the stable version's requests that are asked again, at most."""
    inflight_max: int = 2
    """Asked again at once, at most; and none while a queue is a quarter full."""
    tolerance: float = 1e-4
    """Relative L2 distance from which an answer is different; as it is, for versions of the same precision. Give one of
    another precision what it may be off: 0.01 is 40 dB."""
    different_max: float = 0.02
    """Share of answers that may be different."""
    pairs_min: int = 100
    missing: Missing = "inconclusive"


class MetricRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A business metric that somebody outside posts, one value per version."""

    better: Literal["higher", "lower"] = "higher"
    worse_max: float = 0.02
    """Share of the stable version's value by which the canary's may be worse."""
    age_max_s: float = 3600.0
    """Older values are stale."""
    missing: Missing = "inconclusive"


class RolloutPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a rollout is judged."""

    dwell_s: list[float] = msgspec.field(default_factory=lambda: [WEEK_S, DAY_S])
    """How long each step lasts at least; the last one stands for all that follow."""
    requests_min: int = 1000
    """Of the canary, at each step."""
    false_alarm: float = 0.001
    """Chance that a canary which is no worse is ever rolled back, over the whole rollout, by all signals together."""
    false_pass: float = 0.05
    """Chance, by signal and step, that one which is worse than allowed passes."""
    look_s: float = 1.0
    """How often the signals are looked at; the tests allow any number of looks."""
    errors: ErrorRule = ErrorRule()
    latency: LatencyRule | None = LatencyRule()
    """``null``: not looked at."""
    outputs: OutputRule | None = OutputRule()
    metrics: dict[str, MetricRule] = {}
    automatic: bool = True
    """Whether a step that passes is followed by the next; else `loadslice rollout promote` moves it. A failure always
    rolls back by itself."""


def load(path: Path) -> RolloutPlan:
    """Read and check a plan.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check(decode_yaml(path, RolloutPlan), str(path))


def check(plan: RolloutPlan, path: str) -> RolloutPlan:
    """Refuse what types cannot.

    Raises:
        InputError: The first fault found.
    """
    if not 1 <= len(plan.dwell_s) <= 100:
        raise InputError(f"{path}: dwell_s: one number of seconds or more, not {len(plan.dwell_s)}.")
    numbers: list[tuple[str, float, float, float]] = [
        (f"dwell_s[{index}]", dwell_s, 0, DWELL_S_MAX) for index, dwell_s in enumerate(plan.dwell_s)
    ]
    numbers += [
        ("requests_min", plan.requests_min, 1, 10**9),
        ("false_alarm", plan.false_alarm, 1e-9, 0.5),
        ("false_pass", plan.false_pass, 1e-9, 0.5),
        ("look_s", plan.look_s, 0.01, 3600),
        ("errors.excess_max", plan.errors.excess_max, 1e-6, 1),
    ]
    if plan.latency is not None:
        numbers.append(("latency.slower_max", plan.latency.slower_max, 0, 100))
        numbers.append(("latency.slower_max_ms", plan.latency.slower_max_ms, 0, 60_000))
    if (outputs := plan.outputs) is not None:
        numbers += [
            ("outputs.share", outputs.share, 1e-6, 1),
            ("outputs.inflight_max", outputs.inflight_max, 1, 64),
            ("outputs.tolerance", outputs.tolerance, 0, 10),
            ("outputs.different_max", outputs.different_max, 1e-6, 0.9),
            ("outputs.pairs_min", outputs.pairs_min, 1, 10**9),
        ]
    if len(plan.metrics) > METRICS_MAX:
        raise InputError(f"{path}: metrics: {len(plan.metrics)} are more than {METRICS_MAX}.")
    for name, rule in plan.metrics.items():
        if not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
            raise InputError(f"{path}: metrics: {name!r:.80} is not 1 to {NAME_LENGTH_MAX} printable characters.")
        numbers += [
            (f"metrics.{name}.worse_max", rule.worse_max, 0, 100),
            (f"metrics.{name}.age_max_s", rule.age_max_s, 0.01, DWELL_S_MAX),
        ]
    for key, value, low, high in numbers:
        if not (math.isfinite(value) and low <= value <= high):
            raise InputError(f"{path}: {key}: {value:g} is not between {low:g} and {high:g}.")
    return plan
