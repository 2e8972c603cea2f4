"""The engines of the twin, as the pipeline file describes them."""

from loadslice.policy.estimate import service_curves, slow_ppm
from loadslice.policy.naive_breaker import MS, PPM
from loadslice.policy.naive_engine import AtStage, Flows, NaiveEngine, Slot
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import CLASSES, Batch, Pipeline, Stage
from loadslice.spec.pipeline_shares import LEAST_SHARE


def fleet(pipeline: Pipeline, latency: LatencyTable | None) -> list[NaiveEngine]:
    """Every engine, idle, with the models that fit."""
    curves = service_curves(pipeline, latency) if latency is not None else {}
    limits = [pipeline.classes.get(name) for name in CLASSES]
    engines = []
    first_slot = 0
    for e, (name, settings) in enumerate(pipeline.engines.items()):
        has_shares = any(name in stage.share for stage in pipeline.stages)
        engine = NaiveEngine(
            name,
            settings,
            slots=[Slot(first_slot + number) for number in range(settings.max_inflight)],
            stages=[_at_stage(stage, name, latency) for stage in pipeline.stages],
            curves={(s, lane): curve for (s, of, lane), curve in curves.items() if of == e},
            floors_ppm=[0 if limit is None else round(limit.floor * PPM) for limit in limits],
            offline={priority for priority, limit in enumerate(limits) if limit is not None and limit.offline},
            tenant_flows=[Flows(_tenant_shares(pipeline)) for _ in CLASSES] if pipeline.tenants else [],
            stage_flows=[Flows(_stage_shares(pipeline, name)) for _ in CLASSES] if has_shares else [],
        )
        engine.resident = _first_models(pipeline, engine)
        engines.append(engine)
        first_slot += settings.max_inflight
    return engines


def _at_stage(stage: Stage, name: str, latency: LatencyTable | None) -> AtStage:
    batch = stage.batch.get(name, Batch()) if name in stage.engine_names else Batch()
    return AtStage(
        batch, slow_ppm(stage, name, latency), round((stage.memory_mb or 0.0) * 1e6), round((stage.load_ms or 0.0) * MS)
    )


def _tenant_shares(pipeline: Pipeline) -> list[int]:
    named = [tenant.share for tenant in pipeline.tenants.values()]
    return [round(share * PPM) for share in [max(LEAST_SHARE, 1.0 - sum(named)), *named]]


def _stage_shares(pipeline: Pipeline, name: str) -> list[int]:
    """What each stage is guaranteed of an engine, or its part of what the guarantees leave."""
    here = [stage for stage in pipeline.stages if name in stage.engine_names]
    left = max(LEAST_SHARE, 1.0 - sum(stage.share.get(name, 0.0) for stage in here))
    without = sum(name not in stage.share for stage in here)
    return [
        round(stage.share[name] * PPM) if name in stage.share else max(1, round(left / max(1, without) * PPM))
        for stage in pipeline.stages
    ]


def _first_models(pipeline: Pipeline, engine: NaiveEngine) -> dict[int, int]:
    """In the order of the file, while they fit."""
    if engine.settings.memory_mb is None:
        return {}
    free_bytes = round(engine.settings.memory_mb * 1e6)
    resident = {}
    for s, stage in enumerate(pipeline.stages):
        if engine.name in stage.engine_names and engine.stages[s].memory_bytes <= free_bytes:
            resident[s] = 0
            free_bytes -= engine.stages[s].memory_bytes
    return resident
