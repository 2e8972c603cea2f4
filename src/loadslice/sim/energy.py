"""What batches cost in energy: measured joules by rows where the profile has them, else power times time."""

from typing import Annotated, NamedTuple

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.kernel import by_reference, kernel
from loadslice.policy.tables import Int64s, State, versions
from loadslice.sim.service import Float64s
from loadslice.spec.latency import Entry, LatencyTable
from loadslice.spec.pipeline import Pipeline, Stage

_NS_PER_S = 1e9


@by_reference
class Energy(NamedTuple):
    """Measured energy of batches. S stages, E engines, B lanes (buckets, once per version), K row counts."""

    measured: Annotated[Int64s, "E"]
    """1 where every batch's energy was measured, at every stage and shape the engine serves"""
    rows: Annotated[Int64s, "S", "E", "B", "K"]
    """Row counts that were measured, ascending; 0 marks the end"""
    joules: Annotated[Float64s, "S", "E", "B", "K"]
    """Of a whole batch"""


def lower_energy(pipeline: Pipeline, latency: LatencyTable) -> Energy:
    """Lower the ``energy_j`` of a latency table; an engine that lacks one anywhere has its power and its time."""
    engines = list(pipeline.engines)
    lanes = max((len(stage.buckets) + 1) * versions(stage) for stage in pipeline.stages)
    found: dict[tuple[int, int, int], list[Entry]] = {}
    for s, stage in enumerate(pipeline.stages):
        for name in stage.engine_names:
            for lane in range((len(stage.buckets) + 1) * versions(stage)):
                version, bucket = divmod(lane, len(stage.buckets) + 1)
                variant = stage.canary_id if version else stage.variant_id
                found[s, engines.index(name), lane] = _entries(latency, stage, variant, name, bucket)
    shape = (len(pipeline.stages), len(engines), lanes, max(1, *(len(entries) for entries in found.values())))
    energy = Energy(np.zeros(len(engines), np.int64), np.zeros(shape, np.int64), np.zeros(shape))
    for e in range(len(engines)):
        own = [entries for key, entries in found.items() if key[1] == e]
        energy.measured[e] = int(bool(own) and all(own))
    for key, entries in found.items():
        for knot, entry in enumerate(entries):
            assert entry.energy_j is not None
            energy.rows[(*key, knot)], energy.joules[(*key, knot)] = entry.batch, entry.energy_j
    return energy


def _entries(latency: LatencyTable, stage: Stage, variant: str, engine: str, bucket: int) -> list[Entry]:
    """Entries with an energy, of the bucket's shape or of any, by rows; none when one of them lacks it."""
    shape = stage.buckets[bucket] if bucket < len(stage.buckets) else None
    there = [entry for entry in latency.entries if (entry.variant, entry.engine) == (variant, engine)]
    own = [entry for entry in there if entry.shape == shape] or [entry for entry in there if entry.shape is None]
    if shape is None:
        own = own or there
    return [] if any(entry.energy_j is None for entry in own) else sorted(own, key=lambda entry: entry.batch)


@kernel
def batch_j(energy: Energy, stage: int, engine: int, bucket: int, rows: int) -> float:
    """Joules of a batch: joined by straight lines between measured row counts, in proportion beyond the last."""
    knots = energy.rows[stage, engine, bucket]
    joules = energy.joules[stage, engine, bucket]
    upper = 0
    while upper + 1 < knots.shape[0] and knots[upper] < rows and knots[upper + 1] > 0:
        upper += 1
    if knots[upper] < rows:
        return float(joules[upper] * rows / knots[upper])
    if knots[upper] == rows or upper == 0:
        return float(joules[upper])
    share = (rows - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
    return float(joules[upper - 1] + share * (joules[upper] - joules[upper - 1]))


def total_j(pipeline: Pipeline, energy: Energy, batches_j: Float64s, state: State, span_s: float) -> float | None:
    """Energy of all engines over a run, joules; ``None`` as soon as one engine's is unknown.

    Args:
        pipeline: States watts.
        energy: Says which engines' batches were measured.
        batches_j: [E] what their batches took.
        state: As the run left it.
        span_s: Length of the run.
    """
    total = 0.0
    for e, engine in enumerate(pipeline.engines.values()):
        if engine.idle_w is None or (engine.active_w is None and energy.measured[e] == 0):
            return None
        # Active while any slot runs: an engine does not draw half of its power for half of its slots.
        active_s = float(state.engines[e, c.N_ACTIVE_NS]) / _NS_PER_S
        active_j = float(batches_j[e]) if energy.measured[e] == 1 else (engine.active_w or 0.0) * active_s
        total += active_j + engine.idle_w * max(0.0, span_s - active_s)
    return total


def missing(pipeline: Pipeline, energy: Energy) -> str | None:
    """Why the energy of a run is unknown, in one line; ``None``: it is known."""
    for e, (name, engine) in enumerate(pipeline.engines.items()):
        absent = [] if engine.idle_w is not None else ["idle_w"]
        absent += ["active_w"] if engine.active_w is None and energy.measured[e] == 0 else []
        if absent:
            return f"energy is unknown: engine '{name}' states no {' and no '.join(absent)}."
    return None
