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
from loadslice.profiles.banks import curve, shares
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.slices import BankPoint, BankSplit

MEASURED = 16
"""Operators, those that would gain the most, where no other number is given: seconds, and most of a model's time."""


def measured_splits(
    opened: Opened, splits: Sequence[BankSplit], devices: Mapping[str, str], most: int, seed: int, notes: list[str]
) -> list[BankSplit]:
    """Of the operators that would be shared, those that sharing is measured to pay for.

    A division is chosen by one series of runs, and whether it pays is told by another.

    Args:
        opened: The model, with its weights.
        splits: What the plan would share, best first.
        devices: Name to the device that stands for it; both must be ``local``.
        most: Operators to measure.
        seed: Of the inputs.
        notes: Gains a line for each operator that sharing turns out not to pay for, and one for all together.

    Returns:
        Splits that pay, as measured. What was not measured is not among them: a model that was wrong about the
        heaviest is no reason to share the others.

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
    tried_ms = saved_ms = 0.0
    for split in splits[:most]:
        say(f"measuring {split.node}, {split.units} units by {split.by}")
        index = [step.node.name for step in graph.ops].index(split.node)
        alone = slice_model(model, body, body, graph, [index], "operator")
        parts = shares(split.units, split.tile)
        points = curve(alone, split.node, split.by, split.units, parts, (engine, engine), seed)
        best, whole_ms = _best(points, split.units)
        if best is not None:
            again = curve(alone, split.node, split.by, split.units, [best.first_units], (engine, engine), seed)
            best, whole_ms = _best(again, split.units)
        tried_ms += whole_ms
        if best is None or best.together_ms >= whole_ms:
            least = "no part is a whole tile" if best is None else f"{best.together_ms:.3f} ms at best"
            notes.append(f"{split.node}: measured, sharing does not pay: {least}, {whole_ms:.3f} ms on one engine.")
            continue
        saved_ms += whole_ms - best.together_ms
        found.append(
            msgspec.structs.replace(
                split, first_units=best.first_units, split_ms=best.together_ms, alone_ms=whole_ms, basis="measured",
                curve=points,
            )
        )  # fmt: skip
    measured = min(most, len(splits))
    if measured:
        notes.append(
            f"of {measured} operators measured, sharing pays for {len(found)}: {tried_ms:.3f} ms on one engine, "
            f"{tried_ms - saved_ms:.3f} ms with those shared."
        )
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    notes.append(
        f"halves ran side by side on {probe.usable_cores()} processors{load}: another's work makes them slower."
    )
    if len(splits) > most:
        notes.append(
            f"the {most} operators that would gain the most were measured; the {len(splits) - most} others were not, "
            "and are not shared. More with --operators."
        )
    return found


def _best(points: Sequence[BankPoint], units: int) -> tuple[BankPoint | None, float]:
    """The quickest division, and the time of the whole on the quicker engine, ms."""
    whole_ms = min(point.together_ms for point in points if point.first_units in (0, units))
    divided = [point for point in points if 0 < point.first_units < units]
    return min(divided, key=lambda point: point.together_ms, default=None), whole_ms
