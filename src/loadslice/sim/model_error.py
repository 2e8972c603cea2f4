"""A simulated machine as it could truly be, where its times were modelled: one draw of the errors they state.

What a policy expects stays as the profile has it, as it would in life: the machine differs, the plan does not know.
"""

import msgspec
import numpy as np

from loadslice.sim.course import Prepared
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.uncertainty import factors

_PURPOSE = 0x0E44
"""Keeps these draws apart from every other draw of the same seed."""


def of_draw(prepared: Prepared, latency: LatencyTable, seed: int) -> Prepared:
    """The same simulation on one draw of the machine.

    Args:
        prepared: From `loadslice.sim.simulate.prepare`, of that latency table.
        latency: Entries without a stated error are as they are.
        seed: Of the draw.
    """
    if not any(entry.error is not None for entry in latency.entries):
        return prepared
    pairs = zip(latency.entries, factors(latency, np.random.default_rng([seed, _PURPOSE])), strict=True)
    drawn = {(entry.variant, entry.engine): factor for entry, factor in pairs if factor is not None}
    service, energy = prepared.service, prepared.energy
    quantile_ns, scale, joules = service.quantile_ns.copy(), service.scale.copy(), energy.joules.copy()
    for s, stage in enumerate(prepared.pipeline.stages):
        for e, name in enumerate(prepared.pipeline.engines):
            for lane in range(scale.shape[2]):
                time, power = drawn.get((_variant(stage, lane), name), (1.0, 1.0))
                quantile_ns[s, e, lane] *= time
                scale[s, e, lane, :, 0] *= time
                joules[s, e, lane] *= time * power
    return prepared._replace(
        pipeline=_with_power(prepared.pipeline, drawn),
        service=service._replace(quantile_ns=quantile_ns, scale=scale),
        energy=energy._replace(joules=joules),
    )


def _variant(stage: Stage, lane: int) -> str:
    """Whose times a lane holds: buckets of the stage's own version come first, then those of its canary."""
    return stage.variant_id if lane <= len(stage.buckets) else stage.canary_id


def _with_power(pipeline: Pipeline, drawn: dict[tuple[str, str], tuple[float, float]]) -> Pipeline:
    """Watts of engines whose power is uncertain; where every batch's joules are known only idle watts count."""
    power = {engine: factor for (_, engine), (_, factor) in drawn.items()}
    engines = {
        name: msgspec.structs.replace(
            engine,
            active_w=None if engine.active_w is None else engine.active_w * power.get(name, 1.0),
            idle_w=None if engine.idle_w is None else engine.idle_w * power.get(name, 1.0),
        )
        for name, engine in pipeline.engines.items()
    }
    return msgspec.structs.replace(pipeline, engines=engines)
