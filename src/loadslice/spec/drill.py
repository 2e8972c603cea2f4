"""Drills: what is broken on purpose, what is promised then, and what came of it."""

from typing import Literal

import msgspec

from loadslice.spec.files import Stamp

SCHEMA = "drills/1"

DrillBasis = Literal["simulated", "measured", "emulated"]
"""simulated: in virtual time, on the pipeline's own times and decisions. measured, emulated: on a live server."""


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """One drill, as it is listed."""

    number: int
    name: str
    promise: str
    how: Literal["simulated", "live"]


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one."""

    name: str
    promise: str
    figure: str
    """The measured figure in words, unit included; what was missing, where it could not be run."""
    held: bool | None
    """``None``: not applicable to this pipeline, or it could not be run here; never a pass."""
    basis: DrillBasis
    figures: dict[str, float | int | str | None] = {}
    seed: int | None = None
    wall_s: float | None = None


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """``drills.json``."""

    pipeline: str
    drills: list[DrillResult]
    held: int
    broken: int
    not_applicable: int
    stamp: Stamp | None = None


DRILLS: tuple[Drill, ...] = tuple(
    Drill(number=number, name=name, promise=promise, how=how)  # type: ignore[arg-type]
    for number, name, how, promise in (
        (1, "avalanche", "simulated", "goodput is at least 95 % within 5 s of the end of a slow spell"),
        (2, "engine-killed", "live", "an engine's process is killed under load: none lost, seen within 1 s"),
        (3, "engine-hung", "live", "a hung engine is left within two ping timeouts, and readiness knows"),
        (4, "device-lost", "live", "a lost device fails over to another engine, no wrong answers"),
        (5, "overflow", "simulated", "of 150 % load exactly the configured share of overflow goes to the backup"),
        (6, "backup-full", "simulated", "with the backup full too nothing cascades, and refusals carry hints"),
        (7, "low-class-burst", "simulated", "in a 12-fold burst of the lowest class the top class succeeds by 99.4 %"),
        (8, "poison", "live", "a request that crashes its engine is kept away after a few crashes"),
        (9, "stage-full", "simulated", "with a middle stage full no request hangs"),
        (10, "clients-leave", "live", "all clients leave at once: capacity is back within one sweep"),
        (11, "stale-metrics", "live", "stale, missing or impossible metrics promote no canary"),
        (12, "bad-canary", "live", "a bad canary is taken back at its first step"),
        (13, "corrupt-version", "live", "a corrupt new version is refused, the old one keeps serving, none failed"),
        (14, "clock-jump", "simulated", "an hour on the clock changes no decision"),
        (15, "flapping", "simulated", "a flapping engine's breaker changes state a bounded number of times a minute"),
        (16, "retry-storm", "simulated", "of clients that try four times, the attempts let in stay in the budget"),
        (17, "slow-clients", "live", "slow clients, floods of chunks and resets: memory bounded, nothing left inside"),
        (18, "drift", "live", "a drift of confidence raises an alarm, and nothing is done below the minimum sample"),
    )
)
"""In order of their numbers."""

BY_NAME = {drill.name: drill for drill in DRILLS}
