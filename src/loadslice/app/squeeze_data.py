"""Where the inputs of `loadslice squeeze` come from: a folder or a pipeline's examples, weighed by a trace."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from loadslice.app import twins
from loadslice.app.inputs import with_inputs
from loadslice.backends.base import TensorInfo
from loadslice.profiles import samples
from loadslice.profiles.chain import close, open_steps, walk
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, resolved
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.pipeline import load as load_pipeline
from loadslice.variants import recorded
from loadslice.variants.recorded import Feeds, Recorded
from loadslice.workload import importing

_PIPELINE = (".yaml", ".yml")


def read(data: Path, inputs: Path | None, model: Path, infos: Sequence[TensorInfo]) -> Recorded:
    """Gather and check a model's inputs.

    Args:
        data: A folder of ``.npz`` files, a pipeline file, or a trace (then ``inputs`` is one of the other two).
        inputs: Where the tensors are that a trace only names.
        model: The model, to find its stage in a pipeline.
        infos: The model's inputs.

    Raises:
        InputError: No such place, or inputs that the model cannot take.
    """
    if not data.exists():
        raise InputError(f"--data {data}: no such file or folder.")
    is_trace = not _is_pipeline(data) and not (data.is_dir() and any(data.glob("*.npz")))
    if not is_trace and inputs is None:
        return _tensors(data, model, infos)
    if data.is_dir() and not any(data.glob("part-*.parquet")):
        return recorded.of_folder(data, infos)
    if inputs is None:
        raise InputError(
            f"--data {data}: a trace names its inputs and does not hold them. Add --inputs DIR with one .npz file per "
            "name, or --inputs PIPELINE.yaml."
        )
    frame = importing.load(data).frame
    if _is_pipeline(inputs):
        frame = with_inputs(frame, load_pipeline(inputs), resolved(inputs).parent)
    if "input" not in frame.columns:
        raise InputError(
            f"--data {data}: no column `input` says which input stands for a request. Import it with "
            "--map COLUMN=input, or give the inputs alone: --data DIR."
        )
    names = frame["input"].drop_nulls().to_list()
    return _weighted(_tensors(inputs, model, infos), Counter(names), data)


def _weighted(found: Recorded, counts: Counter[str], trace: Path) -> Recorded:
    """Rows of one request have the request's name and a number; each counts as often as the request came."""
    rows = {name: counts[name.partition("#")[0]] for name in found.names if counts[name.partition("#")[0]]}
    return recorded.weighted(found, rows or counts, f"--data {trace}")


def _is_pipeline(path: Path) -> bool:
    return path.suffix in _PIPELINE


def _tensors(place: Path, model: Path, infos: Sequence[TensorInfo]) -> Recorded:
    if _is_pipeline(place):
        pipeline = twins.resolved(load_pipeline(place), resolved(place).parent, keeps_time=False)
        return _of_pipeline(pipeline, place, model, infos)
    return recorded.of_folder(place, infos)


def _of_pipeline(pipeline: Pipeline, path: Path, model: Path, infos: Sequence[TensorInfo]) -> Recorded:
    """What the pipeline's examples bring to the stage that runs ``model``, a row at a time."""
    folder = resolved(path).parent
    stage = next(
        (
            one
            for one in pipeline.stages
            if one.model is not None and resolve_model(one.model, folder) == resolved(model)
        ),
        None,
    )
    if stage is None:
        known = ", ".join(one.model for one in pipeline.stages if one.model is not None) or "none"
        raise InputError(f"{path}: no stage runs {model} (its models: {known}).")
    steps = open_steps(pipeline, folder, [stage.engine_names[0]])
    index = next(number for number, step in enumerate(steps) if step.stage is stage)
    names: list[str] = []
    feeds: list[Feeds] = []
    try:
        for sample in samples.of_pipeline(pipeline, folder):
            work = walk(sample, steps)[index]
            tensors = dict(work.tensors)
            if len(infos) == 1 and len(tensors) == 1:
                # Engines take a lone tensor under any name; a quantiser wants the model's.
                tensors = {infos[0].name: next(iter(tensors.values()))}
            for row in range(work.items):
                names.append(f"{sample.name}#{row}")
                feeds.append({name: tensor[row : row + 1] for name, tensor in tensors.items()})
    finally:
        close(steps)
    return recorded.checked(names, feeds, infos, None, f"--data {path}, stage '{stage.name}'")
