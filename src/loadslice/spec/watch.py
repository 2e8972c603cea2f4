"""Watching a server: what is looked at in its answers, how far it may move from a baseline, and what is said then.

Rules: nothing is said below the minimum sample; a distance that matters and evidence that it is no chance are both
needed for an alarm; an alarm is a message and nothing else.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json, decode_yaml

BASELINE_SCHEMA = "watch-baseline/1"
REPORT_SCHEMA = "watch/1"

Take = Literal["mean", "min", "max", "rows", "characters", "max_probability", "entropy", "class"]

SIGNALS_MAX = 32
NAME_LENGTH_MAX = 64
MINIMUM_MIN = 100
"""Below that no test of a distribution says anything at the error rates that are asked for here."""
HORIZON_SAMPLES = 100_000
"""What a false alarm's chance is counted over."""


class Signal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One value of each answer."""

    name: str
    output: str
    """Which output of the answer it is taken from."""
    take: Take
    """mean, min, max: of all its numbers. rows: how many. characters: mean length of its texts. max_probability,
    entropy (nats), class: of the last dimension, which softmax makes probabilities unless it holds such already; over
    several rows their mean, or the most frequent class."""
    abstains_below: float | None = None
    """An answer whose value lies below, or that has none, is an abstention."""


class Least(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Smallest distances from the baseline that matter; evidence of a smaller one raises nothing."""

    psi: float = 0.1
    """Population stability index over the baseline's deciles: the customary limit of "small change"."""
    ks: float = 0.08
    """Largest difference between the two distribution functions."""
    shift: float = 0.04
    """Of the mean rank in the baseline, which is 0.5 there: a typical answer moves past 1 in 25 of the old."""
    share: float = 0.05
    """Of answers that changed class, or that abstain."""


