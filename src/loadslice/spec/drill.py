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
    look: str
    """Where to look when the promise was broken."""


class DrillResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one."""

    name: str
    pipeline: str = ""
    """Whose."""
    promise: str
    figure: str
    """The measured figure in words, unit included; what was missing, where it could not be run."""
    look: str | None = None
    """Where to look, of a promise that was broken."""
    held: bool | None
    """``None``: not applicable to this pipeline, or it could not be run here; never a pass."""
    basis: DrillBasis
    figures: dict[str, float | int | str | None] = {}
    seed: int | None = None
    wall_s: float | None = None


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """``drills.json``."""

    pipelines: list[str]
    drills: list[DrillResult]
    """One pipeline after the other."""
    held: int
    broken: int
    not_applicable: int
    wall_s: float
    stamp: Stamp | None = None


DRILLS: tuple[Drill, ...] = (
    Drill(
        number=1,
        name="avalanche",
        how="simulated",
        promise="goodput is at least 95 % within 5 s of the end of a slow spell",
        look="`deadline_ms` (none: nothing is hopeless), `retry.budget`, and `queue.limit` of the slow engine",
    ),
    Drill(
        number=2,
        name="engine-killed",
        how="live",
        promise="an engine's process is killed under load: none lost, seen within 1 s",
        look="the server's log at 'process ended', `retry.budget`, and a second engine of its stages",
    ),
    Drill(
        number=3,
        name="engine-hung",
        how="live",
        promise="a hung engine is left within two ping timeouts, and readiness knows",
        look="`timeout_ms` of its stages (none: a hang looks like work), and a second engine",
    ),
    Drill(
        number=4,
        name="device-lost",
        how="live",
        promise="a lost device fails over to another engine, no wrong answers",
        look="`engines:` of its stages, `failover.to`, and the precision of the engine that took over",
    ),
    Drill(
        number=5,
        name="overflow",
        how="simulated",
        promise="of 150 % load exactly the configured share of overflow goes to the backup",
        look="`failover.share`, the backup's `queue.limit`, `timeout_ms`; `loadslice check JOURNAL` names the decision",
    ),
    Drill(
        number=6,
        name="backup-full",
        how="simulated",
        promise="with the backup full too nothing cascades, and refusals carry hints",
        look="`deadline_ms` and `queue.limit`: what is dropped half-way has cost its first stages",
    ),
    Drill(
        number=7,
        name="low-class-burst",
        how="simulated",
        promise="in a 12-fold burst of the lowest class the top class succeeds by 99.4 %",
        look="`classes.*.floor`, and batches that take longer than the top class's deadline leaves",
    ),
    Drill(
        number=8,
        name="poison",
        how="live",
        promise="a request that crashes its engine is kept away after a few crashes",
        look="the server's log at 'has ended the engine's process', and clients that send it anew under another id",
    ),
    Drill(
        number=9,
        name="stage-full",
        how="simulated",
        promise="with a middle stage full no request hangs",
        look="`timeout_ms` of that stage, `deadline_ms`, and `queue.limit` of its engines",
    ),
    Drill(
        number=10,
        name="clients-leave",
        how="live",
        promise="all clients leave at once: capacity is back within one sweep",
        look="`loadslice_requests_inside` and the time of one batch: what runs is not interrupted",
    ),
    Drill(
        number=11,
        name="stale-metrics",
        how="live",
        promise="stale, missing or impossible metrics promote no canary",
        look="`loadslice rollout status`, and `missing:` of the metric's rule",
    ),
    Drill(
        number=12,
        name="bad-canary",
        how="live",
        promise="a bad canary is taken back at its first step",
        look="`loadslice rollout status`: `outputs.share`, `outputs.tolerance`, and queues that are never short",
    ),
    Drill(
        number=13,
        name="corrupt-version",
        how="live",
        promise="a corrupt new version is refused, the old one keeps serving, none failed",
        look="hashes in the version's manifest, and the server's log at 'reload'",
    ),
    Drill(
        number=14,
        name="clock-jump",
        how="simulated",
        promise="an hour on the clock changes no decision",
        look="time that is read inside the core instead of handed to it",
    ),
    Drill(
        number=15,
        name="flapping",
        how="simulated",
        promise="a flapping engine's breaker changes state a bounded number of times a minute",
        look="`breaker.open_ms` and `breaker.permits`",
    ),
    Drill(
        number=16,
        name="retry-storm",
        how="simulated",
        promise="of clients that try four times, the attempts let in stay in the budget",
        look="`retry.budget`, and clients that do not send `x-loadslice-attempt`",
    ),
    Drill(
        number=17,
        name="slow-clients",
        how="live",
        promise="slow clients, floods of chunks and resets: memory bounded, nothing left inside",
        look="the server's memory in `/metrics`, and its limits on bodies and connections",
    ),
    Drill(
        number=18,
        name="drift",
        how="live",
        promise="a drift of confidence raises an alarm, and nothing is done below the minimum sample",
        look="`loadslice watch`: the signal's baseline and its `minimum`",
    ),
)
"""In order of their numbers."""

BY_NAME = {drill.name: drill for drill in DRILLS}
