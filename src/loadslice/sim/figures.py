"""Turns a finished run into the figures that are shown: engines, stages, decisions, and what it took."""

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy.tables import Int64s, State
from loadslice.sim import record as r
from loadslice.sim.record import Record
from loadslice.spec import simulation as spec
from loadslice.spec.outcome import REASONS
from loadslice.spec.pipeline import Pipeline

_NS_PER_S, _NS_PER_MS = 1_000_000_000, 1_000_000


def engine_figures(pipeline: Pipeline, state: State, record: Record, span_s: float) -> dict[str, spec.EngineFigures]:
    """What each engine did over a run of ``span_s`` seconds."""
    figures = {}
    for e, (name, engine) in enumerate(pipeline.engines.items()):
        counts = state.engines[e]
        seen = record.queue_seen[e]
        figures[name] = spec.EngineFigures(
            utilisation=float(counts[c.N_BUSY_NS]) / _NS_PER_S / (span_s * engine.max_inflight),
            queue_p99=_queue_p99(seen),
            batches=int(counts[c.N_BATCHES]),
            dispatched=int(counts[c.N_DISPATCHED]),
            placed=int(seen.sum()),
            failover_in=int(counts[c.N_FAILOVER_IN]),
            breaker_transitions=int(state.breakers[:, e, c.X_TRANSITIONS].sum()),
        )
    return figures


def _queue_p99(seen: Int64s) -> float:
    """99th percentile of queue lengths that were counted in cells; 0 where nobody was placed."""
    if not seen.sum():
        return 0.0
    return float(r.queue_of_cell(int(np.searchsorted(np.cumsum(seen), 0.99 * seen.sum()))))


def decisions(state: State, reasons: np.ndarray) -> dict[str, int]:
    """How often the core took each kind of decision that is counted.

    Args:
        state: As the run left it.
        reasons: [reasons] attempts by the reason they ended for.
    """
    counted = {
        "overflow_eligible": int(state.stages[:, c.G_OVERFLOWS].sum()),
        "overflow_sent": int(state.stages[:, c.G_SENT].sum()),
        "retries": int(state.counters[c.C_RETRIES]),
        "retries_denied": int(state.counters[c.C_RETRIES_DENIED]),
        "breaker_transitions": int(state.breakers[:, :, c.X_TRANSITIONS].sum()),
        "model_loads": int(state.engines[:, c.N_LOADS].sum()),
        "degraded": int(state.counters[c.C_DEGRADED]),
        "canary_sent": int(state.counters[c.C_SPLIT_SENT]),
        "canary_inconclusive": int(state.counters[c.C_INCONCLUSIVE]),
    }
    ended = {f"ended_{REASONS[code]}": int(count) for code, count in enumerate(reasons) if count and code}
    return counted | ended


def stage_figures(pipeline: Pipeline, record: Record) -> dict[str, spec.StageFigures]:
    """Queue and service times at each stage; none where no timeline was kept."""
    timeline = record.timeline
    if len(timeline) == 0:
        return {}
    figures = {}
    names = list(pipeline.engines)
    for s, stage in enumerate(pipeline.stages):
        lines = timeline[timeline[:, s, r.T_DONE_NS] >= 0, s]
        if len(lines) == 0:
            figures[stage.name] = spec.StageFigures(
                queue_ms_p50=None, queue_ms_p95=None, service_ms_p50=None, service_ms_p95=None, engine_share={}
            )
            continue
        queue = np.percentile((lines[:, r.T_DISPATCHED_NS] - lines[:, r.T_ENQUEUED_NS]) / _NS_PER_MS, [50, 95])
        service = np.percentile((lines[:, r.T_DONE_NS] - lines[:, r.T_DISPATCHED_NS]) / _NS_PER_MS, [50, 95])
        served = np.bincount(lines[:, r.T_ENGINE], minlength=len(names))
        figures[stage.name] = spec.StageFigures(
            queue_ms_p50=float(queue[0]),
            queue_ms_p95=float(queue[1]),
            service_ms_p50=float(service[0]),
            service_ms_p95=float(service[1]),
            engine_share={names[e]: float(served[e] / len(lines)) for e in np.flatnonzero(served)},
        )
    return figures
