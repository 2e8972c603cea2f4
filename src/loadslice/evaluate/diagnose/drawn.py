"""Power of a recorded run: what its engines drew by their data sheets, or the pipeline file, against a box's limit."""

from collections.abc import Mapping

import numpy as np

from loadslice.evaluate.diagnose.evidence import Evidence, Floats, PowerSeen, Timeline
from loadslice.graph import devices as catalogue
from loadslice.spec.device import PowerCurve, power_curve
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Pipeline

NEAR = 0.95


def curve_of(engine: Engine) -> PowerCurve | None:
    """Power by load: as the pipeline file says, else as the device's sheet does; ``None``: nobody says."""
    if engine.active_w is not None:
        idle_w = engine.idle_w or 0.0
        return PowerCurve(points=[(0.0, idle_w), (1.0, engine.active_w)], source="the pipeline file", basis="stated")
    if engine.device is None:
        return None
    try:
        return power_curve(catalogue.find(engine.device))
    except InputError:
        return None


def add(found: Evidence, pipeline: Pipeline, limit_w: float | None, limit_source: str) -> None:
    """Add what a box drew to evidence from a journal; what is missing is said there.

    Args:
        found: Has a course over time.
        pipeline: That ran.
        limit_w: Of the box; ``None``: not known.
        limit_source: Who says so.
    """
    curves = {name: curve for name, engine in pipeline.engines.items() if (curve := curve_of(engine)) is not None}
    line = found.timeline
    if limit_w is None or line is None or not curves:
        missing = [] if limit_w is not None else ["a limit (--budget with power.per_box_w)"]
        missing += [] if curves else ["the power of an engine (active_w, or a device with a power curve)"]
        missing += [] if line is not None else ["a course over time"]
        found.power_absent = "not known: " + ", ".join(missing)
        return
    drawn = drawn_w(line, curves)
    at_wall = drawn >= NEAR * limit_w
    slowed = _slowed(line, at_wall, curves)
    found.powers.append(
        PowerSeen(
            name=f"box of {', '.join(curves)}",
            drawn_w=float(drawn[at_wall].mean()) if at_wall.any() else float(drawn.max()),
            limit_w=limit_w,
            limit_source=limit_source,
            busy_share=float(at_wall.mean()),
            slowed=slowed,
            basis="emulated" if found.basis == "emulated" else "modelled",
        )
    )


def drawn_w(line: Timeline, curves: Mapping[str, PowerCurve]) -> Floats:
    """Power of all engines that have a curve, by bin; a lower bound where others draw too."""
    total = np.zeros(len(line.arrivals))
    for name, curve in curves.items():
        shares, watts = zip(*curve.points, strict=True)
        total += np.interp(np.clip(line.busy[line.engines.index(name)], 0, 1), shares, watts)
    return total


def _slowed(
    line: Timeline, at_wall: np.ndarray[tuple[int], np.dtype[np.bool_]], curves: Mapping[str, PowerCurve]
) -> float | None:
    """How much longer batches took at the wall than away from it, the worst engine."""
    ratios = []
    for name in curves:
        service = line.service_ms[line.engines.index(name)]
        inside, outside = service[at_wall & np.isfinite(service)], service[~at_wall & np.isfinite(service)]
        if len(inside) >= 3 and len(outside) >= 3:
            ratios.append(float(np.median(inside) / np.median(outside)))
    return max(ratios, default=None)
