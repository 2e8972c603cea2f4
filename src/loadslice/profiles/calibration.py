"""How much slower than its roofline hardware really is, found from what was measured, and how well that carries over.

A time is modelled as ``sum over kinds of operators (slowness x roofline time) + launches x launch time + fixed part``.
The slownesses, the launch time and the fixed part are fitted by least squares on relative errors, none below 0, each
drawn weakly towards a common start, because few models hold every kind. Every family of models counts the same, however
many of its shapes were measured.

What a fit says of models it has seen is no evidence. So each family is left out in turn, and each device, and predicted
from the rest: the spread of those errors, widened for the small number they come from, is what a modelled time carries.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadslice.spec.device import Kind
from loadslice.spec.files import Stamp

PULL = 0.03
"""Weight of the common start against one family's error."""

FLOOR = 0.05
"""No coefficient falls below this share of its start: nothing is free."""

FIXED = "fixed"
LAUNCH = "launch"

_START_MS: dict[Kind, dict[str, float]] = {
    "cpu": {LAUNCH: 0.002, FIXED: 0.01},
    "gpu": {LAUNCH: 0.005, FIXED: 0.02},
    "npu": {LAUNCH: 0.01, FIXED: 0.3},
}


class Observation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model, or one stretch of kernels, timed on one device."""

    kind: Kind
    device: str
    """Name in the catalogue, or of the machine."""
    family: str
    """Models of one family are left out together: sizes of one architecture are near-copies."""
    model: str
    precision: str
    """It computed at."""
    roofline_ms: dict[str, float]
    """By kind of operator."""
    launches: int
    whole: bool = True
    """A call with its fixed costs; false: kernels alone."""
    time_ms: float
    cv: float | None = None
    """Spread of single runs, where it was measured alone."""
    source: str


class Fit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was fitted for one kind of device."""

    slowness: dict[str, float]
    """By kind of operator: time per unit of roofline time."""
    launch_ms: float
    fixed_ms: float
    """Of one call, beside launches and transfers."""
    otherwise: float
    """Slowness of kinds of operators that were not measured: that of all together."""
    between_kinds_sd: float
    """Spread of the logarithm of slowness between kinds: what is unknown of a kind that was not measured."""


