"""Adding a version to a model repository, and taking the current one from it to serve."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import msgspec
import numpy as np

from loadslice.app import twins
from loadslice.serve.clock import Clock
from loadslice.serve.golden import DRAWN, Golden, record
from loadslice.serve.patience import Patience
from loadslice.serve.serving import Serving
from loadslice.serve.stages import LoadedStage, close_stages, load_stages
from loadslice.serve.warm import FREE_SIDES, warm_models
from loadslice.spec import pipeline as pipelines
from loadslice.spec import repository
from loadslice.spec.errors import InputError, OutputError
from loadslice.spec.files import encode_json, opened, reason, resolve_model, resolved, sha256_file, stamp, write_bytes
from loadslice.spec.functions import call_function
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.repository import GOLDEN_FILE, MANIFEST_FILE, PIPELINE_FILE, File, Manifest, Model
from loadslice.spec.work import Sample

MODELS_FOLDER = "models"
SAFETENSORS_HEAD_BYTES_MAX = 100 << 20
"""Of the format's own definition."""


def add(
    repo: Path,
    pipeline_file: Path,
    *,
    version: str | None,
    allow_code: bool,
    extra: Sequence[Path],
    tolerance: float,
    seed: int,
) -> Manifest:
    """Copy a pipeline and all its models into a repository as a new version, once it has answered a few inputs.

    Args:
        repo: Made if absent.
        pipeline_file: The pipeline.
        version: ``None``: one more than the highest number that is there.
        allow_code: Take its Python modules too.
        extra: Files beside the pipeline that its modules read.
        tolerance: Relative distance from the golden answers that will be allowed.
        seed: Of the inputs that are drawn where the pipeline names none.

    Returns:
        Its manifest; nothing is left behind of a version that could not be added.

    Raises:
        InputError: Something of it is not allowed here, or does not run.
    """
    served = pipelines.load(pipeline_file)
    source = resolved(pipeline_file).parent
    model = Model(resolved(repo) / repository.check_name(served.pipeline, "pipeline"))
    name = version if version is not None else _next_version(model)
    target = model.version_folder(name)
    if target.exists():
        raise InputError(f"{target}: is there already; a version never changes. Add it as another one.")
    with _staging(model.folder) as folder:
        copied = _copy(served, source, folder, allow_code=allow_code, extra=extra)
        write_bytes(folder / PIPELINE_FILE, msgspec.yaml.encode(copied))
        repository.check_confined(copied, folder, allow_code=allow_code)
        check_models(copied, folder)
        write_bytes(folder / GOLDEN_FILE, _golden(copied, folder, tolerance, seed))
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        found = repository.files_of(folder)
        for one in found:
            repository.check_suffix(one, folder, allow_code=allow_code)
        manifest = Manifest(
            name=model.name,
            version=name,
            files={one: File(sha256=sha256_file(folder / one), size_bytes=size) for one, size in sorted(found.items())},
            has_code=any(one.endswith(repository.CODE_SUFFIX) for one in found),
            stamp=stamp(repository.SCHEMA, seed=seed, tools=("numpy", "onnx", "onnxruntime", "openvino")),
        )
        write_bytes(folder / MANIFEST_FILE, encode_json(manifest))
        try:
            folder.chmod(0o755)
            folder.rename(target)
        except OSError as error:
            raise OutputError(f"{target}: cannot be written, {reason(error)}.") from error
    return manifest


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A folder beside the versions that is gone afterwards unless it was renamed, and with it those made for it."""
    made = [one for one in (parent, parent.parent) if not one.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".adding-", dir=parent))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{error.filename or parent}: cannot be written, {reason(error)}.") from error
    finally:
        for one in made:
            with contextlib.suppress(OSError):  # there is something in it
                one.rmdir()


def _next_version(model: Model) -> str:
    return str(1 + max((int(one) for one in model.versions() if one.isdigit()), default=0))


def _copy(served: Pipeline, source: Path, folder: Path, *, allow_code: bool, extra: Sequence[Path]) -> Pipeline:
    """Copy what a pipeline names; returns it with the places things have now."""
    (folder / MODELS_FOLDER).mkdir()
    taken: dict[str, Path] = {}

    def place(reference: str) -> str:
        path = resolve_model(reference, source)
        if taken.setdefault(path.name, path) != path:
            raise InputError(f"model '{reference}': another model here is called {path.name} too; rename one.")
        _copy_file(path, folder / MODELS_FOLDER / path.name)
        for location in external_files(path):
            inside = folder / MODELS_FOLDER / location
            inside.parent.mkdir(parents=True, exist_ok=True)
            _copy_file(path.parent / location, inside)
        return f"{MODELS_FOLDER}/{path.name}"

    stages: list[Stage] = []
    for stage in served.stages:
        moved = stage if stage.model is None else msgspec.structs.replace(stage, model=place(stage.model))
        if stage.canary is not None and stage.canary.model is not None:
            canary = msgspec.structs.replace(stage.canary, model=place(stage.canary.model))
            moved = msgspec.structs.replace(moved, canary=canary)
        stages.append(moved)
    for path in _beside(served, source, allow_code=allow_code, extra=extra):
        inside = folder / path.relative_to(source)
        inside.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(path, inside)
    return msgspec.structs.replace(served, stages=stages)


def _beside(served: Pipeline, source: Path, *, allow_code: bool, extra: Sequence[Path]) -> list[Path]:
    """Files in the pipeline's folder that go with it: device files and tables of emulated engines, modules, extras."""
    paths = [resolved(path) for path in extra]
    for engine in served.engines.values():
        texts = [text for text in (engine.device, *engine.options.values()) if isinstance(text, str)]
        paths.extend(resolved(source / text) for text in texts if (source / text).is_file())
    if allow_code:
        paths += sorted(source.glob(f"*{repository.CODE_SUFFIX}"))
    for path in paths:
        if not path.is_relative_to(source):
            raise InputError(f"{path}: is outside the pipeline's folder ({source}); a version holds all it needs.")
    return list(dict.fromkeys(paths))


