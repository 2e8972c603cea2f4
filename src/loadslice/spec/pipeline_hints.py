"""Keys of a pipeline file that say something and change nothing: each is told, for whoever wrote it meant something."""

from collections.abc import Iterator

from loadslice.spec.pipeline import Pipeline, Rollout, Stage


def silent(pipeline: Pipeline) -> list[str]:
    """One line for each key without effect, with what would give it one.

    Args:
        pipeline: Checked.
    """
    found = list(_of_engines(pipeline))
    for index, stage in enumerate(pipeline.stages):
        found += _of_stage(stage, f"stages[{index}] '{stage.name}'")
    if pipeline.rollout != Rollout() and all(stage.canary is None for stage in pipeline.stages):
        found.append("rollout: has no effect, no stage has a `canary`.")
    return found


def _of_engines(pipeline: Pipeline) -> Iterator[str]:
    backed = {name for stage in pipeline.stages if stage.failover is not None for name in stage.engine_names}
    for name, engine in pipeline.engines.items():
        stages = [stage for stage in pipeline.stages if name in stage.engine_names]
        if not stages:
            yield f"engines.{name}: no stage uses it."
            continue
        for key in ("overflow_at", "wait_limit_ms"):
            if getattr(engine.queue, key) is not None and name not in backed:
                yield f"engines.{name}.queue.{key}: has no effect, no stage of this engine has a `failover`."


def _of_stage(stage: Stage, place: str) -> Iterator[str]:
    for name, batch in stage.batch.items():
        if batch.window_ms > 0 and batch.size == 1:
            yield f"{place}.batch.{name}.window_ms: has no effect with size 1, nothing is waited for."
    if stage.failover is not None and stage.failover.share == 0:
        yield f"{place}.failover: has no effect with share 0."
    if len(stage.engine_names) == 1 and stage.prefer != "static":
        yield f"{place}.prefer: '{stage.prefer}' has one engine to choose from."
