"""What a latency table lacks that a pipeline may ask for, and how it would come to be known."""

from loadslice.spec.latency import Entry, LatencyTable
from loadslice.spec.pipeline import Pipeline, Stage

ON_HOST = frozenset({"onnxruntime", "openvino", "python"})
"""Backends that run here, on the processor unless they are told otherwise."""


def gap(stage: Stage, engine: str, bucket: int, entries: list[Entry], factor: float, rows_most: int) -> str | None:
    """What of a bucket was not measured, and what is taken instead; ``None``: nothing was missed.

    Args:
        stage: Of the pipeline.
        engine: One of the stage's.
        bucket: Index into the stage's ``buckets``; beyond them: what fits none.
        entries: Of the latency table that stand for it, by rows ascending.
        factor: By which their times are multiplied: how much more the bucket holds than the shape they are of.
        rows_most: From `rows_most`.
    """
    shape = stage.buckets[bucket] if bucket < len(stage.buckets) else None
    place = f"{stage.name} on {engine}" + ("" if shape is None else f" at {shape}")
    if factor != 1.0 and shape is not None:
        return f"{place} was not measured: taken as {factor:.2f} x its nearest shape."
    if rows_most > entries[-1].batch:
        return f"{place}, {rows_most} rows: measured up to {entries[-1].batch}; taken in proportion to rows."
    return None


def rows_most(latency: LatencyTable, stage: Stage, engine: str, bucket: int) -> int:
    """The most rows that may come at once: a full batch, or the largest example of this bucket; 0: none is known."""
    batch = stage.batch.get(engine)
    shape = stage.buckets[bucket] if bucket < len(stage.buckets) else None
    asked = [work for known in latency.inputs for work in known.stages if work.stage == stage.name]
    # Without a full batch's bucket in sight nothing says that rows of none would come.
    full = batch.size if batch is not None and (shape is not None or not stage.buckets) else 0
    return max([full, *(work.items for work in asked if work.shape == shape or not stage.buckets)])


def remedy(pipeline: Pipeline, stage: Stage, engine: str, pipeline_path: str) -> str:
    """The next command, in a sentence: how the times that an engine lacks at a stage would come to be known."""
    runs_here = pipeline.engines[engine].backend in ON_HOST and (stage.model or stage.python) is not None
    command = f"Run `loadslice profile {pipeline_path} --on {engine}`"
    return f"{command}, or add an entry." if runs_here else "Add an entry to the latency table."


def accepts(stage: Stage, engine: str, bucket: int) -> bool:
    """Whether an engine takes rows of a bucket; one without a static shape takes every bucket."""
    accept = stage.accept.get(engine)
    if accept is None or accept.shape is None or bucket >= len(stage.buckets):
        return True
    return all(side <= most for side, most in zip(stage.buckets[bucket], accept.shape[1:], strict=True))
