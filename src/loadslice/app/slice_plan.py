"""The plan: ways to place a model's operators side by side, the best of them, and its slices."""

from collections.abc import Callable
from dataclasses import dataclass

from loadslice.app.slice_error import times_95, turning
from loadslice.app.slice_problem import Machine, Opened, assignment_problem
from loadslice.graph.slicing import boundary
from loadslice.plan.placement import chain, greedy, mincut, relaxation, throughput
from loadslice.plan.placement.problem import HOST, Cost, Int64, Placement, Problem, cost, crossings, runs
from loadslice.spec.slices import Assignment, DeviceBasis, DeviceLoad, Objective, Slice, SlicePlan

PRIORITY, FASTEST, CHAIN = "priority", "fastest", "legal cuts"
CUT, ANYWHERE, PIPELINE = "minimum cut", "any operator", "pipeline"


@dataclass(frozen=True)
class _Way:
    """One assignment as it is compared."""

    name: str
    how: str
    device: Int64 | None
    proof: Placement | None = None
    reason: str | None = None


def make_plan(
    opened: Opened, machine: Machine, objective: Objective, *, seconds: float, gap: float, notes: list[str]
) -> tuple[SlicePlan, list[list[int]]]:
    """Compare assignments and describe the best.

    Args:
        opened: The model.
        machine: The devices.
        objective: One request alone, or requests in a full pipeline.
        seconds: For the throughput search.
        gap: Share of the bound at which that search may stop.
        notes: What was assumed so far.

    Returns:
        The plan, and the operators of each slice.

    Raises:
        InputError: No assignment is possible.
        MissingExtraError: SciPy or OR-Tools is not installed.
    """
    problem = assignment_problem(opened, machine)
    ways = _ways(opened, machine, problem, objective, seconds, gap)
    rows = [_row(problem, machine, way) for way in ways]
    value: Callable[[Assignment], float | None] = (
        (lambda row: row.latency_ms) if objective == "latency" else (lambda row: row.bottleneck_ms)
    )
    able = [(row, way) for row, way in zip(rows, ways, strict=True) if way.device is not None and row.reason is None]
    # Of equals the one with fewer slices, then the first that comes with a proof or needs none.
    chosen, way = min(
        able, key=lambda pair: (value(pair[0]) or 0.0, pair[0].slices or 0, pair[0].cuts != 0 and pair[1].proof is None)
    )
    assert way.device is not None
    by_priority = next(row for row in rows if row.name == PRIORITY)
    excess = None
    if by_priority.reason is None and value(chosen):
        excess = 100 * ((value(by_priority) or 0.0) / (value(chosen) or 1.0) - 1)
    parts = runs(problem, way.device)
    plan = SlicePlan(
        model=str(opened.path),
        sha256=opened.sha256,
        shapes=opened.shapes,
        objective=objective,
        devices={
            name: DeviceBasis(
                basis=times.basis,
                source=times.source,
                link=machine.links[name],
                error=times.error,
                fitted_on=times.fitted_on,
                times_95=None if times.error is None else times_95(times.error),
            )
            for name, times in machine.times.items()
        },
        ops=problem.ops,
        legal_cuts=len(opened.cuts),
        assignments=rows,
        chosen=chosen.name,
        slices=_slices(opened, machine, problem, way.device, parts),
        fragmentation_ms=None
        if by_priority.reason is not None
        else (by_priority.copy_ms or 0.0) + (by_priority.sync_ms or 0.0),
        greedy_excess_pct=excess,
        notes=[*notes, *turning(rows, chosen.name, objective, machine)],
    )
    return plan, [ops for _, ops in parts]


