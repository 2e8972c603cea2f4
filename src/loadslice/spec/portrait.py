"""The portrait file: what a load looks like, with the evidence for every verdict. Unknown is null, never 0."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json
from loadslice.spec.token_load import TokenLoad

HOURS_PER_WEEK = 168

QUANTILE_POINTS = tuple([0.0, 0.001, 0.005] + [percent / 100 for percent in range(1, 100)] + [0.995, 0.999, 1.0])
"""Where `Distribution.quantiles` are taken; dense at both ends so that a drawn tail is as long as the recorded one."""

ArrivalClass = Literal["uniform", "bursty", "tidal", "sparse"]
LatencyClass = Literal["interactive", "online", "offline"]
"""interactive: within 500 ms; online: within 5 s; offline: later."""
PrecisionClass = Literal["fp32", "fp16", "int8", "int4"]
BoundClass = Literal["compute", "memory_bandwidth", "memory_size", "io", "unknown"]


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests per second."""

    mean: float | None
    peak_1m: float | None
    """Busiest 60 s, wherever they begin; null in a shorter trace."""
    peak_1h: float | None
    peak_to_mean: float | None
    """`peak_1m / mean`."""


class Arrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How requests arrive."""

    class_: ArrivalClass = msgspec.field(name="class")
    why: str
    """The rule that gave the class, with its numbers."""
    interarrival_cv: float | None
    """Standard deviation over mean of the gaps; 1 for a Poisson process."""
    interarrival_cv_detrended: float | None
    """The same after dividing out the hourly rate: burstiness without the tide."""
    dispersion: float | None
    """Variance over mean of the counts in windows of about ten requests; 1 for a Poisson process."""
    hour_of_week: list[float | None]
    """Mean requests per second in each of 168 hours; null where the trace does not reach."""
    hour_of_week_origin: Literal["monday_00_utc", "first_request"]
    tick_ms: float | None
    """Recorded times came in ticks of this length and were spread inside them; null: they did not."""


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of requests."""

    mean: float
    p50: float
    p99: float
    max: float
    quantiles: list[float]
    """Values at `QUANTILE_POINTS`."""


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Percentiles of the recorded latency, milliseconds."""

    p50: float
    p95: float
    p99: float


class Water(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Work that one hour of the week asks for, at one latency and one precision class."""

    hour: int
    """Hour of the week, counted as in `Arrival.hour_of_week`."""
    latency_class: LatencyClass | None
    precision_class: PrecisionClass | None
    requests_per_s: float
    requests_per_s_peak_1m: float | None = None
    """Busiest whole minute of that hour, all classes together."""
    work_flop_per_s: float | None = None
    """Modelled: FLOPs per item of the inspected model times items per second."""
    work_tokens_per_s: float | None = None


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the service runs out of first."""

    class_: BoundClass = msgspec.field(name="class")
    evidence: str


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One sampled resource over the whole recording, in the unit its key names."""

    mean: float
    p50: float
    p95: float
    max: float


class UtilisationHour(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Mean of every resource in one hour since the first sample."""

    hour: int
    mean: dict[str, float | None]


class Utilisation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sampled resources; keys end in `_pct` or `_w`."""

    samples: int
    span_s: float
    series: dict[str, Series]
    curve: list[UtilisationHour]


class ModelDimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Scale and structure of the model, from `loadslice inspect`."""

    model: str
    sha256: str | None = None
    parameters: int | None = None
    weight_bytes: int | None = None
    flop_per_item: float | None = None
    intensity_flop_per_byte: float | None = None
    precision: PrecisionClass | None = None


class ArrivalDimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Arrival pattern in one line."""

    class_: ArrivalClass = msgspec.field(name="class")
    rate_per_s_mean: float | None
    peak_to_mean: float | None
    interarrival_cv: float | None


class LatencyDimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How quickly answers are wanted."""

    basis: Literal["stated", "deadline_ms", "latency_ms"]
    """An objective the user stated, the deadlines requests carry, or (an upper bound) the latency they got."""
    budget_ms_p50: float
    share: dict[LatencyClass, float]


class BatchDimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows of work per request."""

    items_mean: float
    items_p99: float


class PrecisionDimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known about precision."""

    native: PrecisionClass | None
    """Weights of the model as it is."""
    tolerated: PrecisionClass | None
    """The lowest that answers right: stated by the user, or null until `loadslice squeeze` measured it."""


class EnvironmentDimension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits around the machines, as far as recorded."""

    power_w_p95: float | None = None
    """Sampled while the load was recorded."""
    power_per_box_w: float | None = None
    """Limit of the budget file, as the three below."""
    power_per_rack_w: float | None = None
    cooling_factor: float | None = None
    people: int | None = None


class Dimensions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The six dimensions; a null one has no evidence yet."""

    model: ModelDimension | None
    arrival: ArrivalDimension
    latency: LatencyDimension | None
    batch: BatchDimension | None
    precision: PrecisionDimension | None
    environment: EnvironmentDimension | None


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something to know before believing or using the portrait."""

    code: str
    text: str
    evidence: dict[str, Any]


class Portrait(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a load looks like; every figure is measured from the trace unless its comment says modelled."""

    stamp: Stamp
    trace: str
    start_utc: str | None
    requests: int
    span_s: float
    rate_per_s: Rate
    arrival: Arrival
    items: Distribution | None
    tokens_in: Distribution | None
    tokens_out: Distribution | None
    size_rank_correlation: dict[str, float]
    """Spearman correlation of each pair of size columns, keyed `a,b`."""
    class_share: dict[str, float] | None
    latency_ms: Latency | None
    stage_share: dict[str, float] | None
    waterline: list[Water]
    bound: Bound
    utilisation: Utilisation | None
    dimensions: Dimensions
    findings: list[Finding]
    tokens: TokenLoad | None = None
    """Null: not the load of a language model."""


def load(path: Path) -> Portrait:
    """Read a portrait written by `loadslice portrait --json` or `--out`.

    Raises:
        InputError: Not a portrait of this version.
    """
    portrait = decode_json(path, Portrait)
    if len(portrait.arrival.hour_of_week) != HOURS_PER_WEEK:
        raise InputError(f"{path}: arrival.hour_of_week: {len(portrait.arrival.hour_of_week)} hours, not 168.")
    return portrait
