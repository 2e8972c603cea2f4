"""The slices of a plan as a pipeline: what `loadslice serve` takes, with inputs to try it on."""

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import yaml

from loadslice.app.slice_problem import Machine, Opened
from loadslice.app.slice_stages import carries
from loadslice.graph.inputs import numpy_type
from loadslice.graph.shapes import model_inputs
from loadslice.graph.stitch import Arrays, draw_inputs
from loadslice.spec.files import replacing, write_bytes
from loadslice.spec.pipeline import load
from loadslice.spec.slices import Slice, SlicePlan

PIPELINE_FILE = "pipeline.yaml"
INPUTS_MODULE = "slice_inputs"
SAMPLES = 4

_INPUTS = '''"""Inputs drawn for the sliced model, at the shapes that it was sliced for."""

from pathlib import Path

import numpy as np

from loadslice.spec.work import Sample


def samples():
    drawn = np.load(Path(__file__).with_suffix(".npz"))
    numbers = sorted({name.partition("/")[0] for name in drawn.files}, key=int)
    return [
        Sample(f"drawn {number}", "", b"", tensors={
            name.partition("/")[2]: drawn[name] for name in drawn.files if name.partition("/")[0] == number
        })
        for number in numbers
    ]
'''


def write_pipeline(
    opened: Opened, machine: Machine, plan: SlicePlan, devices: Mapping[str, str], folder: Path, seed: int
) -> SlicePlan:
    """Write a pipeline whose stages are the plan's slices.

    Args:
        opened: The whole model.
        machine: Its devices.
        plan: Written, see `loadslice.app.slice_files`.
        devices: Engine to the device that it stands for.
        folder: Where the slices are.
        seed: Of the inputs.

    Returns:
        The plan; a note says why there is no pipeline where there can be none.
    """
    why = _unservable(opened, plan.slices)
    if why is not None:
        return msgspec.structs.replace(plan, notes=[*plan.notes, f"{PIPELINE_FILE} was not written: {why}."])
    answer = [info.name for info in opened.model.graph.output]
    by = carries([one.from_ for one in plan.slices], [one.to for one in plan.slices], answer)
    stages = []
    for one, carry in zip(plan.slices, by, strict=True):
        stage = {"name": f"slice{one.index}", "model": one.model, "engine": one.engine}
        stages.append(stage | ({"carry": carry} if carry else {}))
    used = dict.fromkeys(one.engine for one in plan.slices)
    document = {
        "version": 1,
        "pipeline": re.sub(r"[^A-Za-z0-9._-]", "_", opened.path.stem),
        "engines": {name: _engine(machine.kinds.get(name, "unknown"), devices[name]) for name in used},
        "stages": stages,
        "inputs": f"{INPUTS_MODULE}:samples",
    }
    with replacing(folder / f"{INPUTS_MODULE}.npz") as temporary:
        np.savez(temporary, allow_pickle=False, **_drawn(opened, seed))
    write_bytes(folder / f"{INPUTS_MODULE}.py", _INPUTS.encode())
    write_bytes(folder / PIPELINE_FILE, yaml.safe_dump(document, sort_keys=False).encode())
    load(folder / PIPELINE_FILE)
    return plan


def _engine(kind: str, device: str) -> dict[str, str]:
    """The processor runs its slices itself; what is not here is emulated until a runtime's name is put in its place."""
    if device == "local" or kind in ("cpu", "unknown"):
        return {"backend": "onnxruntime"}
    return {"backend": "twin", "device": device}


def _unservable(opened: Opened, slices: list[Slice]) -> str | None:
    """Why a server could not take requests for these slices.

    Every tensor that it hands on counts the same rows as the model's first input.
    """
    inputs = model_inputs(opened.model.graph)
    if not inputs:
        return "the model has no input, so there is nothing a request could ask"
    for info in inputs:
        if not info.type.HasField("tensor_type") or numpy_type(info).kind not in "fiub":
            return f"input '{info.name}' holds no numbers that an example could be drawn of"
    rows = opened.body.env[inputs[0].name].shape
    for name in dict.fromkeys(name for one in slices for name in (*one.from_, *one.to)):
        shape = opened.body.env[name].shape
        if not shape or not rows or shape[0] != rows[0]:
            return f"tensor '{name}' crosses a cut and its first dimension is not rows"
    return None


def _drawn(opened: Opened, seed: int) -> Arrays:
    return {
        f"{number}/{name}": tensor
        for number in range(SAMPLES)
        for name, tensor in draw_inputs(opened.model, opened.body, seed + number).items()
    }
