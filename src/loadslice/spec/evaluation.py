"""The evaluation file: which placements of one model are compared, on what, and what may not differ between them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.address import web_address
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml

LayerName = Literal["correctness", "latency", "ramp", "soak", "abnormal", "attribution", "replay"]
LAYERS: tuple[LayerName, ...] = ("correctness", "latency", "ramp", "soak", "abnormal", "attribution")
"""The six layers in the order they run; ``replay`` is asked for by name and runs last."""

BuiltIn = Literal["one-engine", "sliced", "dual-bank"]
Scenario = Literal["interactive", "offline", "multi-user", "edge"]

PLACEMENTS_MAX = 12
REPEATS_MAX = 50

VARIABLES = (
    "placement", "model", "scheme", "inputs", "context_tokens", "generation_tokens", "sampling",
    "driver", "runtime", "toolchain", "system", "processor", "memory_clock", "clock_policy", "power_policy", "cooling",
)  # fmt: skip
"""What is held fixed between placements, and against a baseline; exactly one of them is varied."""


class Ease(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What living with a placement asks of people, where the files do not show it."""

    code_changes: int | None = None
    """Lines of the service's own code that had to change."""
    recompiles: bool | None = None
    """A change of mode needs the model to be compiled anew."""
    dynamic_batching: bool | None = None
    clarity: float | None = None
    """How clear its configuration is, 0 to 1, in the reader's own judgement."""


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a placement costs while it is there."""

    per_hour: float | None = None
    """Money."""
    power_w: float | None = None


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way to run the model; exactly one of pipeline, url and built_in."""

    name: str
    pipeline: str | None = None
    """A pipeline file, served by the evaluation itself on this machine."""
    url: str | None = None
    """A server that is already there."""
    built_in: BuiltIn | None = None
    """Made from ``model``: on one engine, cut in two stages, or on two engines that share the requests."""
    backend: str = "onnxruntime"
    """Of a built-in placement."""
    threads: int = 1
    """Of each engine of a built-in placement."""
    dilate: float = 1.0
    """Seconds here for one on emulated devices."""
    ease: Ease = Ease()
    cost: Cost = Cost()
    fixed: dict[str, str | int | float] = {}
    """Fixed variables that only you know, such as ``driver`` of a remote machine."""


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Language models: what must be the same in every request."""

    context_tokens: int | None = None
    generation_tokens: int | None = None
    sampling: str | None = None
    """For instance ``greedy`` or ``temperature=0.7,seed=1``."""


class Floors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What must be kept, against the reference unless an absolute figure is given."""

    throughput_ratio: float = 0.95
    """Most throughput of a placement over the reference's."""
    latency_ratio: float = 1.05
    """Median of single requests over the reference's, at most."""
    metric: float | None = None
    """Task metric (share right), at least."""
    metric_loss: float = 0.01
    """How far the task metric may fall below the reference's."""
    p95_ms: float | None = None
    """Single requests, at most."""
    error_rate: float = 0.01