class Operating(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far figures of operation may leave the range they had in the baseline; ``None``: not looked at."""

    temperature_rise_c: float | None = 10.0
    """Hottest sensor above the baseline's highest. A fan that stops costs more, a warmer room less."""
    power_ratio: float | None = 1.2
    """Against the baseline's highest; meters and tools differ by a tenth."""
    memory_ratio: float | None = 1.25
    """Memory in use, against the baseline's highest: a leak passes it, a busy hour does not."""
    rate_ratio: float | None = 2.0
    """Requests per second above the baseline's highest, or below its lowest divided by this twice."""
    latency_ratio: float | None = 1.5
    """P95 of completed requests against the baseline's highest."""
    error_excess: float | None = 0.01
    """Share of requests that failed, were refused, shed or expired above the baseline's, and beyond chance."""
    looks: int = 3
    """In a row that a figure must be out of its range."""
    requests_min: int = 100
    """Between two looks, below which latency and errors say nothing."""


class WatchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``watch.yaml``: what a server samples, and what is made of it."""

    signals: list[Signal] = []
    samples_per_s: float = 50.0
    """Answers that are looked at, at most."""
    minimum: int = 500
    """Samples before anything is said, and in each window that is tested."""
    false_alarm: float = 0.001
    """Chance of any false alarm in 100,000 samples, by all tests together."""
    adwin_delta: float = 0.002
    """Of each detector of changing means (Bifet and Gavalda 2007); 0 false alarms in 100,000 were measured with it."""
    least: Least = Least()
    operating: Operating = Operating()


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """What was taken from one answer."""

    number: int
    """Of the server's run, from 1."""
    at_s: float
    """On the server's clock."""
    version: str | None
    """stable or canary; ``None``: there is one version."""
    values: list[float | None]
    """In order of the plan's signals; ``None``: the answer has no such value."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """What a server gives of its samples."""

    plan: WatchPlan
    pipeline: str
    basis: Literal["measured", "emulated"]
    taken: int
    """So far, those included that are not kept any more."""
    samples: list[Sample]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of operation between two looks; ``None``: unknown, ``absent`` says why."""

    requests: int | None = None
    rate_per_s: float | None = None
    error_share: float | None = None
    latency_ms_p95: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    memory_bytes: int | None = None
    absent: dict[str, str] = {}


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure was in the baseline."""

    low: float
    high: float
    readings: int


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """``baseline.json``: what answers and operation were when all was well."""

    plan: WatchPlan
    pipeline: str
    basis: Literal["measured", "emulated"]
    taken: int
    """Answers that it was made from."""
    rows: list[list[float | None]]
    """Of them, evenly chosen, in order: one value per signal."""
    clumping: list[float]
    """By signal: how many times the variance of window means is that of independent answers; at least 1. Evidence from
    answers that come in clumps counts for that many times less."""
    operating: dict[str, Range] = {}
    absent: dict[str, str] = {}
    """Figures that could not be read, and why."""
    stamp: Stamp | None = None


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it was."""

    what: str
    """Signal or figure, with its class where it is about one."""
    test: str
    """adwin, psi, ks, classes, abstention, or the rule of operation."""
    state: Literal["firing", "resolved"]
    text: str
    samples: int | None
    """Samples seen when it was said."""
    figures: dict[str, float | int | None]
    at_s: float | None
    """Of the sample that brought it, on the server's clock; ``None``: of a figure, which two looks are about."""
    said_utc: str | None = None
    """When it was said (ISO 8601); ``None``: of samples that had been kept."""


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """What the rollout says of two versions on the same minutes; the only ground for going back."""

    state: str
    decision: str
    why: str
    told: dict[str, float] = {}
    """Values that the watch has handed to it, by version."""


class WatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a watch saw."""

    source: str
    pipeline: str
    basis: Literal["measured", "emulated"]
    samples: int
    minimum: int
    quiet: bool
    """Fewer samples than the minimum: nothing can be said of answers yet."""
    alerts: list[Alert]
    firing: int
    looks: int
    """Windows of answers that were tested."""
    missed: int = 0
    """Samples that the server had dropped before they were fetched."""
    absent: dict[str, str] = {}
    contrast: Contrast | None = None
    advice: str
    stamp: Stamp | None = None


def load_plan(path: Path) -> WatchPlan:
    """Read and check a plan.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check_plan(decode_yaml(path, WatchPlan), str(path))


def check_plan(plan: WatchPlan, place: str) -> WatchPlan:
    """Refuse what types cannot.

    Raises:
        InputError: The first fault found.
    """
    if not 1 <= len(plan.signals) <= SIGNALS_MAX:
        raise InputError(f"{place}: signals: one to {SIGNALS_MAX} are needed, not {len(plan.signals)}.")
    names = [signal.name for signal in plan.signals]
    for name in names:
        if not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
            raise InputError(f"{place}: signals: {name!r:.80} is not 1 to {NAME_LENGTH_MAX} printable characters.")
        if names.count(name) > 1:
            raise InputError(f"{place}: signals: '{name}' is there twice.")
    for signal in plan.signals:
        if signal.abstains_below is not None and (signal.take == "class" or not math.isfinite(signal.abstains_below)):
            raise InputError(
                f"{place}: signals: '{signal.name}': abstains_below needs a number and a signal of numbers."
            )
    if sum(signal.take == "class" for signal in plan.signals) > 1:
        raise InputError(f"{place}: signals: more than one takes a class; figures by class would be ambiguous.")
    least, operating = plan.least, plan.operating
    bounds = [
        ("samples_per_s", plan.samples_per_s, 0.001, 10_000),
        ("minimum", plan.minimum, MINIMUM_MIN, 1_000_000),
        ("false_alarm", plan.false_alarm, 1e-9, 0.5),
        ("adwin_delta", plan.adwin_delta, 1e-12, 0.5),
        ("least.psi", least.psi, 0, 100),
        ("least.ks", least.ks, 0, 1),
        ("least.shift", least.shift, 0, 0.5),
        ("least.share", least.share, 0, 1),
        ("operating.looks", operating.looks, 1, 1000),
        ("operating.requests_min", operating.requests_min, 1, 10**9),
    ]
    bounds += [
        (f"operating.{key}", value, low, high)
        for key, value, low, high in (
            ("temperature_rise_c", operating.temperature_rise_c, 0.0, 200.0),
            ("power_ratio", operating.power_ratio, 1.0, 100.0),
            ("memory_ratio", operating.memory_ratio, 1.0, 1000.0),
            ("rate_ratio", operating.rate_ratio, 1.0, 1e6),
            ("latency_ratio", operating.latency_ratio, 1.0, 1e6),
            ("error_excess", operating.error_excess, 0.0, 1.0),
        )
        if value is not None
    ]
    for key, number, low, high in bounds:
        if not (math.isfinite(number) and low <= number <= high):
            raise InputError(f"{place}: {key}: {number:g} is not between {low:g} and {high:g}.")
    return plan


def load_baseline(path: Path) -> Baseline:
    """Read and check a baseline.

    Raises:
        InputError: Not one, or one whose rows do not go with its signals.
    """
    baseline = decode_json(path, Baseline)
    check_plan(baseline.plan, f"{path}: plan")
    signals = len(baseline.plan.signals)
    if any(len(row) != signals for row in baseline.rows) or len(baseline.clumping) != signals:
        raise InputError(f"{path}: rows: each needs {signals} values, one per signal. Record it again.")
    if any(not (math.isfinite(one) and one >= 1) for one in baseline.clumping):
        raise InputError(f"{path}: clumping: numbers of at least 1 are needed. Record it again.")
    if len(baseline.rows) < baseline.plan.minimum:
        raise InputError(
            f"{path}: {len(baseline.rows)} answers are fewer than the minimum of {baseline.plan.minimum}; "
            "record more with `loadslice watch baseline`."
        )
    return baseline
