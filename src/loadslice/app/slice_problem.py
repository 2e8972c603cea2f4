"""From a model and what is known of devices to an assignment problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import onnx

from loadslice.app.output import say
from loadslice.backends import probe
from loadslice.graph import devices as catalogue
from loadslice.graph import inputs
from loadslice.graph.cuts import Cut, Flow, flow, legal_cuts
from loadslice.graph.load import load
from loadslice.graph.op_times import modelled, shortened
from loadslice.graph.shapes import infer, model_inputs
from loadslice.graph.slicing import passed_through
from loadslice.graph.steps import Body
from loadslice.plan.placement import problem as placing
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file
from loadslice.spec.slices import MS_MAX, DeviceTimes, Link, OpTimes

HOST_LINK = Link(bytes_per_s=None, sync_us=0.0, basis="host", source="it is the host")

ASSUMED_BYTES_PER_S = 16e9
"""PCIe 3.0 x16, the slowest link of the catalogue's accelerators that have one."""

ASSUMED_SYNC_US = 50.0
"""A launch after the queue has drained, lower end of what HeteroLLM's authors report for phones (50 to 100 us)."""


@dataclass(frozen=True)
class Opened:
    """A model at given shapes, taken apart."""

    path: Path
    sha256: str
    model: onnx.ModelProto
    body: Body
    as_filed: Body
    """Walked without the given shapes."""
    graph: Flow
    cuts: list[Cut]
    shapes: dict[str, list[int]]


@dataclass(frozen=True)
class Machine:
    """Devices by name, in the order given."""

    times: dict[str, DeviceTimes]
    links: dict[str, Link]
    kinds: dict[str, str]
    """``cpu``, ``gpu``, ``npu``; ``unknown`` for a device that only a times file knows."""
    modelled: dict[str, Device]
    """Devices whose times are a roofline's, by name."""

    @property
    def names(self) -> list[str]:
        """In the order given."""
        return list(self.times)