class Errors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How well the rest predicts what is left out: logarithms of (measured / modelled)."""

    model_sd: float
    families: int
    device_sd: float | None
    """``None``: one device was measured, nothing is known of others."""
    devices: int


class Kindly(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Calibration of one kind of device."""

    fit: Fit
    errors: Errors
    precision: str
    """It was fitted at."""
    precision_sd: float | None
    """How far off it is at another (log sd); ``None``: nobody knows."""
    cv: float
    """Spread of single runs."""
    devices: list[str]
    what: str
    """What it was calibrated on, for the reader."""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file: observations, and what follows from them."""

    stamp: Stamp
    command: str
    kinds: dict[Kind, Kindly]
    observations: list[Observation]

    def sources(self, kind: str) -> list[str]:
        """Where the times come from that a kind was fitted on: work over the roof, launches and the fixed part."""
        return list(dict.fromkeys(each.source for each in self.observations if each.kind == kind))


def shipped() -> Calibration:
    """The calibration that comes with the package."""
    text = resources.files(__package__).joinpath("calibration.json").read_bytes()
    return msgspec.json.decode(text, type=Calibration)


def calibrate(
    observations: Sequence[Observation], what: str, between_kinds_sd: float = 0.0, precision_sd: float | None = None
) -> Kindly:
    """Fit one kind of device and find how far off the fit is elsewhere.

    Args:
        observations: Of one kind of device and one precision; at least two families.
        what: For the reader.
        precision_sd: Spread between precisions, see `between_precisions`.
        between_kinds_sd: How far kinds of operators are apart on a device where most of them were measured: a kind of
            device with two or three of them cannot know it better.
    """
    fitted = fit(observations)
    return Kindly(
        fit=msgspec.structs.replace(fitted, between_kinds_sd=max(fitted.between_kinds_sd, between_kinds_sd)),
        errors=errors(observations),
        precision=observations[0].precision,
        precision_sd=precision_sd,
        cv=float(np.median([each.cv for each in observations if each.cv is not None] or [0.1])),
        devices=sorted({each.device for each in observations}),
        what=what,
    )


def between_precisions(observations: Sequence[Observation], base: str) -> float | None:
    """How far a fit at one precision is off at others; ``None``: only one was measured.

    Args:
        observations: Of one kind of device, at several precisions.
        base: That is fitted at.
    """
    fitted = fit([each for each in observations if each.precision == base])
    others: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in observations:
        if each.precision != base:
            others[each.device, each.precision].append(error(fitted, each))
    return spread(float(np.mean(offs)) for offs in others.values()) if others else None


def fit(observations: Sequence[Observation]) -> Fit:
    """Least squares on relative errors.

    Args:
        observations: At least one, all of one kind of device.
    """
    kinds = sorted({kind for each in observations for kind in each.roofline_ms})
    columns = [*kinds, LAUNCH, FIXED]
    size: dict[str, int] = defaultdict(int)
    for each in observations:
        size[each.family] += 1
    weight = np.array([1 / math.sqrt(size[each.family]) for each in observations])
    rows = np.array([_row(each, kinds) for each in observations])
    times = np.array([each.time_ms for each in observations])
    # Where the fixed part and the launches explain all of a time, its ratio says nothing of arithmetic.
    share = rows[:, : len(kinds)].sum(axis=1) / times
    common = float(np.exp(-np.average(np.log(np.maximum(share, 1e-3)), weights=weight**2)))
    start_ms = _START_MS[observations[0].kind]
    start = np.array([*[common] * len(kinds), start_ms[LAUNCH], start_ms[FIXED]])
    scaled = rows * start / times[:, None] * weight[:, None]
    found = start * _bounded_least_squares(
        np.vstack([scaled, math.sqrt(PULL) * np.eye(len(columns))]),
        np.concatenate([weight, np.full(len(columns), math.sqrt(PULL))]),
    )
    # Relative errors punish a time that is too long more than one too short; what is stated is to be off either way.
    found *= np.exp(np.average(np.log(times / (rows @ found)), weights=weight**2))
    slowness = {kind: float(value) for kind, value in zip(kinds, found, strict=False)}
    logs = [math.log(value) for value in slowness.values()]
    return Fit(
        slowness=slowness,
        launch_ms=float(found[-2]),
        fixed_ms=float(found[-1]),
        otherwise=common,
        between_kinds_sd=float(np.std(logs, ddof=1)) if len(logs) > 1 else 1.0,
    )


def _row(each: Observation, kinds: Sequence[str]) -> list[float]:
    return [*(each.roofline_ms.get(kind, 0.0) for kind in kinds), each.launches, float(each.whole)]


def _bounded_least_squares(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimise |matrix x - target| with every x at least `FLOOR`, by coordinate descent: convex, few unknowns."""
    found = np.ones(matrix.shape[1])
    norms = (matrix**2).sum(axis=0)
    for _ in range(2000):
        before = found.copy()
        for column, norm in enumerate(norms):
            rest = target - matrix @ found + matrix[:, column] * found[column]
            found[column] = max(FLOOR, float(matrix[:, column] @ rest) / float(norm))
        if np.abs(found - before).max() < 1e-9:
            break
    return found


def time_ms(fitted: Fit, roofline_ms: Mapping[str, float], launches: int, *, whole: bool = True) -> float:
    """A modelled time.

    Args:
        fitted: Of the device's kind.
        roofline_ms: By kind of operator.
        launches: Kernels.
        whole: With the fixed part of a call.
    """
    arithmetic = sum(fitted.slowness.get(kind, fitted.otherwise) * ms for kind, ms in roofline_ms.items())
    return arithmetic + launches * fitted.launch_ms + (fitted.fixed_ms if whole else 0.0)