class Soak(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long, and what counts as drift."""

    for_s: float = 60.0
    drift_pct_per_hour: float = 200.0
    """A latency whose slope is surely steeper decays; a short soak cannot show less than its own noise."""
    growth_pct_per_hour: float = 200.0
    """The same of memory."""


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole evaluation file."""

    version: Literal[1]
    placements: list[Placement]
    model: str | None = None
    """What built-in placements are made of: a path relative to this file, or ``package:NAME/PATH``."""
    scheme: str | None = None
    """The one quantisation, for instance ``int8``."""
    inputs: str | None = None
    """``module:function`` beside this file; default: that of the reference's pipeline."""
    reference: str | None = None
    """Name of the placement that others are compared with; default: the first."""
    varied: str = "placement"
    layers: list[LayerName] = msgspec.field(default_factory=lambda: list(LAYERS))
    repeats: int = 3
    """Repeats of single requests until their median is known well enough, at most."""
    requests: int = 60
    """Single requests per repeat."""
    step_s: float = 4.0
    """Seconds per step of the ramp."""
    clients_max: int = 64
    soak: Soak = Soak()
    timeout_s: float = 10.0
    """An answer that takes longer counts as a hang."""
    trace: str | None = None
    """For the layer ``replay``."""
    replay_s: float = 20.0
    speed: float = 1.0
    lengths: Lengths = Lengths()
    floors: Floors = Floors()
    scenario: Scenario = "interactive"
    weights: dict[str, float] = {}
    """Of the dimensions, over those of the scenario."""
    seed: int = 0

    @property
    def reference_name(self) -> str:
        """The placement that others are compared with."""
        return self.reference or self.placements[0].name


DIMENSIONS = ("correctness", "performance", "resources", "stability", "observability", "compatibility", "cost")


def load(path: Path) -> Evaluation:
    """Read and check an evaluation file.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check(decode_yaml(path, Evaluation), str(path))


def check(wanted: Evaluation, path: str) -> Evaluation:
    """Refuse what types cannot.

    Raises:
        InputError: The first fault found.
    """
    if not 1 <= len(wanted.placements) <= PLACEMENTS_MAX:
        raise InputError(f"{path}: placements: {len(wanted.placements)}; give 1 to {PLACEMENTS_MAX}.")
    for index, placement in enumerate(wanted.placements):
        _check_placement(placement, wanted, f"{path}: placements[{index}]")
    names = [placement.name for placement in wanted.placements]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path}: placements: '{name}' is there twice.")
    if wanted.reference is not None and wanted.reference not in names:
        raise InputError(f"{path}: reference: '{wanted.reference}' is not a placement ({', '.join(names)}).")
    if wanted.varied not in VARIABLES:
        raise InputError(f"{path}: varied: '{wanted.varied}' is not one of {', '.join(VARIABLES)}.")
    if not wanted.layers or len(set(wanted.layers)) < len(wanted.layers):
        raise InputError(f"{path}: layers: name each of {', '.join(LAYERS)}, replay at most once, and at least one.")
    if "replay" in wanted.layers and wanted.trace is None:
        raise InputError(f"{path}: layers: 'replay' needs `trace: FILE`.")
    for key in wanted.weights:
        if key not in DIMENSIONS:
            raise InputError(f"{path}: weights: '{key}' is not one of {', '.join(DIMENSIONS)}.")
    _check_numbers(wanted, path)
    return wanted


def _check_placement(placement: Placement, wanted: Evaluation, place: str) -> None:
    if not placement.name or not all(letter.isalnum() or letter in "._-" for letter in placement.name):
        raise InputError(f"{place}.name: '{placement.name}' must be letters, digits, dots and dashes.")
    given = [key for key in ("pipeline", "url", "built_in") if getattr(placement, key) is not None]
    if len(given) != 1:
        raise InputError(f"{place}: give one of pipeline, url and built_in, not {len(given)}.")
    if placement.built_in is not None and wanted.model is None:
        raise InputError(f"{place}.built_in: '{placement.built_in}' is made from a model. Add `model: FILE.onnx`.")
    if placement.url is not None:
        web_address(placement.url, f"{place}.url:")
    for key in placement.fixed:
        if key not in VARIABLES or key == "placement":
            raise InputError(f"{place}.fixed: '{key}' is not one of {', '.join(VARIABLES[1:])}.")
    _within(place, {"dilate": placement.dilate}, 1, 1000)
    _within(place, {"threads": placement.threads}, 1, 1024)
    _within(place, {"cost.per_hour": placement.cost.per_hour, "cost.power_w": placement.cost.power_w}, 0, 1e9)
    _within(place, {"ease.clarity": placement.ease.clarity}, 0, 1)


def _check_numbers(wanted: Evaluation, path: str) -> None:
    floors = wanted.floors
    _within(path, {"repeats": wanted.repeats}, 1, REPEATS_MAX)
    _within(path, {"requests": wanted.requests}, 3, 100_000)
    _within(path, {"step_s": wanted.step_s, "soak.for_s": wanted.soak.for_s}, 0.2, 86_400)
    _within(path, {"replay_s": wanted.replay_s}, 1, 86_400)
    _within(path, {"timeout_s": wanted.timeout_s}, 0.1, 600)
    _within(path, {"clients_max": wanted.clients_max}, 1, 256)
    _within(path, {"speed": wanted.speed}, 1e-3, 1e6)
    _within(path, {f"weights.{key}": value for key, value in wanted.weights.items()}, 0, 100)
    shares = {"floors.metric": floors.metric, "floors.error_rate": floors.error_rate}
    _within(path, {**shares, "floors.metric_loss": floors.metric_loss}, 0, 1)
    ratios = {"floors.throughput_ratio": floors.throughput_ratio, "floors.latency_ratio": floors.latency_ratio}
    _within(path, ratios, 0, 1000)
    limits = {"soak.drift_pct_per_hour": wanted.soak.drift_pct_per_hour}
    _within(path, {**limits, "soak.growth_pct_per_hour": wanted.soak.growth_pct_per_hour}, 0, 1e6)


def _within(place: str, values: Mapping[str, float | None], low: float, high: float) -> None:
    """Refuse the first number outside ``low .. high``; NaN is outside everything."""
    for key, value in values.items():
        if value is not None and not low <= value <= high:
            raise InputError(f"{place}: {key}: {value:g} is not between {low:g} and {high:g}.")