def open_model(path: Path, given: dict[str, list[int]], *, weights: bool = False) -> Opened:
    """Open a model and find its operators and legal cuts.

    Args:
        path: An `.onnx` file.
        given: Input name to shape.
        weights: Also read external weights: to write slices or to share operators.

    Raises:
        InputError: It cannot be opened, an input has no shape, or there is nothing in it to cut.
    """
    model = load(path, weights=weights)
    inputs.check_shapes(path, model, given)
    missing = [entry for entry in inputs.dynamic_inputs(model, given) if entry.given is None]
    if missing:
        example = " ".join(
            f"--shape {e.name}={'x'.join(str(d) if isinstance(d, int) else 'N' for d in e.shape or ['N'])}"
            for e in missing
        )
        raise InputError(
            f"{path}: operator times depend on shapes the file leaves open. Give {example} (N: your size)."
        )
    try:
        body = infer(model, given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    graph = flow(body, unread=False)
    handed_back = passed_through(model, graph)
    if handed_back:
        raise InputError(f"{path}: no operator makes its output '{handed_back[0]}', so no slice could give it.")
    if len(graph.ops) < 2:
        raise InputError(f"{path}: has no legal cut: {len(graph.ops)} operators. Run it whole on its fastest device.")
    shapes = {
        info.name: [dim for dim in body.env[info.name].shape or () if dim is not None]
        for info in model_inputs(model.graph)
    }
    return Opened(path, sha256_file(path), model, body, infer(model, {}), graph, legal_cuts(graph), shapes)


def describe_machine(
    opened: Opened,
    devices: Mapping[str, str],
    times: OpTimes | None,
    links: Mapping[str, Link],
    unsupported: Mapping[str, Sequence[str]],
    notes: list[str],
) -> Machine:
    """Operator times and a link for every device: measured where a file has them, modelled otherwise.

    Args:
        opened: The model.
        devices: Name to the device of the catalogue that stands for it.
        times: Of this model at these shapes.
        links: By name, before any other.
        unsupported: Operator types that a device cannot run, by its name.
        notes: Gains a line for each assumption made.

    Raises:
        InputError: An unknown device, times of another model or shape or that lack nodes, or an operator that no
            device can run.
    """
    if times is not None:
        _check_times(opened, times)
    for name in [*links, *unsupported]:
        if name not in devices:
            raise InputError(f"'{name}' is not one of --devices ({', '.join(devices)}).")
    found: dict[str, DeviceTimes] = {}
    chosen: dict[str, Link] = {}
    kinds: dict[str, str] = {}
    rooflines: dict[str, Device] = {}
    for name, reference in devices.items():
        lacks = dict.fromkeys(unsupported.get(name, ()), "not supported, by --unsupported")
        if times is not None and name in times.devices:
            found[name] = _measured(opened, name, times.devices[name], lacks)
            kinds[name] = "cpu" if name.startswith("cpu") else "unknown"
            chosen[name] = links.get(name) or times.devices[name].link or _assumed_link(kinds[name], None)
        else:
            device = _device(name, reference, times)
            found[name] = modelled(opened.body, opened.graph, device, lacks, notes)
            kinds[name] = device.kind
            rooflines[name] = device
            chosen[name] = links.get(name) or _assumed_link(device.kind, device)
    _check_support(opened, found)
    return Machine(found, chosen, kinds, rooflines)


def without(opened: Opened, machine: Machine, lacking: Mapping[str, Mapping[str, str]]) -> Machine:
    """The machine with operators taken from devices: by name, key of the operator to why.

    Raises:
        InputError: An operator that no device is left for.
    """
    times = {
        name: msgspec.structs.replace(
            one, nodes_ms={key: None if key in lacking.get(name, ()) else ms for key, ms in one.nodes_ms.items()}
        )
        for name, one in machine.times.items()
    }
    _check_support(opened, times)
    return replace(machine, times=times)


def _check_times(opened: Opened, times: OpTimes) -> None:
    if times.model_sha256 != opened.sha256:
        raise InputError(
            f"--times is of a model with sha256 {times.model_sha256[:16]}..., {opened.path} has "
            f"{opened.sha256[:16]}... Measure this model's nodes."
        )
    for name, shape in opened.shapes.items():
        at = times.shapes.get(name)
        if at != shape:
            raise InputError(
                f"--times holds for input '{name}' at {'x'.join(map(str, at)) if at else 'no stated shape'}, the model "
                f"is asked for at {'x'.join(map(str, shape))}. Give that --shape, or times at this one."
            )


def _measured(opened: Opened, name: str, times: DeviceTimes, lacks: Mapping[str, str]) -> DeviceTimes:
    """The file's times of the operators that are placed; a key may be the node's name or its first output's."""
    nodes_ms: dict[str, float | None] = {}
    absent = []
    for key, step in zip(opened.graph.keys, opened.graph.ops, strict=True):
        other = next((out for out in step.node.output if out), key)
        if step.node.op_type in lacks:
            nodes_ms[key] = None
        elif key in times.nodes_ms or other in times.nodes_ms:
            nodes_ms[key] = times.nodes_ms[key if key in times.nodes_ms else other]
        else:
            absent.append(f"'{key}' ({step.node.op_type})")
    if absent:
        raise InputError(
            f"--times: devices.{name}.nodes_ms lacks {len(absent)} of {len(opened.graph.ops)} nodes: "
            f"{shortened(absent)}. Add their times, or null where the device cannot run them."
        )
    return DeviceTimes(basis=times.basis, source=times.source, nodes_ms=nodes_ms, link=times.link)


def _device(name: str, reference: str, times: OpTimes | None) -> Device:
    if reference == "local":
        say("measuring this machine's peak and bandwidth (under 2 s)")
        return probe.local().device
    try:
        return catalogue.find(reference)
    except InputError as error:
        known = f" --times has {', '.join(times.devices)}." if times is not None else ""
        how = f" Write {name}=DEVICE to model it as one." if name == reference else ""
        raise InputError(f"--devices: {error}{how}{known}") from error


def _assumed_link(kind: str, device: Device | None) -> Link:
    if kind == "cpu":
        return HOST_LINK
    if device is not None and device.shared_memory and device.bandwidth_bytes_per_s is not None:
        figure = device.bandwidth_bytes_per_s
        return Link(
            bytes_per_s=figure.value,
            sync_us=ASSUMED_SYNC_US,
            basis="assumed",
            source=f"{device.name} shares the host's memory; synchronisation assumed",
        )
    return Link(
        bytes_per_s=ASSUMED_BYTES_PER_S, sync_us=ASSUMED_SYNC_US, basis="assumed", source="PCIe 3.0 x16, no measurement"
    )


def _check_support(opened: Opened, found: Mapping[str, DeviceTimes]) -> None:
    orphans = [
        f"'{key}' ({step.node.op_type})"
        for key, step in zip(opened.graph.keys, opened.graph.ops, strict=True)
        if all(times.nodes_ms[key] is None for times in found.values())
    ]
    if orphans:
        raise InputError(
            f"{opened.path}: no device of {', '.join(found)} can run {shortened(orphans)}. "
            "Add one that can to --devices."
        )


def assignment_problem(opened: Opened, machine: Machine) -> placing.Problem:
    """The arrays that the algorithms work on; tensors in the order of the model's edges.

    Raises:
        InputError: A tensor would have to move whose size is not known before the run, or an operator takes longer
            than any real one.
    """
    _check_times_real(opened, machine)
    op_ns = np.array(
        [
            [placing.FOREVER_NS if t.nodes_ms[key] is None else _ns(t.nodes_ms[key]) for t in machine.times.values()]
            for key in opened.graph.keys
        ],
        np.int64,
    )
    tensors = tuple(placing.Tensor(edge.maker, edge.readers, edge.nbytes) for edge in opened.graph.edges)
    links = tuple(
        placing.Link() if link.bytes_per_s is None else placing.Link(round(link.sync_us * 1e3), link.bytes_per_s)
        for link in machine.links.values()
    )
    problem = placing.Problem(op_ns, tensors, links)
    stuck = placing.stuck(problem)
    if stuck is not None:
        raise InputError(
            f"{opened.path}: no assignment is possible: tensor '{opened.graph.edges[stuck].name}' would have to move "
            "between devices or to the caller, and its size is not known before the run. Add a device that can run the "
            "operators around it."
        )
    return problem


def _check_times_real(opened: Opened, machine: Machine) -> None:
    """Hold modelled times to what a times file may say: shapes and trip counts are anybody's."""
    longest = max((ms or 0.0, key, name) for name, times in machine.times.items() for key, ms in times.nodes_ms.items())
    if longest[0] > MS_MAX:
        raise InputError(
            f"{opened.path}: operator '{longest[1]}' would take {longest[0] / 1e3:.3g} s on '{longest[2]}', more than "
            f"the {MS_MAX / 1e3:g} s of any real one. Check the given shapes and the model's trip counts."
        )


def _ns(ms: float | None) -> int:
    assert ms is not None
    return round(ms * 1e6)
