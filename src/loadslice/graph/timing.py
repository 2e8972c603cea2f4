"""A model's nodes timed on this machine, beside what the roofline says of them, and as a times file for slicing."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from loadslice.graph.census import precision
from loadslice.graph.cuts import Flow, flow
from loadslice.graph.kernels import Group, groups, kernels, midmean
from loadslice.graph.measure import Feeds, Optimise, profile
from loadslice.graph.op_times import op_costs
from loadslice.graph.roofline import node_times, total_ms
from loadslice.graph.steps import Body
from loadslice.spec.device import Device, disturbed
from loadslice.spec.inspection import Bound, KernelGroup, Measured, NodeCost, NodeTime
from loadslice.spec.slices import DeviceTimes

WARMUP = 3

BOUNDS: tuple[Bound, ...] = ("compute", "memory")


@dataclass(frozen=True, slots=True)
class _Roofline:
    """A device and what the model computes in."""

    device: Device
    precision: str | None

    def times(self, nodes: Sequence[NodeCost]) -> list[NodeTime]:
        """See `loadslice.graph.roofline.node_times`."""
        return node_times(self.device, self.precision, nodes)


def measure_nodes(
    path: Path,
    model: onnx.ModelProto,
    body: Body,
    feeds: Feeds,
    device: Device,
    *,
    optimise: Optimise,
    threads: int,
    runs: int,
    inputs: str,
) -> tuple[Measured, DeviceTimes]:
    """Time every node of a model through ONNX Runtime.

    Args:
        path: For errors.
        model: With its weights in it; its nodes get names that no other has.
        body: The same model, walked at those shapes.
        feeds: Every input.
        device: This machine, for the roofline.
        optimise: What the runtime may change in the graph.
        threads: For one kernel.
        runs: That count.
        inputs: What the feeds are, for the reader.

    Returns:
        What was measured, and the times of the file's nodes: a fused group's time is divided among its nodes in
        proportion to their roofline times, and nodes that the runtime removed take none.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: The runtime refuses the model or the input.
    """
    graph = flow(body)
    for key, step in zip(graph.keys, graph.ops, strict=True):
        step.node.name = key
    ran = profile(path, model, feeds, optimise=optimise, threads=threads, warmup=WARMUP, runs=runs)
    found = groups(graph, kernels(ran))
    costs = op_costs(body, graph, [])
    at = _Roofline(device, precision(body))
    covered = {op for group in found for op in group.ops}
    nodes_ms = dict(_shared_out(found, graph, costs, at))
    ops_ms: defaultdict[str, float] = defaultdict(float)
    for step, time_ms in zip(graph.ops, nodes_ms.values(), strict=True):
        ops_ms[step.node.op_type] += time_ms
    measured = Measured(
        runtime=ran.runtime,
        optimised=optimise == "all",
        threads=threads,
        runs=runs,
        warmup=WARMUP,
        run_ms=midmean(ran.run_us) / 1e3,
        kernels_ms=sum(group.time_us for group in found) / 1e3,
        unrecognised_ms=sum(group.time_us for group in found if not group.ops) / 1e3,
        groups=[_described(group, graph, costs, at) for group in found],
        ops_ms=dict(sorted(ops_ms.items(), key=lambda pair: -pair[1])),
        not_run=[key for index, key in enumerate(graph.keys) if index not in covered],
        arena_bytes=ran.arena_bytes,
        roofline=device.title,
        roofline_notes=disturbed(device),
        inputs=inputs,
    )
    source = f"{ran.runtime}, {threads} threads, {runs} runs" + ("" if optimise == "all" else ", unoptimised")
    times = DeviceTimes(basis="measured", source=source, nodes_ms=dict(nodes_ms))
    return measured, times


def _described(group: Group, graph: Flow, costs: Sequence[list[NodeCost]], at: _Roofline) -> KernelGroup:
    nodes = [cost for op in group.ops for cost in costs[op]]
    known = bool(nodes) and all(cost.reason is None for cost in nodes)
    times = at.times(nodes)
    bound_ms = [sum(each.time_ms or 0.0 for each in times if each.bound == bound) for bound in BOUNDS]
    return KernelGroup(
        kernels=[kernel.op for kernel in group.kernels],
        nodes=[graph.keys[op] for op in group.ops],
        time_ms=group.time_us / 1e3,
        roofline_ms=total_ms(times),
        bound=BOUNDS[bound_ms.index(max(bound_ms))] if known and any(bound_ms) else None,
        flops=sum(cost.flops or 0 for cost in nodes) if known else None,
        bytes=sum(cost.bytes or 0 for cost in nodes) if known else None,
    )


def _shared_out(
    found: Sequence[Group], graph: Flow, costs: Sequence[list[NodeCost]], at: _Roofline
) -> list[tuple[str, float]]:
    """Time of each operator, in the file's order."""
    shares = dict.fromkeys(range(len(graph.ops)), 0.0)
    for group in found:
        weights = [total_ms(at.times(costs[op])) or 0.0 for op in group.ops]
        total = sum(weights)
        for op, weight in zip(group.ops, weights, strict=True):
            part = weight / total if total else 1 / len(group.ops)
            shares[op] = group.time_us / 1e3 * part
    return [(graph.keys[op], share) for op, share in shares.items()]