def errors(observations: Sequence[Observation]) -> Errors:
    """Leave each family out in turn, then each device; the spread of what the rest says of it.

    A device's mean error holds some of its families' errors, the fewer they are the more; that part is taken out, so
    that it does not count twice.
    """
    by_family = left_out(observations, lambda each: each.family)
    by_device = left_out(observations, lambda each: each.device)
    model_sd = spread(by_family.values())
    device_sd = None
    if len(by_device) > 1:
        families = [len({each.family for each in observations if each.device == name}) for name in by_device]
        shared = model_sd**2 * float(np.mean([1 / count for count in families]))
        device_sd = math.sqrt(max(spread(by_device.values()) ** 2 - shared, (LEAST_SHARE * model_sd) ** 2))
    return Errors(model_sd=model_sd, families=len(by_family), device_sd=device_sd, devices=len(by_device))


LEAST_SHARE = 0.25
"""Of the spread between models, the least that devices are taken to differ by: taking out may leave nothing."""


def left_out(observations: Sequence[Observation], group: Callable[[Observation], str]) -> dict[str, float]:
    """Error of each group when it is predicted from all others: mean of log(measured / modelled) over its members.

    Args:
        observations: Of one kind of device.
        group: What an observation is left out with.
    """
    members: dict[str, list[Observation]] = defaultdict(list)
    for each in observations:
        members[group(each)].append(each)
    if len(members) < 2:
        return dict.fromkeys(members, 0.0)
    found = {}
    for name, out in members.items():
        fitted = fit([each for each in observations if group(each) != name])
        found[name] = float(np.mean([error(fitted, each) for each in out]))
    return found


def novelty(fitted: Fit, roofline_ms: Mapping[str, float]) -> float:
    """Share of a time's arithmetic, 0 to 1, that is in kinds of operators which were not measured."""
    times = {kind: fitted.slowness.get(kind, fitted.otherwise) * ms for kind, ms in roofline_ms.items()}
    total = sum(times.values())
    return sum(ms for kind, ms in times.items() if kind not in fitted.slowness) / total if total else 0.0


def covered(observations: Sequence[Observation], between_kinds_sd: float = 0.0) -> dict[str, bool]:
    """Whether the 90 % interval that the other families would have stated holds each family's error.

    Args:
        observations: Of one kind of device, of at least three families.
        between_kinds_sd: As for `calibrate`.
    """
    found = {}
    for family, off in left_out(observations, lambda each: each.family).items():
        rest = [each for each in observations if each.family != family]
        others = left_out(rest, lambda each: each.family)
        fitted = fit(rest)
        own = [each for each in observations if each.family == family]
        novel = float(np.mean([novelty(fitted, each.roofline_ms) for each in own]))
        stated_sd = math.hypot(spread(others.values()), novel * max(fitted.between_kinds_sd, between_kinds_sd))
        found[family] = abs(off) <= t_90(max(1, len(others) - 1)) * stated_sd
    return found


def error(fitted: Fit, each: Observation) -> float:
    """log(measured / modelled)."""
    return math.log(each.time_ms / time_ms(fitted, each.roofline_ms, each.launches, whole=each.whole))


def spread(logs: Iterable[float]) -> float:
    """Standard deviation around 0 of one more such error: sqrt(mean square x (1 + 1/n))."""
    values = np.array(list(logs))
    return float(math.sqrt(np.mean(values**2) * (1 + 1 / len(values))))


_T_90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
NORMAL_90 = 1.645


def t_90(freedom: int) -> float:
    """How many standard deviations to either side hold 90 % (Student's t); beyond the table within 1 %."""
    return _T_90[freedom - 1] if freedom <= len(_T_90) else NORMAL_90 * (1 + 1.1 / freedom)
