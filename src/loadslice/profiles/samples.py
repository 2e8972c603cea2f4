"""Finding the inputs a pipeline is measured on."""

import mimetypes
from collections.abc import Iterable
from pathlib import Path

from loadslice.spec.arrays import read_npz
from loadslice.spec.errors import InputError
from loadslice.spec.files import read_bytes, reason
from loadslice.spec.functions import call_function
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.work import Sample


def of_pipeline(pipeline: Pipeline, folder: Path) -> list[Sample]:
    """The examples a pipeline names itself.

    Args:
        pipeline: Its key ``inputs`` names a function without arguments that gives `loadslice.spec.work.Sample` objects.
        folder: The folder of the pipeline file.

    Raises:
        InputError: No such key or function, or it does not give samples of different names.
    """
    if pipeline.inputs is None:
        raise InputError(
            f"pipeline '{pipeline.pipeline}' names no example inputs. "
            "Add `inputs: module:function` to it, or give a folder of files with --inputs DIR "
            "(.npz files for a pipeline of tensors)."
        )
    given = call_function(pipeline.inputs, folder)
    if not isinstance(given, Iterable):
        raise InputError(f"inputs '{pipeline.inputs}': gives {type(given).__name__}, not a list of samples.")
    found = list(given)
    for number, sample in enumerate(found):
        if not isinstance(sample, Sample):
            raise InputError(
                f"inputs '{pipeline.inputs}': item {number} is {type(sample).__name__}, not loadslice.spec.work.Sample."
            )
    return _checked(found, f"inputs '{pipeline.inputs}'")


def of_folder(folder: Path) -> list[Sample]:
    """One sample per file, by name; ``.npz`` files hold tensors, every other file is a request body.

    Raises:
        InputError: Unreadable, empty, or an ``.npz`` file that is not one.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"--inputs {folder}: cannot be read, {reason(error)}.") from error
    return _checked([_of_file(path) for path in paths], f"--inputs {folder}")


def _of_file(path: Path) -> Sample:
    body = read_bytes(path)
    if path.suffix != ".npz":
        content_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return Sample(path.name, content_type, body)
    try:
        return Sample(path.name, "application/x-npz", body, tensors=dict(read_npz(body)))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not an .npz file of arrays.") from error


def _checked(samples: list[Sample], place: str) -> list[Sample]:
    if not samples:
        raise InputError(f"{place}: no inputs; at least one is needed.")
    names = [sample.name for sample in samples]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{place}: two inputs are named '{name}'.")
    return samples
