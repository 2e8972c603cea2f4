"""Faults in virtual time: a sorted list of changes to engines."""

import numpy as np

from loadslice.policy.tables import Int64s
from loadslice.spec.faults import HANG_DETECT_MS, Fault
from loadslice.spec.pipeline import Pipeline

_NS_PER_MS, _NS_PER_S = 1_000_000, 1_000_000_000

FAULT_AT_NS, FAULT_ENGINE, FAULT_KIND, FAULT_PPM, FAULT_COLUMNS = range(5)
PACE, DOWN, UP, WRONG = range(4)
"""The engine's time per unit of work becomes ``FAULT_PPM`` millionths (0: it stands still); it is lost; it is back; its
answers become wrong (1) or right (0)."""


def lower_faults(faults: list[Fault], pipeline: Pipeline) -> Int64s:
    """Changes in order of time; what ends at the moment something else begins ends first.

    Args:
        faults: Checked by `spec.faults.load_faults`.
        pipeline: Names the engines.

    Returns:
        [changes, FAULT_COLUMNS]
    """
    engines = list(pipeline.engines)
    changes: list[tuple[int, int, int, int]] = []
    for fault in faults:
        engine = engines.index(fault.engine)
        start, end = round(fault.at_s * _NS_PER_S), round((fault.at_s + fault.for_s) * _NS_PER_S)
        if fault.kind == "slow":
            assert fault.factor is not None, "checked when it was read"
            changes += [(end, engine, PACE, 1_000_000), (start, engine, PACE, round(fault.factor * 1_000_000))]
        elif fault.kind == "wrong":
            changes += [(end, engine, WRONG, 0), (start, engine, WRONG, 1)]
        else:
            changes += _absence(fault, engine, start, end)
    changes.sort(key=lambda change: change[0])
    return np.array(changes, np.int64).reshape(len(changes), FAULT_COLUMNS)


def _absence(fault: Fault, engine: int, start: int, end: int) -> list[tuple[int, int, int, int]]:
    """An engine that hangs or is gone: it stands still, and the core is told when a live server would have noticed."""
    detect_ms = fault.detect_ms
    if detect_ms is None:
        detect_ms = HANG_DETECT_MS if fault.kind == "hang" else 0.0
    noticed = start + round(detect_ms * _NS_PER_MS)
    still = [(end, engine, PACE, 1_000_000), (start, engine, PACE, 0)] if noticed > start else []
    if fault.kind == "hang" and noticed >= end:
        return still  # it woke before anybody noticed, and goes on with what it had
    # What an engine had when it ended is lost, also when that is noticed by its return.
    return [*still, (min(noticed, end), engine, DOWN, 0), (end, engine, UP, 0)]
