"""Modelled times for a person: each with the interval that its error makes."""

import math
from collections.abc import Iterator
from pathlib import Path

from loadslice.policy.estimate import typical_ms
from loadslice.profiles.calibration import t_90
from loadslice.spec.latency import Entry, LatencyTable
from loadslice.spec.uncertainty import interval


def lines(table: LatencyTable, kept: Path | None) -> Iterator[str]:
    """A table of modelled and measured entries."""
    width = max(7, *(len(entry.variant) for entry in table.entries))
    engine_width = max(6, *(len(entry.engine) for entry in table.entries))
    yield (
        f"{'variant':{width}}  {'engine':{engine_width}}  {'shape':>14}  {'rows':>5}  {'median ms':>10}  "
        f"{'9 of 10 between':>20}  {'J':>9}  basis"
    )
    for entry in table.entries:
        shape = "any" if entry.shape is None else "x".join(map(str, entry.shape))
        energy = "unknown" if entry.energy_j is None else f"{entry.energy_j:.3g}"
        yield (
            f"{entry.variant:{width}}  {entry.engine:{engine_width}}  {shape:>14}  {entry.batch:>5}  "
            f"{typical_ms(entry.latency_ms):>10.3g}  {_between(entry):>20}  {energy:>9}  {entry.basis}"
        )
    yield ""
    seen = set()
    for entry in table.entries:
        if entry.error is not None and (entry.engine, entry.error.why) not in seen:
            seen.add((entry.engine, entry.error.why))
            yield f"{entry.variant} on {entry.engine}: {entry.source}"
            yield f"  error: {entry.error.why}"
    yield "Modelled, not measured: a run on the device replaces these."
    if kept is not None:
        yield f"kept in {kept}"


def _between(entry: Entry) -> str:
    if entry.error is None:
        return "-"
    low, high = interval(entry, t_90(entry.error.freedom))
    median = typical_ms(entry.latency_ms)
    digits = 3 if math.isfinite(median * high) else 1
    return f"{median * low:.{digits}g} to {median * high:.{digits}g}"
