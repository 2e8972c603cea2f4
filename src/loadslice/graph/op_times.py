"""How long each operator of a model takes on a device, by the device's roofline: modelled, not measured.

Every operator is priced alone, unfused: max(FLOPs / peak, bytes / bandwidth), no launches, which
`loadslice.app.estimated` adds. A runtime that fuses is faster and moves less, so a plan from these times is a first
sketch; a times file replaces them.
"""

from collections.abc import Mapping, Sequence

from loadslice.graph.census import node_costs, precision
from loadslice.graph.cuts import Flow
from loadslice.graph.roofline import fit
from loadslice.graph.steps import Body
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.inspection import DeviceFit, NodeCost
from loadslice.spec.slices import DeviceTimes

SHOWN_MAX = 3
"""Names in an error; the rest are counted."""


def op_costs(body: Body, graph: Flow, notes: list[str]) -> list[list[NodeCost]]:
    """Cost of every operator, those of its subgraphs after its own.

    Args:
        body: A walked model.
        graph: Its operators.
        notes: Gains a line for each assumption made.
    """
    return [node_costs(Body(body.graph, [step], body.env), notes) for step in graph.ops]


def modelled(body: Body, graph: Flow, device: Device, unsupported: Mapping[str, str], notes: list[str]) -> DeviceTimes:
    """Times of a model's operators on a device of the catalogue.

    Args:
        body: The model, walked at the shapes the times are for.
        graph: Its operators.
        device: With a peak and a bandwidth.
        unsupported: Operator types that the device cannot run, and why.
        notes: Gains a line for each assumption made.

    Raises:
        InputError: The device has no peak or no bandwidth, or the cost of an operator is not known.
    """
    computes_at = precision(body)
    check = _fit(device, computes_at, [])
    missing = [
        what
        for what, figure in (("peak", check.peak_flop_per_s), ("bandwidth", check.bandwidth_bytes_per_s))
        if figure is None
    ]
    if missing:
        raise InputError(
            f"device '{device.name}' has no {' and no '.join(missing)} in the catalogue, so operator times cannot be "
            "modelled. Give measured ones with --times, or a .yaml file of your own with that figure."
        )
    nodes_ms: dict[str, float | None] = {}
    unknown = []
    for key, costs, step in zip(graph.keys, op_costs(body, graph, notes), graph.ops, strict=True):
        if step.node.op_type in unsupported:
            nodes_ms[key] = None
        elif any(cost.reason is not None for cost in costs):
            unknown.append(f"'{key}' ({step.node.op_type}: {next(c.reason for c in costs if c.reason is not None)})")
        else:
            nodes_ms[key] = sum(_fit(device, computes_at, [cost]).time_ms_modelled or 0.0 for cost in costs)
    if unknown:
        raise InputError(
            f"the time of {len(unknown)} operators cannot be modelled: {shortened(unknown)}. "
            "Give their measured times with --times."
        )
    if check.needs_conversion:
        notes.append(
            f"{device.name} is modelled at {check.precision}: the model ({computes_at}) would be converted first."
        )
    at = f" at {check.precision}" if check.precision else ""
    return DeviceTimes(basis="modelled", source=f"roofline of {device.name}{at}", nodes_ms=nodes_ms)


def _fit(device: Device, computes_at: str | None, costs: Sequence[NodeCost]) -> DeviceFit:
    flops = sum(cost.flops or 0 for cost in costs)
    moved = sum(cost.bytes or 0 for cost in costs)
    return fit(
        device,
        precision=computes_at,
        flops=flops,
        bytes_moved=moved,
        compulsory_bytes=None,
        weight_bytes={},
        peak_activation_bytes=None,
        nodes=costs,
    )


def shortened(names: Sequence[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f"{', '.join(names[:SHOWN_MAX])}{more}"