def _copy_file(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise InputError(f"{source}: cannot be copied, {reason(error)}.") from error


def external_files(path: Path) -> list[str]:
    """Files beside an ONNX model that hold its weights; checked to be inside its folder.

    Raises:
        InputError: Not a valid model, or it reaches outside its folder.
    """
    if path.suffix.lower() != ".onnx":
        return []
    # Here, because a server of one pipeline file does not need what looks into models.
    import onnx

    from loadslice.graph.load import graphs, load, stored_tensors

    load(path)
    model = onnx.load(str(path), load_external_data=False)
    tensors = [tensor for graph, _ in graphs(model.graph) for tensor in stored_tensors(graph)]
    locations = (
        entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location" and entry.value
    )
    return sorted({str(PurePosixPath(location)) for location in locations})


def check_models(pipeline: Pipeline, folder: Path) -> None:
    """Open every model file of a pipeline and check its form; nothing is run.

    Raises:
        InputError: Not ONNX or safetensors, or one that reaches outside its folder.
    """
    references = [stage.model for stage in pipeline.stages]
    references += [stage.canary.model for stage in pipeline.stages if stage.canary is not None]
    for reference in sorted({one for one in references if one is not None}):
        path = resolve_model(reference, folder)
        if path.suffix.lower() == ".onnx":
            external_files(path)
        elif path.suffix.lower() == ".safetensors":
            check_safetensors(path)
        else:
            raise InputError(f"{path}: a version holds ONNX and safetensors models.")


def check_safetensors(path: Path) -> None:
    """Check the head of a safetensors file: its length, its JSON, and that its tensors lie inside the file.

    Raises:
        InputError: It is not one.
    """
    try:
        size = path.stat().st_size
        with opened(path) as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(SAFETENSORS_HEAD_BYTES_MAX, size - 8):
                raise InputError(f"{path}: not a safetensors file (its head would be {length} bytes).")
            head = json.loads(stream.read(length))
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a safetensors file (its head is not JSON).") from error
    if not isinstance(head, dict):
        raise InputError(f"{path}: not a safetensors file (its head is not a table).")
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        is_pair = isinstance(offsets, list) and len(offsets) == 2 and all(type(one) is int for one in offsets)
        if offsets is None or not is_pair or not 0 <= offsets[0] <= offsets[1] <= size - 8 - length:
            raise InputError(f"{path}: tensor '{name:.80}' lies outside the file.")


def _golden(copied: Pipeline, folder: Path, tolerance: float, seed: int) -> bytes:
    served, patience = twins.resolved(copied, folder), Patience()

    def recorded() -> bytes:
        stages = load_stages(served, folder, Clock(), patience.step)
        try:
            warm_models(served, stages, step=patience.step)
            patience.step("golden inputs")
            return record(stages, _samples(served, folder, stages, seed), tolerance, patience.step)
        finally:
            close_stages(stages)

    return patience.run(recorded)


def _samples(served: Pipeline, folder: Path, stages: Sequence[LoadedStage], seed: int) -> list[Sample]:
    """The pipeline's own examples, or drawn tensors of its first model's shapes."""
    if served.inputs is not None:
        samples = call_function(served.inputs, folder)
        if not isinstance(samples, list) or not all(isinstance(one, Sample) for one in samples):
            raise InputError(f"inputs '{served.inputs}': gives something else than a list of samples.")
        return samples
    inputs = stages[0].stable.inputs
    if inputs is None:
        raise InputError("the first stage is a function, so there is nothing to ask it; give the pipeline `inputs:`.")
    generator = np.random.default_rng(seed)
    samples = []
    for number in range(DRAWN):
        tensors = {}
        for info in inputs:
            sides = [FREE_SIDES[0] if side is None else side for side in info.shape[1:]]
            if stages[0].stage.buckets and info is inputs[0]:
                sides = stages[0].stage.buckets[number % len(stages[0].stage.buckets)]
            shape = (1 if not info.shape or info.shape[0] is None else info.shape[0], *sides)
            if info.dtype.kind == "f":
                tensors[info.name] = generator.standard_normal(shape).astype(info.dtype)
            elif info.dtype.kind in "iub":
                tensors[info.name] = generator.integers(0, 2, shape).astype(info.dtype)
            else:
                raise InputError(f"input '{info.name}' takes texts, which are not drawn; give the pipeline `inputs:`.")
        samples.append(Sample(f"drawn {number}", "", b"", tensors=tensors))
    return samples


def serving(
    model: Model, version: str, *, allow_code: bool, dilate: float = 1.0, latency: LatencyTable | None = None
) -> Serving:
    """Verify a version and make it ready to be served; its golden answers are asked for once it is loaded.

    Raises:
        InputError: It is not what was added, or holds what is not allowed here.
    """
    pipeline = model.verify(version, allow_code=allow_code)
    folder = model.version_folder(version)
    check_models(pipeline, folder)
    golden = Golden(folder / GOLDEN_FILE)
    return Serving(
        twins.resolved(pipeline, folder, dilate),
        folder,
        latency,
        version=version,
        probation=golden.probation,
    )
