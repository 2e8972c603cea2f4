"""Slices as files: every slice a model, proven against the whole before the plan is kept."""

from pathlib import Path

import msgspec
import onnx

from loadslice.app.slice_problem import Opened
from loadslice.graph.slicing import slice_model
from loadslice.graph.stitch import check_stitched
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.files import sha256_file, write_bytes
from loadslice.spec.slices import SlicePlan


def write_slices(opened: Opened, plan: SlicePlan, parts: list[list[int]], folder: Path, seed: int) -> SlicePlan:
    """Write each slice as a model and check them together.

    Args:
        opened: The whole.
        plan: Its plan.
        parts: Operators of each slice.
        folder: Where to; made if absent.
        seed: Of the inputs that are drawn for the check.

    Returns:
        The plan with file names, hashes, and what the check found; a check that could not run is a note.

    Raises:
        InputError: A slice is too large for one file, or its border cannot be typed.
    """
    models = [
        slice_model(opened.model, opened.body, opened.as_filed, opened.graph, ops, f"slice{place}")
        for place, ops in enumerate(parts)
    ]
    written = []
    for entry, model in zip(plan.slices, models, strict=True):
        name = f"slice{entry.index}-{_plain(entry.engine)}.onnx"
        write_bytes(folder / name, _serialized(model, name))
        written.append(msgspec.structs.replace(entry, model=name, sha256=sha256_file(folder / name)))
    notes, stitched = list(plan.notes), None
    try:
        stitched = check_stitched(opened.model, opened.body, models, seed=seed)
    except (MissingExtraError, InputError) as error:
        notes.append(f"Stitched outputs were not checked: {error}")
    return msgspec.structs.replace(plan, slices=written, stitched=stitched, notes=notes)


def _plain(engine: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in engine)


def _serialized(model: onnx.ModelProto, name: str) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except ValueError as error:
        raise InputError(
            f"{name}: is more than a protobuf file can hold. Cut the model into smaller slices."
        ) from error
