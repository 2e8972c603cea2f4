"""`loadslice squeeze PIPELINE.yaml`: a whole service, from its file to a proven one beside it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from loadslice.app.inputs import with_inputs
from loadslice.app.output import keep, say
from loadslice.profiles import samples
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml, resolved, write_bytes
from loadslice.spec.functions import load_function
from loadslice.spec.pipeline import Pipeline, load
from loadslice.spec.service import Service, StageChoice
from loadslice.spec.work import Sample
from loadslice.variants.recorded import contents
from loadslice.workload import importing

TUNED_FILE = "squeezed.yaml"
REQUESTS = 32
"""Drawn from the trace, in proportion to how often it names each input."""


def run(path: Path, trace: Path | None, seconds: float, out: Path, seed: int) -> Service:
    """Squeeze a service; writes the record into ``out`` and the tuned pipeline beside the source's file.

    Args:
        path: The pipeline file.
        trace: Recorded requests that weigh its example inputs; ``None``: all alike.
        seconds: For timing.
        out: Folder for artefacts and ``service.json``.
        seed: Of the draw from the trace.

    Raises:
        InputError: The pipeline, its inputs or the trace cannot be used, or it is itself the result of a squeeze.
    """
    from loadslice.profiles import service

    pipeline = load(path)
    folder = resolved(path).parent
    target = folder / TUNED_FILE
    if resolved(path) == target:
        raise InputError(f"{path}: is where the result goes. Squeeze the pipeline that it was made from.")
    given = samples.of_pipeline(pipeline, folder)
    given = [given[index] for index in np.random.default_rng(seed).permutation(len(given))]
    calls = [one.name for one in given] if trace is None else _drawn(given, pipeline, folder, trace, seed)
    found, stands_for = _distinct(given)
    if len(found) < len(given):
        say(f"of {len(given)} example inputs {len(found)} are different; the others repeat them")
    calls = [stands_for[name] for name in calls]
    order = service.Order(
        pipeline=pipeline, path=path, document=decode_yaml(path, dict[str, Any]), samples=found, calls=calls,
        scorer=_scorer(pipeline, folder), seconds=seconds, tell=say,
    )  # fmt: skip
    record, document = service.squeeze(order, out)
    keep(record, out, "service.json")
    if proven(record):
        write_bytes(target, yaml.safe_dump(document, sort_keys=False, width=120).encode())
        load(target)
        say(f"written: {target}")
    elif _loads_from(target, out):
        # It would go on with models that were just made anew, and not proven.
        target.unlink()
        say(f"removed: {target}, of an earlier run; what it served from {out} was made anew and is not good enough")
    return record


def _distinct(given: Sequence[Sample]) -> tuple[list[Sample], dict[str, str]]:
    """Each example once, and the one that stands for each name: no input may be calibrated on and judge."""
    first: dict[tuple[object, ...], Sample] = {}
    stands_for = {}
    for one in given:
        asked = (one.content_type, one.body) if one.tensors is None else (contents(one.tensors),)
        stands_for[one.name] = first.setdefault((*asked, tuple(one.truth or ())), one).name
    return list(first.values()), stands_for


def proven(record: Service) -> bool:
    """It met its floor, and is faster."""
    return record.tuned_metric >= record.floor and record.throughput_speedup > 1


def _loads_from(target: Path, out: Path) -> bool:
    """Whether a pipeline file is there that loads models kept in a folder."""
    try:
        models = [stage.model for stage in load(target).stages if stage.model is not None]
    except InputError:
        return False  # absent, or nothing that is served
    return any(resolved(target.parent / model).is_relative_to(resolved(out)) for model in models)


def lines(record: Service) -> Iterator[str]:
    """For a person."""
    for stage in record.stages:
        yield from _stage(stage)
    yield (
        f"{record.metric}: {record.source_metric:.4f} untuned, {record.tuned_metric:.4f} squeezed "
        f"(floor {record.floor:.4f}, {record.judged_inputs} inputs that nothing was calibrated on or chosen by)"
    )
    if record.inputs is not None and record.inputs.choice:
        yield f"calibrated on {len(record.inputs.calibration)} others, chosen by {len(record.inputs.choice)} others"
    for name, rates in (("untuned", record.untuned), ("squeezed", record.tuned)):
        for rate in rates:
            yield (
                f"{name:9} {rate.callers} callers, {rate.streams} streams of {rate.threads} threads: "
                f"{rate.requests_per_s:.1f} requests/s, {rate.cpu_ms_per_request:.1f} ms of processor time each"
            )
    load = "" if record.load_average_1m is None else f"; load average before it {record.load_average_1m:.1f}"
    yield (
        f"the service: {record.throughput_speedup:.2f}x the requests per second, {record.cpu_speedup:.2f}x less "
        f"processor time{load}"
    )
    yield from record.notes
    yield _conclusion(record)


def _conclusion(record: Service) -> str:
    """What to serve, in one sentence."""
    if proven(record):
        return f"Serve {TUNED_FILE}: it meets the floor at {record.throughput_speedup:.2f}x the requests per second."
    if record.tuned_metric < record.floor:
        why = f"its answers miss the floor ({record.tuned_metric:.4f} against {record.floor:.4f})"
    else:
        why = f"it is not faster ({record.throughput_speedup:.2f}x the requests per second)"
    return f"Keep the pipeline as it is: {why}."


def _stage(stage: StageChoice) -> Iterator[str]:
    yield f"{stage.stage}: {stage.chosen}"
    for one in stage.candidates:
        mark = "*" if one.name == stage.chosen else "+" if one.on_front else " "
        yield f"  {mark} {one.name:32} {one.cpu_ms:9.2f} ms  {one.cpu_speedup:5.2f}x  cosine {one.cosine:.5f}"
    shapes = ", ".join(f"{name} {cost:.2f} ms" for name, cost in stage.buckets_cpu_ms.items())
    yield f"    buckets: {stage.buckets_from} ({shapes} a request)"
    rows = ", ".join(f"{name} {cost:.2f} ms" for name, cost in stage.batch_cpu_ms.items())
    yield f"    batch: {stage.batch} ({rows} a row)"


def _scorer(pipeline: Pipeline, folder: Path) -> Any:
    """The inputs module's ``score``, where it has one."""
    assert pipeline.inputs is not None
    try:
        return load_function(f"{pipeline.inputs.partition(':')[0]}:score", folder)
    except InputError as error:
        if "has no function" in str(error):
            return None
        raise


def _drawn(found: Sequence[Sample], pipeline: Pipeline, folder: Path, trace: Path, seed: int) -> list[str]:
    """Names of inputs as often as the trace names them, by systematic sampling: each at its share, rounded."""
    frame = with_inputs(importing.load(trace).frame, pipeline, folder)
    if "input" not in frame.columns:
        raise InputError(f"--data {trace}: no column `input`, and the pipeline's inputs module has no `assign`.")
    known = {sample.name for sample in found}
    names = sorted(name for name in frame["input"].drop_nulls().to_list() if name in known)
    if not names:
        raise InputError(f"--data {trace}: none of its inputs is an example of the pipeline ({next(iter(known))} ...).")
    draw = np.random.default_rng(seed)
    start, count = draw.random(), max(REQUESTS, len(set(names)))
    drawn = [names[int((index + start) * len(names) / count)] for index in range(count)]
    return [drawn[index] for index in draw.permutation(count)]
