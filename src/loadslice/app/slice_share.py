"""Dual bank: which operators two devices together finish sooner than either alone, and the model rewritten so.

Each operator is judged alone, its input and output in the host's memory. A part's time is the whole's, in proportion to
its units, rounded up to whole tiles: what a profile of parts would replace.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx

from loadslice.app.slice_problem import Machine, Opened, assignment_problem
from loadslice.graph.split import SPLIT_OPS, By, channels, split_node
from loadslice.graph.steps import Step
from loadslice.graph.stitch import check_stitched
from loadslice.plan.placement.intraop import best_split
from loadslice.plan.placement.mincut import place_two
from loadslice.plan.placement.problem import FOREVER_NS, Int64, Link, Problem, cost, runs
from loadslice.plan.placement.relaxation import place_many
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.files import write_bytes
from loadslice.spec.slices import Assignment, BankSplit, DeviceLoad, SlicePlan, StitchCheck

SHARED = "sharing"
SHARED_FILE = "shared.onnx"

REL_DIFF_MAX = 1e-4
"""Some hundred times the rounding of fp32; a wrong half is off by more than all of it."""


def share_operators(opened: Opened, machine: Machine, by: By, tile: int) -> list[BankSplit]:
    """Operators worth sharing, by what sharing saves.

    Args:
        opened: The model.
        machine: Two devices.
        by: Output channels or rows.
        tile: Units that a device computes at once.

    Raises:
        InputError: Not two devices.
    """
    names = machine.names
    if len(names) != 2:
        raise InputError(f"--share is between two devices, --devices names {len(names)} ({', '.join(names)}).")
    found = []
    for key, step in zip(opened.graph.keys, opened.graph.ops, strict=True):
        whole_ms = [machine.times[name].nodes_ms[key] for name in names]
        units, step_units = _units(opened, step, by)
        if units < 2 or key != step.node.name or whole_ms[0] is None or whole_ms[1] is None:
            continue
        links = [_link(machine, name) for name in names]
        aligned = -(-tile // step_units) * step_units
        first, second = (
            _part_ns(ms, units, tile, link, _inputs(step), step.outputs[0].nbytes)
            for ms, link in zip(whole_ms, links, strict=True)
            if ms is not None
        )
        merge_ns = max(round((step.outputs[0].nbytes or 0) / link.bytes_per_s * 1e9) for link in links)
        sync_ns = max(link.sync_ns for link in links)
        best = best_split(units, aligned, first, second, sync_ns=sync_ns, merge_ns=merge_ns)
        if 0 < best.first_units < units:
            alone_ns = min(first(units), second(units))
            found.append(
                BankSplit(
                    node=key,
                    op=step.node.op_type,
                    by=by,
                    units=units,
                    first_units=best.first_units,
                    tile=aligned,
                    devices=names,
                    split_ms=best.ns / 1e6,
                    alone_ms=alone_ns / 1e6,
                )
            )
    return sorted(found, key=lambda split: split.split_ms - split.alone_ms)


def shared_way(opened: Opened, machine: Machine, splits: list[BankSplit]) -> Assignment:
    """Latency when every operator may be on either device or, where that is worth it, on both.

    Both together are a third device that is the host: a split's time has its transfers in it. What was measured counts
    by the share of its time that sharing leaves, for the whole's times may be of another machine or another hour.
    """
    two = assignment_problem(opened, machine)
    by_node = {split.node: split for split in splits}
    both = np.array(
        [_both_ns(by_node.get(key), alone) for key, alone in zip(opened.graph.keys, two.op_ns, strict=True)], np.int64
    )
    three = Problem(np.column_stack([two.op_ns, both]), two.tensors, (*two.links, Link()))
    found = place_many(three, [place_two(two).device])
    spent = cost(three, found.device)
    slices = len(runs(three, found.device))
    names = [*machine.names, "+".join(machine.names)]
    return Assignment(
        name=SHARED,
        how=f"any operator on either device or on both: {found.method}",
        latency_ms=spent.latency_ns / 1e6,
        bottleneck_ms=None,
        compute_ms=int(spent.compute_ns.sum()) / 1e6,
        copy_ms=(int(spent.move_ns.sum()) - spent.sync_ns) / 1e6,
        sync_ms=spent.sync_ns / 1e6,
        slices=slices,
        cuts=slices - 1,
        transfers=spent.transfers,
        transfer_bytes=spent.nbytes,
        devices={
            name: DeviceLoad(
                ops=int((found.device == index).sum()),
                compute_ms=int(spent.compute_ns[index]) / 1e6,
                transfer_ms=int(spent.move_ns[index]) / 1e6,
            )
            for index, name in enumerate(names)
        },
        gap_pct=100 * found.gap,
    )


def _both_ns(split: BankSplit | None, alone_ns: Int64) -> int:
    """An operator's time on both devices together, given its times on either."""
    if split is None:
        return FOREVER_NS
    if split.basis == "modelled":
        return round(split.split_ms * 1e6)
    return round(int(alone_ns.min()) * split.split_ms / split.alone_ms)


def _units(opened: Opened, step: Step, by: By) -> tuple[int, int]:
    """How many units an operator's output has and in which steps they divide; (0, 1): it cannot be shared so."""
    if step.node.op_type not in SPLIT_OPS:
        return 0, 1
    try:
        found = channels(opened.model, step.node.name)
    except InputError:  # it multiplies two activations, or has no name
        return 0, 1
    if by == "channel":
        return found.units, found.step
    shape = step.outputs[0].shape
    return (shape[0] or 0, 1) if shape else (0, 1)


def _inputs(step: Step) -> int | None:
    sizes = [value.nbytes for value in step.inputs if value is not None and not value.constant]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _link(machine: Machine, name: str) -> Link:
    link = machine.links[name]
    return Link() if link.bytes_per_s is None else Link(round(link.sync_us * 1e3), link.bytes_per_s)


def _part_ns(
    whole_ms: float, units: int, tile: int, link: Link, in_bytes: int | None, out_bytes: int | None
) -> Callable[[int], int]:
    """Time of a number of units on one device, its input fetched and its part of the output returned."""

    def part_ns(part: int) -> int:
        rounded = min(-(-part // tile) * tile, units)
        returned = None if out_bytes is None else out_bytes * part // units
        return round(whole_ms * 1e6 * rounded / units) + link.transfer_ns(in_bytes) + link.transfer_ns(returned)

    return part_ns


def write_shared(opened: Opened, plan: SlicePlan, folder: Path, seed: int) -> SlicePlan:
    """Write the model with its shared operators as halves, and check it against the whole.

    Raises:
        InputError: The folder cannot be written to.
    """
    model = onnx.ModelProto()
    model.CopyFrom(opened.model)
    for split in plan.splits:
        model = split_node(model, split.node, split.first_units, split.by)
    write_bytes(folder / SHARED_FILE, model.SerializeToString())
    try:
        found = check_stitched(opened.model, opened.body, [model], seed=seed)
    except (MissingExtraError, InputError) as error:
        return msgspec.structs.replace(plan, notes=[*plan.notes, f"{SHARED_FILE} was not checked: {error}"])
    return msgspec.structs.replace(plan, shared=found)


def near_enough(found: StitchCheck | None) -> bool:
    """Halves may order a sum otherwise than the whole: equal to `REL_DIFF_MAX` of the largest output."""
    return found is None or found.bit_equal or (found.max_rel_diff is not None and found.max_rel_diff <= REL_DIFF_MAX)
