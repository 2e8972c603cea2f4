"""What a latency table does not know: draws of tables that could as well be true, and the interval of one time.

A modelled time is off by a factor. Its logarithm is drawn as Student's t times the stated standard deviation, once per
device and once per model on it (`loadslice.spec.latency.ModelError`), so that a planner that simulates several draws
sees plans fail together where they would. Measured entries stay as they are.
"""

import math

import msgspec
import numpy as np

from loadslice.spec.latency import Entry, LatencyTable, Milliseconds, ModelError

FACTOR_MAX = 100.0
"""A draw further off than this, which Student's t with few degrees of freedom allows, is cut."""


def perturbed(table: LatencyTable, rng: np.random.Generator) -> LatencyTable:
    """The table as it could truly be: every modelled time, and its energy, times the factors drawn for it.

    Args:
        table: Any; one without `ModelError` comes back as it is, and draws nothing.
        rng: Draws one number per device, one per device for its power, and one per model on a device, in the order in
            which they first stand in the table.
    """
    if not any(entry.error for entry in table.entries):
        return table
    drawn = factors(table, rng)
    entries = [
        entry if factor is None else scaled(entry, *factor) for entry, factor in zip(table.entries, drawn, strict=True)
    ]
    return msgspec.structs.replace(table, entries=entries)


def factors(table: LatencyTable, rng: np.random.Generator) -> list[tuple[float, float] | None]:
    """For each entry the factor on its time and the further one on its power; ``None``: it has no error.

    Args:
        table: As for `perturbed`.
        rng: As for `perturbed`.
    """
    devices: dict[str, tuple[float, float]] = {}
    models: dict[tuple[str, str], float] = {}
    found: list[tuple[float, float] | None] = []
    for entry in table.entries:
        error = entry.error
        if error is None:
            found.append(None)
            continue
        if error.device not in devices:
            devices[error.device] = float(rng.standard_t(error.freedom)), float(rng.standard_normal())
        key = (entry.variant, error.device)
        if key not in models:
            models[key] = float(rng.standard_t(error.freedom))
        on_device, on_power = devices[error.device]
        time = _bounded(error.device_sd * on_device + error.model_sd * models[key])
        found.append((time, _bounded(error.power_sd * on_power)))
    return found


def interval(entry: Entry, points: float) -> tuple[float, float]:
    """Factors on a time between which the truth lies.

    Args:
        entry: Any; without an error both factors are 1.
        points: How many standard deviations to either side, from the t distribution of its ``freedom``.
    """
    return (1.0, 1.0) if entry.error is None else bounds(entry.error, points)


def bounds(error: ModelError, points: float) -> tuple[float, float]:
    """Factors on a time of that error, ``points`` standard deviations to either side."""
    half = points * math.hypot(error.device_sd, error.model_sd)
    return math.exp(-half), math.exp(half)


def scaled(entry: Entry, time: float, power: float = 1.0) -> Entry:
    """An entry whose times are ``time`` and whose power is ``power`` as large; its energy follows both."""
    return msgspec.structs.replace(
        entry,
        latency_ms=_times(entry.latency_ms, time),
        contended_ms=None if entry.contended_ms is None else _times(entry.contended_ms, time),
        energy_j=None if entry.energy_j is None else entry.energy_j * time * power,
    )


def _times(times: Milliseconds, factor: float) -> Milliseconds:
    known = {key: getattr(times, key) for key in ("p50", "p90", "p99", "mean")}
    changed = {key: value * factor for key, value in known.items() if value is not None}
    samples = None if times.samples is None else [value * factor for value in times.samples]
    return msgspec.structs.replace(times, **changed, samples=samples)


def _bounded(logarithm: float) -> float:
    most = math.log(FACTOR_MAX)
    return math.exp(min(max(logarithm, -most), most))