def _ways(
    opened: Opened, machine: Machine, problem: Problem, objective: Objective, seconds: float, gap: float
) -> list[_Way]:
    names = machine.names
    ways = []
    for index, name in enumerate(names):
        alone = greedy.single(problem, index)
        lacking = sum(time is None for time in machine.times[name].nodes_ms.values())
        reason = f"{name} cannot run {lacking} of {problem.ops} operators" if alone is None else None
        ways.append(_Way(f"{name} only", "every operator on one device", alone, reason=reason))
    # Runtimes list their accelerators first; the processor takes what is left.
    order = sorted(range(len(names)), key=lambda index: machine.kinds[names[index]] == "cpu")
    listed = ", ".join(names[index] for index in order)
    rule = f"each operator on the first of {listed} that can, as ONNX Runtime and OpenVINO HETERO do"
    ways.append(_Way(PRIORITY, rule, greedy.by_priority(problem, order)))
    ways.append(_Way(FASTEST, "each operator where it alone is fastest", greedy.fastest(problem)))
    if opened.cuts:
        found = _at_legal_cuts(opened, problem)
        ways.append(_Way(CHAIN, f"changes of device at legal cuts only: {found.method}", found.device, found))
    if len(names) == 2:
        found = mincut.place_two(problem)
        ways.append(_Way(CUT, "minimum cut, any operator on either device", found.device, found))
    else:
        starts = [way.device for way in ways if way.device is not None]
        found = relaxation.place_many(problem, starts)
        ways.append(_Way(ANYWHERE, f"any operator on any device: {found.method}", found.device, found))
    if objective == "throughput":
        starts = [way.device for way in ways if way.device is not None]
        found = throughput.place_pipeline(problem, seconds=seconds, gap=gap, starts=starts)
        ways.append(_Way(PIPELINE, f"least busiest device: {found.method}", found.device, found))
    return ways


def _at_legal_cuts(opened: Opened, problem: Problem) -> Placement:
    segments = [0] * problem.ops
    for cut in opened.cuts:
        for op in range(cut.after + 1, problem.ops):
            segments[op] += 1
    return chain.place_segments(problem, segments, [cut.main for cut in opened.cuts])


def _row(problem: Problem, machine: Machine, way: _Way) -> Assignment:
    if way.device is None:
        return Assignment(name=way.name, how=way.how, latency_ms=None, bottleneck_ms=None, reason=way.reason)
    found = cost(problem, way.device)
    if not found.possible:
        reason = "it would move a value whose size is not known before the run"
        return Assignment(name=way.name, how=way.how, latency_ms=None, bottleneck_ms=None, reason=reason)
    slices = len(runs(problem, way.device))
    return Assignment(
        name=way.name,
        how=way.how,
        latency_ms=found.latency_ns / 1e6,
        bottleneck_ms=found.bottleneck_ns / 1e6,
        compute_ms=int(found.compute_ns.sum()) / 1e6,
        copy_ms=(int(found.move_ns.sum()) - found.sync_ns) / 1e6,
        sync_ms=found.sync_ns / 1e6,
        slices=slices,
        cuts=slices - 1,
        transfers=found.transfers,
        transfer_bytes=found.nbytes,
        devices=_loads(machine, found, way.device),
        gap_pct=None if way.proof is None else 100 * way.proof.gap,
    )


def _loads(machine: Machine, found: Cost, device: Int64) -> dict[str, DeviceLoad]:
    return {
        name: DeviceLoad(
            ops=int((device == index).sum()),
            compute_ms=int(found.compute_ns[index]) / 1e6,
            transfer_ms=int(found.move_ns[index]) / 1e6,
        )
        for index, name in enumerate(machine.names)
    }


def _slices(
    opened: Opened, machine: Machine, problem: Problem, device: Int64, parts: list[tuple[int, list[int]]]
) -> list[Slice]:
    """The parts described; a transfer is booked where it first happens."""
    place_of = {op: place for place, (_, ops) in enumerate(parts) for op in ops}
    arriving = [0] * len(parts)
    leaving = [0] * len(parts)
    crossing = crossings(problem, device)
    for t, tensor in enumerate(problem.tensors):
        home = None if tensor.maker == HOST else int(device[tensor.maker])
        for where in crossing[t].nonzero()[0]:
            price_ns = int(problem.move_ns[t, where])
            if where == home:
                leaving[place_of[tensor.maker]] += price_ns
            else:
                first = min(place_of[r] for r in tensor.readers if r != HOST and device[r] == where)
                arriving[first] += price_ns
    sizes = {edge.name: edge.nbytes for edge in opened.graph.edges}
    found = []
    for place, (where, ops) in enumerate(parts):
        needs, gives = boundary(opened.graph, ops)
        found.append(
            Slice(
                index=place,
                engine=machine.names[where],
                from_=needs,
                to=gives,
                ops=len(ops),
                first=opened.graph.keys[ops[0]],
                last=opened.graph.keys[ops[-1]],
                compute_ms=int(problem.op_ns[ops, where].sum()) / 1e6,
                transfer_in_ms=arriving[place] / 1e6,
                transfer_out_ms=leaving[place] / 1e6,
                in_bytes=_total([sizes[name] for name in needs]),
                out_bytes=_total([sizes[name] for name in gives]),
            )
        )
    return found


def _total(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
