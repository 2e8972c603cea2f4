"""The recommended fleet as files that `serve` and `simulate` take as they are."""

import os
from pathlib import Path

import msgspec
import yaml

from loadslice.app.plan_model import Models, apart
from loadslice.plan.fleet.candidate import pipeline_of, table_of
from loadslice.plan.fleet.planner import Candidate
from loadslice.spec.files import encode_json, resolved, write_bytes
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline, Stage

PIPELINE, LATENCY = "pipeline.yaml", "latency.json"

_HEAD = "# Written by `loadslice plan`: the recommended fleet, as `serve` and `simulate` take it.\n"
_ONLY_TIMES = "# Written by `loadslice plan`: the recommended fleet, as `simulate` takes it. For `serve`: {lacks}.\n"

_PROXY = '''"""Written by `loadslice plan`: the functions of {name}.py, which stays where it is."""

from pathlib import Path

from loadslice.spec.functions import load_function

_FOLDER = Path(__file__).resolve().parent / {folder!r}


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return load_function(f"{name}:{{name}}", _FOLDER)
'''


def write(candidate: Candidate, source: Path, folder: Path) -> list[str]:
    """Write the fleet's pipeline, its latency table, and a way to the user's functions.

    Args:
        candidate: Simulated.
        source: Folder of the pipeline that the plan was made from.
        folder: Where the files go.

    Returns:
        Names of the pipeline files.
    """
    pipeline, table = _simulated(candidate)
    write_bytes(folder / LATENCY, encode_json(table))
    if resolved(source) != resolved(folder):
        for name in sorted(_modules(pipeline)):
            relative = os.path.relpath(resolved(source), resolved(folder))
            write_bytes(folder / f"{name}.py", _PROXY.format(name=name, folder=relative).encode())
    write_bytes(folder / PIPELINE, text(_moved(pipeline, source, folder)).encode())
    return [PIPELINE]


def write_each(candidate: Candidate, models: Models, folder: Path) -> list[str]:
    """Write one pipeline for each of several models on one fleet, all with the fleet's engines.

    Args:
        candidate: Simulated.
        models: That share the fleet.
        folder: Where the files go.

    Returns:
        Names of the pipeline files.
    """
    pipelines, table = apart(*_simulated(candidate), models)
    write_bytes(folder / LATENCY, encode_json(table))
    written = []
    for name, pipeline in pipelines.items():
        written.append(f"pipeline.{name}.yaml")
        write_bytes(folder / written[-1], text(_moved(pipeline, Path.cwd(), folder)).encode())
    return written


def _simulated(candidate: Candidate) -> tuple[Pipeline, LatencyTable]:
    """The pipeline and the times that a candidate was simulated with."""
    verdict, mix = candidate.fleet.verdict, candidate.fleet.mix
    assert verdict is not None
    design = candidate.judge.design
    pipeline = pipeline_of(design, mix.counts, verdict.policy)
    assert pipeline is not None
    return pipeline, table_of(design, mix.counts, mix.boxes, pipeline)


def not_served(pipeline: Pipeline) -> list[str]:
    """What `serve` could not run of a fleet that `simulate` can: engines and stages that only have times."""
    return [
        f"engine '{name}' has no backend and no device"
        for name, engine in pipeline.engines.items()
        if engine.backend == "twin" and engine.device is None
    ] + [
        f"stage '{stage.name}' has no model"
        for stage in pipeline.stages
        if stage.model is None and stage.python is None
    ]


def _modules(pipeline: Pipeline) -> set[str]:
    """Python files that the pipeline names functions of."""
    references = [pipeline.inputs]
    for stage in pipeline.stages:
        references += [stage.python, stage.degraded, stage.canary.python if stage.canary is not None else None]
    return {reference.partition(":")[0] for reference in references if reference is not None}


def _moved(pipeline: Pipeline, source: Path, folder: Path) -> Pipeline:
    """Files as seen from the folder the pipeline is written to; twins take their times from the plan's table."""
    engines = {}
    for name, engine in pipeline.engines.items():
        options = dict(engine.options)
        for key in ("operators",):
            if key in options:
                options[key] = _seen(str(options[key]), source, folder)
        if engine.backend == "twin":
            options["times"] = LATENCY
        device = engine.device
        if device is not None and device.endswith((".yaml", ".yml")):
            device = _seen(device, source, folder)
        engines[name] = msgspec.structs.replace(engine, options=options, device=device)
    stages = [_moved_stage(stage, source, folder) for stage in pipeline.stages]
    return msgspec.structs.replace(pipeline, engines=engines, stages=stages)


def _moved_stage(stage: Stage, source: Path, folder: Path) -> Stage:
    canary = stage.canary
    if canary is not None and canary.model is not None:
        canary = msgspec.structs.replace(canary, model=_seen(canary.model, source, folder))
    model = None if stage.model is None else _seen(stage.model, source, folder)
    return msgspec.structs.replace(stage, model=model, canary=canary)


def _seen(reference: str, source: Path, folder: Path) -> str:
    if reference.startswith("package:"):
        return reference
    return os.path.relpath(resolved(source / reference), resolved(folder))


def text(pipeline: Pipeline) -> str:
    """A pipeline file; what has its default is left out."""
    lacks = not_served(pipeline)
    head = _ONLY_TIMES.format(lacks="; ".join(lacks)) if lacks else _HEAD
    return head + yaml.safe_dump(plain(pipeline), sort_keys=False, allow_unicode=True, width=120)


def plain(value: object) -> object:
    """Structures as YAML has them, without what has its default."""
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: plain(getattr(value, field.name))
            for field in msgspec.structs.fields(type(value))
            if not _is_default(getattr(value, field.name), field)
        }
    if isinstance(value, dict):
        return {key: plain(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    return value


def _is_default(value: object, field: msgspec.structs.FieldInfo) -> bool:
    if field.default is not msgspec.NODEFAULT:
        return bool(value == field.default)
    return field.default_factory is not msgspec.NODEFAULT and bool(value == field.default_factory())
