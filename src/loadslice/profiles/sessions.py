"""Several profiles of one pipeline as one: what a machine takes on average, and how far its runs differ.

A profile that is measured in one go knows the machine as it was in those seconds. Measured again later, everything on
it may be some percent faster or slower; that is no error of either profile but a property of the machine, and a
prediction has to know it.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from loadslice.profiles.drift import kind, speeds
from loadslice.profiles.measure import milliseconds
from loadslice.spec.latency import Drift, Entry, LatencyTable, Milliseconds

PERIOD_MS = 1000.0
"""Stands where runs differ but no slow periods were found inside them; without likeness it has no effect."""


def pool(tables: Sequence[LatencyTable]) -> LatencyTable:
    """One table of several runs.

    Samples are brought to the runs' average speed before they are put together, so that each distribution stays that
    of one run; how far the runs differ stands in ``drift.between_runs``.

    Args:
        tables: Of one pipeline on one machine, at least one; the first gives what is not pooled.
    """
    longer = speeds(tables)
    if len(tables) == 1 or longer is None:
        return tables[0]
    scales = [math.exp(-one) for one in longer.tolist()]
    alike: dict[object, list[tuple[Entry, float]]] = {}
    for table, scale in zip(tables, scales, strict=True):
        for entry in table.entries:
            alike.setdefault(kind(entry), []).append((entry, scale))
    return msgspec.structs.replace(
        tables[0],
        entries=[_entry(found) for found in alike.values()],
        drift=_drift(tables, float(np.std(longer, ddof=1))),
    )


def _entry(found: Sequence[tuple[Entry, float]]) -> Entry:
    contended = [(entry.contended_ms, scale) for entry, scale in found if entry.contended_ms is not None]
    return msgspec.structs.replace(
        found[0][0],
        latency_ms=_pooled([(entry.latency_ms, scale) for entry, scale in found]),
        contended_ms=_pooled(contended) if contended else None,
        n=sum(entry.n or 0 for entry, _ in found) or None,
    )


def _pooled(times: Sequence[tuple[Milliseconds, float]]) -> Milliseconds:
    return milliseconds(np.concatenate([np.array(one.samples, np.float64) * scale for one, scale in times]))


def _drift(tables: Sequence[LatencyTable], between_runs: float) -> Drift:
    known = [table.drift for table in tables if table.drift is not None]
    return Drift(
        period_ms=float(np.median([one.period_ms for one in known])) if known else PERIOD_MS,
        likeness=round(sum(one.likeness for one in known) / len(tables), 4),
        between_runs=round(between_runs, 5),
        runs=len(tables),
    )
