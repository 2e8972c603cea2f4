"""`loadslice slice --share ... --measure`: the shared operators on the engines that are here."""

import os
from collections.abc import Mapping, Sequence

import msgspec

from loadslice.app.output import say
from loadslice.app.slice_problem import Opened
from loadslice.backends import probe
from loadslice.graph.cuts import flow
from loadslice.graph.inputs import check_shapes
from loadslice.graph.rewrites.shapes import StaticShapes
from loadslice.graph.shapes import infer
from loadslice.graph.slicing import slice_model
from loadslice.profiles.banks import curve
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.slices import BankSplit

MEASURED_MAX = 4
"""Operators, those that would gain the most; a handful says whether this machine's banks pay at all."""


def measured_splits(
    opened: Opened, splits: Sequence[BankSplit], devices: Mapping[str, str], seed: int, notes: list[str]
) -> list[BankSplit]:
    """Replace modelled times of the heaviest shared operators by measured ones.

    Args:
        opened: The model, with its weights.
        splits: What the plan would share, best first.
        devices: Name to the device that stands for it; both must be ``local``.
        seed: Of the inputs.
        notes: Gains a line for each operator that sharing turns out not to pay for.

    Returns:
        Splits that pay, measured ones first.

    Raises:
        InputError: A device that is not here.
    """
    away = [f"{name}={device}" for name, device in devices.items() if device != "local"]
    if away:
        raise InputError(
            f"--measure runs both halves on this machine: {away[0]} is not here. Give NAME=local for both devices, or "
            "measure there."
        )
    engine = Engine(backend="onnxruntime", threads=1)
    fixed = StaticShapes(opened.shapes)
    model = fixed.call(opened.model).model if fixed.requires(opened.model) is None else opened.model
    check_shapes(opened.path, model, {})
    body = infer(model, {})
    graph = flow(body)
    found: list[BankSplit] = []
    for split in splits[:MEASURED_MAX]:
        say(f"measuring {split.node}, {split.units} units by {split.by}")
        index = [step.node.name for step in graph.ops].index(split.node)
        alone = slice_model(model, body, body, graph, [index], "operator")
        points = curve(alone, split.node, split.by, split.units, split.tile, (engine, engine), seed)
        whole_ms = min(point.together_ms for point in points if point.first_units in (0, split.units))
        shared = [point for point in points if 0 < point.first_units < split.units]
        best = min(shared, key=lambda point: point.together_ms, default=None)
        if best is None or best.together_ms >= whole_ms:
            least = "no part is a whole tile" if best is None else f"{best.together_ms:.3f} ms at best"
            notes.append(f"{split.node}: measured, sharing does not pay: {least}, {whole_ms:.3f} ms on one engine.")
            continue
        found.append(
            msgspec.structs.replace(
                split, first_units=best.first_units, split_ms=best.together_ms, alone_ms=whole_ms, basis="measured",
                curve=points,
            )
        )  # fmt: skip
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    notes.append(
        f"halves ran side by side on {probe.usable_cores()} processors{load}: another's work makes them slower."
    )
    if len(splits) > MEASURED_MAX:
        notes.append(
            f"the {MEASURED_MAX} operators that gain the most were measured; times of the others are modelled."
        )
    return [*found, *splits[MEASURED_MAX:]]
