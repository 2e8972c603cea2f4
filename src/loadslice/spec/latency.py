"""The latency table: how long each stage takes on each engine, and how that is known."""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json

MS_MAX = 1e9
"""Eleven days; a longer service time is a slip of units."""

BATCH_MAX = 1_000_000

Basis = Literal["measured", "modelled", "emulated"]


class Milliseconds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A service-time distribution: percentiles, a mean with a family, or samples."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    mean: float | None = None
    family: Literal["constant", "exponential", "lognormal"] | None = None
    cv: float | None = None
    """Coefficient of variation of a lognormal."""
    samples: list[float] | None = None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Service time of one variant on one engine, for one batch and one shape."""

    variant: str
    engine: str
    batch: int
    """Rows in the batch."""
    shape: list[int] | None = None
    """Input shape without the row dimension; ``None``: any."""
    latency_ms: Milliseconds
    contended_ms: Milliseconds | None = None
    """The same while every other engine slot of the machine was busy; ``None``: not measured."""
    energy_j: float | None = None
    n: int | None = None
    basis: Basis
    source: str | None = None


class StageWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one example input asks of one stage."""

    stage: str
    items: int
    shape: list[int] | None = None


class InputWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one example input asks of every stage; traces name inputs by ``input``."""

    input: str
    stages: list[StageWork]


class LatencyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A profile file."""

    entries: list[Entry]
    inputs: list[InputWork] = []
    overhead_ms: Milliseconds | None = None
    """Time a request spends outside all stages (socket, parsing, reply), measured; ``None``: taken as 0."""
    handover_ms: Milliseconds | None = None
    """Time a batch holds its slot beside its service (the way to the worker and back), measured; ``None``: 0."""
    overhead_cpu_ms: float | None = None
    """Processor time a request costs beside its stages (front, hand-over, load generator), measured; ``None``: 0."""
    pipeline: str | None = None
    stamp: Stamp | None = None


def load(path: Path) -> LatencyTable:
    """Read and check a latency table.

    Raises:
        InputError: A time that is negative, NaN or missing, a batch below 1, or percentiles out of order.
    """
    table = decode_json(path, LatencyTable)
    for index, entry in enumerate(table.entries):
        place = f"{path}: entries[{index}] ({entry.variant} on {entry.engine}, batch {entry.batch})"
        if not 1 <= entry.batch <= BATCH_MAX:
            raise InputError(f"{place}: batch must be from 1 to {BATCH_MAX}.")
        _check(entry.latency_ms, f"{place}.latency_ms")
        if entry.contended_ms is not None:
            _check(entry.contended_ms, f"{place}.contended_ms")
    for key, times in (("overhead_ms", table.overhead_ms), ("handover_ms", table.handover_ms)):
        if times is not None:
            _check(times, f"{path}: {key}")
    if table.overhead_cpu_ms is not None and not 0 <= table.overhead_cpu_ms < math.inf:
        raise InputError(f"{path}: overhead_cpu_ms: {table.overhead_cpu_ms} is not a time.")
    for known in table.inputs:
        for work in known.stages:
            if not 0 <= work.items <= BATCH_MAX:
                raise InputError(f"{path}: inputs '{known.input}', stage '{work.stage}': items {work.items}.")
    if not table.entries:
        raise InputError(f"{path}: entries: empty. Run `loadslice profile PIPELINE` to measure some.")
    return table


def _check(times: Milliseconds, place: str) -> None:
    stated = [value for value in (times.p50, times.p90, times.p99, times.mean, times.cv) if value is not None]
    stated += times.samples or []
    if any(not 0 <= value <= MS_MAX for value in stated):
        raise InputError(f"{place}: times must be finite, not negative, and at most {MS_MAX:g} ms.")
    if times.samples is not None and not times.samples:
        raise InputError(f"{place}.samples: empty.")
    if times.samples is None and times.p50 is None and times.mean is None:
        raise InputError(f"{place}: give p50 (p90, p99), mean with a family, or samples.")
    ordered = [value for value in (times.p50, times.p90, times.p99) if value is not None]
    if ordered != sorted(ordered):
        raise InputError(f"{place}: percentiles must not fall ({', '.join(map(str, ordered))}).")
