"""The minimal bundle that repeats an evaluation elsewhere: files, versions, commands, seeds; no machine's paths."""

import io
import re
import zipfile
from pathlib import Path

import msgspec
import yaml

from loadslice.app.evaluate_files import Bench, Opened
from loadslice.spec.errors import InputError
from loadslice.spec.evaluation import Evaluation
from loadslice.spec.evaluation_report import EvaluationReport
from loadslice.spec.files import encode_json, read_bytes, resolve_model, resolved, write_bytes
from loadslice.spec.pipeline import Pipeline

FILE_BYTES_MAX = 512 * 1024 * 1024
BUNDLE_BYTES_MAX = 2 * 1024 * 1024 * 1024

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Of every file in it, so that the same evaluation gives the same bytes."""

README = """# To repeat this evaluation

    pip install 'loadslice{extras}=={version}'
    {command}

`evaluation.json` is what it said, `environment.json` where; `loadslice env check environment.json` tells what differs
on your machine. Seed: {seed}. Versions:

{versions}
"""


def check(path: Path) -> None:
    """Refuse a bundle that cannot be written, before anything is run.

    Raises:
        InputError: Not a ``.zip``.
    """
    if path.suffix != ".zip":
        raise InputError(f"--bundle {path}: name a .zip file.")


def write(path: Path, bench: Bench, report: EvaluationReport, command: str) -> None:
    """Write the bundle.

    Raises:
        InputError: A file of it is too large.
    """
    files: dict[str, bytes] = {}
    for opened in bench.placements:
        if opened.path is not None and opened.pipeline is not None:
            _add_pipeline(files, opened, f"placements/{opened.placement.name}")
    folder = bench.path.parent
    wanted = bench.wanted
    if wanted.inputs is not None:
        module = f"{wanted.inputs.partition(':')[0]}.py"
        files[module] = read_bytes(folder / module)
    if wanted.trace is not None:
        files[Path(wanted.trace).name] = read_bytes(folder / wanted.trace, max_bytes=FILE_BYTES_MAX)
    if wanted.model is not None and not wanted.model.startswith("package:"):
        files[Path(wanted.model).name] = read_bytes(resolve_model(wanted.model, folder), max_bytes=FILE_BYTES_MAX)
    files["evaluation.yaml"] = yaml.safe_dump(_moved(wanted), sort_keys=False).encode()
    files["evaluation.json"] = _without_paths(encode_json(report), bench)
    files["environment.json"] = encode_json(bench.environment)
    files["README.md"] = _readme(bench, report, command).encode()
    if sum(map(len, files.values())) > BUNDLE_BYTES_MAX:
        raise InputError(f"--bundle {path}: its files are more than {BUNDLE_BYTES_MAX} bytes.")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
    write_bytes(path, buffer.getvalue())


def _add_pipeline(files: dict[str, bytes], opened: Opened, inside: str) -> None:
    """A pipeline file with the models, modules and tables it names, in one folder."""
    assert opened.path is not None
    assert opened.pipeline is not None
    folder = opened.folder
    files[f"{inside}/pipeline.yaml"] = read_bytes(opened.path)
    for relative in _named(opened.pipeline, folder):
        path = resolved(folder / relative)
        if path.is_file():
            files[f"{inside}/{relative}"] = read_bytes(path, max_bytes=FILE_BYTES_MAX)


def _named(pipeline: Pipeline, folder: Path) -> list[str]:
    """Files of the folder that the pipeline needs, by name relative to it; packages stay references."""
    models = [stage.model for stage in pipeline.stages if stage.model is not None]
    models += [stage.canary.model for stage in pipeline.stages if stage.canary is not None and stage.canary.model]
    options = [value for engine in pipeline.engines.values() for value in engine.options.values()]
    named = [name for name in models if not name.startswith("package:")]
    named += [value for value in options if isinstance(value, str) and (folder / value).is_file()]
    named += [
        engine.device for engine in pipeline.engines.values() if engine.device and (folder / engine.device).is_file()
    ]
    outside = [name for name in named if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise InputError(
            f"--bundle: '{outside[0]}' lies outside its pipeline's folder; put it beside the pipeline file."
        )
    modules = [path.name for path in sorted(folder.glob("*.py")) if not path.name.endswith("_test.py")]
    return list(dict.fromkeys([*named, *modules]))


def _moved(wanted: Evaluation) -> dict[str, object]:
    """The evaluation file with every path inside the bundle."""
    placements = [
        msgspec.structs.replace(placement, pipeline=f"placements/{placement.name}/pipeline.yaml")
        if placement.pipeline is not None
        else placement
        for placement in wanted.placements
    ]
    moved = msgspec.structs.replace(
        wanted,
        placements=placements,
        trace=None if wanted.trace is None else Path(wanted.trace).name,
        model=wanted.model if wanted.model is None or wanted.model.startswith("package:") else Path(wanted.model).name,
    )
    document: dict[str, object] = msgspec.to_builtins(moved)
    return document


def _without_paths(raw: bytes, bench: Bench) -> bytes:
    """Absolute paths of this machine's folders, replaced by a mark."""
    text = raw.decode()
    for folder in {str(resolved(bench.path.parent)), str(Path.home()), str(Path.cwd())}:
        if folder != "/":
            text = text.replace(folder, "<folder>")
    return re.sub(r"/tmp/[^\s\"':;,)]+", "<scratch>", text).encode()  # noqa: S108 - taken out, not written to


def _readme(bench: Bench, report: EvaluationReport, command: str) -> str:
    tools = report.stamp.tools if report.stamp is not None else {}
    versions = "\n".join(f"- {name} {version}" for name, version in sorted(tools.items()))
    extras = sorted(set(tools) & {"onnxruntime", "openvino"})
    quick = " --quick" if "--quick" in command.split() else ""
    return README.format(
        extras=f"[{','.join(extras)}]" if extras else "",
        version=report.stamp.loadslice if report.stamp is not None else "",
        command=f"loadslice evaluate evaluation.yaml{quick} --out out",
        seed=bench.wanted.seed,
        versions=versions,
    )
