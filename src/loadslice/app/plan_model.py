"""A pipeline for model files that have none: one stage per request, on this machine's processor.

Several models share one fleet: each request asks one of them. The simulator knows chains of stages, so the models stand
side by side as shapes of one stage: no batch mixes them, and each has times of its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.latency import Entry, InputWork, LatencyTable, StageWork
from loadslice.spec.pipeline import Engine, Pipeline, Queue, Stage, check

LOCAL = "local"
TOGETHER = "models"


class Models(NamedTuple):
    """Model files by name."""

    paths: dict[str, Path]

    @property
    def together(self) -> bool:
        """More than one."""
        return len(self.paths) > 1


def models_of(paths: Sequence[Path]) -> Models:
    """Model files by the name that traces and latency tables know them by.

    Raises:
        InputError: A file is absent, or two have one name.
    """
    found: dict[str, Path] = {}
    for path in paths:
        resolved = resolve_model(str(path), Path.cwd())
        if resolved.stem in found:
            raise InputError(f"--model {path}: there is already a model named '{resolved.stem}'. Rename one of them.")
        found[resolved.stem] = resolved
    return Models(found)


def single(name: str, path: Path) -> Pipeline:
    """One model as a pipeline."""
    return check(
        Pipeline(
            version=1,
            pipeline=name,
            engines={LOCAL: Engine(backend="onnxruntime", queue=Queue(limit=128))},
            stages=[Stage(name=name, model=str(path), engine=LOCAL)],
        ),
        f"--model {path}",
    )


def together(models: Models, latency: LatencyTable) -> tuple[Pipeline, LatencyTable]:
    """Several models as shapes of one stage, and their times under it.

    Args:
        models: At least two.
        latency: Entries by each model's name.

    Raises:
        InputError: A model without times.
    """
    names = list(models.paths)
    entries: list[Entry] = []
    for number, name in enumerate(names, start=1):
        own = [entry for entry in latency.entries if entry.variant == name]
        if not own:
            raise InputError(f"--model {models.paths[name]}: the latency table has no entries of variant '{name}'.")
        entries += [msgspec.structs.replace(entry, variant=TOGETHER, shape=[number]) for entry in _one_shape(own)]
    engines = [
        engine
        for engine in dict.fromkeys(entry.engine for entry in entries)
        if {tuple(entry.shape or ()) for entry in entries if entry.engine == engine}
        == {(n + 1,) for n in range(len(names))}
    ]
    if not engines:
        raise InputError(f"no engine has times for all of {', '.join(names)}; give them in one --profile.")
    inputs = [
        InputWork(input=name, stages=[StageWork(stage=TOGETHER, items=1, shape=[number])])
        for number, name in enumerate(names, start=1)
    ]
    pipeline = Pipeline(
        version=1,
        pipeline=TOGETHER,
        engines={
            name: Engine(backend="onnxruntime" if name == LOCAL else "twin", queue=Queue(limit=128)) for name in engines
        },
        stages=[Stage(name=TOGETHER, variant=TOGETHER, engines=engines, buckets=[[n + 1] for n in range(len(names))])],
    )
    kept = [entry for entry in entries if entry.engine in engines]
    return check(pipeline, "--model"), msgspec.structs.replace(latency, entries=kept, inputs=inputs)


def apart(pipeline: Pipeline, latency: LatencyTable, models: Models) -> tuple[dict[str, Pipeline], LatencyTable]:
    """A fleet's pipeline of `together` as one for each model, and their times under the models' names.

    Args:
        pipeline: Of a fleet; its engines are in each.
        latency: Of the fleet.
        models: As they were put together.
    """
    (joint,) = pipeline.stages
    found = {}
    entries: list[Entry] = []
    for number, (name, path) in enumerate(models.paths.items(), start=1):
        stage = msgspec.structs.replace(joint, name=name, model=str(path), variant=None, buckets=[], accept={})
        found[name] = check(msgspec.structs.replace(pipeline, pipeline=name, stages=[stage]), f"--model {path}")
        entries += [
            msgspec.structs.replace(entry, variant=stage.variant_id, shape=None)
            for entry in latency.entries
            if entry.shape == [number]
        ]
    return found, msgspec.structs.replace(latency, entries=entries, inputs=[])


def _one_shape(entries: list[Entry]) -> list[Entry]:
    """Entries of one shape for each engine and batch: the one with most elements, which nothing outgrows."""
    best: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        key = entry.engine, entry.batch
        if key not in best or _elements(entry) > _elements(best[key]):
            best[key] = entry
    return list(best.values())


def _elements(entry: Entry) -> int:
    product = 1
    for side in entry.shape or []:
        product *= side
    return product


def asked(frame: pl.DataFrame, models: Models, warnings: list[str]) -> pl.DataFrame:
    """Which model each request of a trace asks: its ``input``, else its ``source``, else one drawn evenly."""
    names = list(models.paths)
    for column in ("input", "source"):
        if column in frame.columns and set(frame[column].drop_nulls().unique()) <= set(names):
            return frame.with_columns(pl.col(column).fill_null(names[0]).alias("input"))
    warnings.append(
        f"the trace does not say which model a request asks (no `source` or `input` of {', '.join(names)}): "
        "drawn evenly."
    )
    return frame.drop("input", strict=False)
