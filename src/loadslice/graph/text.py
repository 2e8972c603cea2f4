"""Inspections and devices as lines for a person."""

from collections.abc import Iterator, Sequence

from loadslice.graph.coverage_text import describe_coverage
from loadslice.graph.inputs import shape_text
from loadslice.graph.numbers import number, scaled
from loadslice.spec.device import BUSY, Device, Figure, Peak, disturbed
from loadslice.spec.inspection import DeviceFit, Inspection
from loadslice.spec.machine import LocalMachine

OPS_SHOWN = 12


def describe_inspection(result: Inspection) -> Iterator[str]:
    """The inspection, widest facts first."""
    yield f"{result.model}"
    yield f"  sha256 {result.sha256}"
    yield f"  opset {result.opset or 'none'}, {result.nodes:,} nodes, precision {result.precision or 'unknown'}"
    yield f"  parameters   {result.parameters:,} ({scaled(result.weight_bytes, 'B')} stored)"
    for name, shape in result.shapes.items():
        yield f"  input        {name} {shape_text([*shape])}"
    at_least = "" if result.complete else "at least "
    if result.flops is not None:
        yield f"  work         {at_least}{scaled(result.flops, 'FLOP')} = 2 x {scaled(result.macs, 'MAC')} + the rest"
        moved, fused = scaled(result.bytes_moved, "B"), scaled(result.compulsory_bytes, "B")
        yield f"  bytes moved  {at_least}{moved} if nothing is fused, {fused} if everything is"
        yield f"  intensity    {number(result.intensity_flop_per_byte)} FLOP/byte"
    yield from _memory(result)
    yield from _open_inputs(result)
    if result.shape_check is not None:
        done = result.shape_check
        agree, differ = done.tensors - len(done.disagree), " ".join(done.disagree[:5])
        yield f"  shapes       {agree} of {done.tensors} as in one run of {done.runtime} {differ}".rstrip()
    for note in result.notes:
        yield f"  note         {note}"
    yield ""
    yield f"  {'operator':<28}{'count':>7}{'FLOP':>12}{'bytes':>12}"
    for op in result.ops[:OPS_SHOWN]:
        yield f"  {op.type:<28}{op.count:>7}{scaled(op.flops, ''):>12}{scaled(op.bytes, ''):>12}"
    if len(result.ops) > OPS_SHOWN:
        yield f"  and {len(result.ops) - OPS_SHOWN} more types (--json has all, and every node)"
    if result.unknown_ops and result.flops is not None:
        yield ""
        yield "  Not in the totals:"
        for unknown in result.unknown_ops:
            yield f"  {unknown.type:<28}{unknown.count:>7}  {unknown.reason}"
    for name, fit in result.devices.items():
        yield ""
        yield from _describe_fit(name, fit)


def _memory(result: Inspection) -> Iterator[str]:
    plan = result.memory
    if plan is None:
        yield "  activations  unknown at the peak"
    else:
        yield (
            f"  activations  {scaled(plan.peak_bytes, 'B')} at the peak, in {plan.at or 'no node'}: inputs "
            f"{scaled(plan.input_bytes, 'B')}, the run's own {scaled(plan.arena_bytes, 'B')} "
            f"({scaled(plan.unshared_bytes, 'B')} if nothing were shared)"
        )
    cache = result.kv_cache
    if cache is not None:
        now = f", {scaled(cache.bytes, 'B')} at these shapes" if cache.bytes is not None else ""
        yield f"  KV cache     {scaled(cache.bytes_per_token, 'B')} a token in {len(cache.inputs)} tensors{now}"


def _open_inputs(result: Inspection) -> Iterator[str]:
    missing = [entry for entry in result.dynamic_inputs if entry.given is None]
    if not missing:
        return
    yield "  Work, bytes and activations depend on shapes the file leaves open. Give them, for instance:"
    example = " ".join(
        f"--shape {entry.name}={'x'.join(str(dim) if isinstance(dim, int) else 'N' for dim in entry.shape or ['N'])}"
        for entry in missing
    )
    yield f"    {example}    (N: a size of yours)"


def _describe_fit(name: str, fit: DeviceFit) -> Iterator[str]:
    precision = f" at {fit.precision}" if fit.precision else ""
    convert = " (the model would have to be converted)" if fit.needs_conversion else ""
    yield f"  on {name}{precision}{convert}"
    where = {"onchip": "in on-chip memory", "device": "in the device's memory", "no": "does not fit", None: "unknown"}
    tokens = f", with {fit.kv_tokens:,} tokens of KV cache" if fit.kv_tokens is not None else ""
    yield f"    weights and activations: {where[fit.fits]}{tokens}"
    if fit.bound is None:
        lacking = "a peak and a bandwidth" if fit.ridge_flop_per_byte is None else "the model's work"
        yield f"    bound: unknown, for want of {lacking}"
    else:
        yield (
            f"    bound by {fit.bound} if nothing is fused: ridge at {number(fit.ridge_flop_per_byte)} FLOP/byte, "
            f"attainable {scaled(fit.attainable_flop_per_s, 'FLOP/s')} of {scaled(fit.peak_flop_per_s, 'FLOP/s')}"
        )
        yield (
            f"    bound by {fit.bound_if_fused or 'unknown'} if everything is fused; modelled, not measured: the bare "
            f"roofline, {number(fit.time_ms_modelled_if_fused)} to {number(fit.time_ms_modelled)} ms a run, which no "
            "run reaches"
        )
    yield from _estimate(fit)
    for name, source in fit.figures.items():
        if BUSY in source:
            yield f"    {name}: {source}"
    yield from describe_coverage(fit)


def _estimate(fit: DeviceFit) -> Iterator[str]:
    """What a call would take, with its parts and its error."""
    made = fit.estimate
    if made is None:
        return
    parts = ", ".join(f"{name} {number(ms)}" for name, ms in made.parts_ms.items() if ms)
    yield (
        f"    a call takes about {number(made.time_ms)} ms ({parts}), 95 times of 100 between {number(made.low_ms)} "
        f"and {number(made.high_ms)}; modelled"
    )
    yield f"      {made.error.why}"
    yield f"      fitted on {len(made.sources)} source{'s' if len(made.sources) != 1 else ''} (--json names them)"


def describe_machine(machine: LocalMachine) -> Iterator[str]:
    """This machine and its runtimes."""
    yield f"this machine: {machine.cpu} ({machine.architecture})"
    physical = f" of {machine.cores_physical} physical" if machine.cores_physical else ""
    nodes = f", {machine.numa_nodes} NUMA node{'s' if machine.numa_nodes != 1 else ''}" if machine.numa_nodes else ""
    isa = " ".join(machine.isa or ["instruction sets unknown"])
    yield f"  {machine.cores_usable} usable cores{physical}{nodes}; {isa}"
    limit = f", limited to {scaled(machine.memory_limit_bytes, 'B')}" if machine.memory_limit_bytes else ""
    yield f"  memory {scaled(machine.memory_bytes, 'B')}{limit}, {scaled(machine.memory_available_bytes, 'B')} free"
    for runtime in machine.runtimes:
        what = ", ".join(runtime.devices) if runtime.reason is None else runtime.reason
        yield f"  {runtime.name} {runtime.version or ''}: {what}".replace(" :", ":")


def describe_devices(devices: Sequence[Device]) -> Iterator[str]:
    """One line per device."""
    wide = max(22, *(len(device.name) for device in devices)) + 2
    yield f"{'device':<{wide}}{'kind':<6}{'peak, dense':<38}{'bandwidth':>12}{'memory':>11}{'on chip':>11}{'TDP':>7}"
    for device in devices:
        peaks = " ".join(f"{name} {scaled(peak.value, '')}" for name, peak in _shown(device))
        yield (
            f"{device.name:<{wide}}{device.kind:<6}{peaks or '-':<38}{_cell(device.bandwidth_bytes_per_s, 'B/s'):>12}"
            f"{_cell(device.memory_bytes, 'B'):>11}{_cell(device.onchip_bytes, 'B'):>11}{_cell(device.tdp_w, 'W'):>7}"
        )
    for device in devices:
        yield from (f"{device.name}, {note}" for note in disturbed(device))
    yield "'-' is unknown. `loadslice devices NAME` gives the source of every figure."


def _shown(device: Device) -> Iterator[tuple[str, Peak]]:
    for name, peak in device.peak_ops_per_s.items():
        if name in {"fp32", "fp16", "int8"}:
            yield name, peak


def describe_device(device: Device) -> Iterator[str]:
    """One device, each figure with its basis and source."""
    yield f"{device.name}: {device.title} ({device.kind})"
    for name, peak in device.peak_ops_per_s.items():
        yield from _figure(f"peak {name}, dense", scaled(peak.value, "op/s"), peak.basis, peak.source, peak.note)
    rows = {"bandwidth": ("bandwidth_bytes_per_s", "B/s"), "memory": ("memory_bytes", "B")}
    rows |= {"on chip": ("onchip_bytes", "B"), "TDP": ("tdp_w", "W"), "idle": ("idle_w", "W")}
    for label, (field, unit) in rows.items():
        figure = getattr(device, field)
        if figure is None:
            what = "the host's" if field == "memory_bytes" and device.shared_memory else "unknown"
            yield f"  {label:<20}{what}"
        else:
            yield from _figure(label, scaled(figure.value, unit), figure.basis, figure.source, figure.note)
    for note in device.notes:
        yield f"  {note}"


def _figure(label: str, value: str, basis: str, source: str, note: str | None) -> Iterator[str]:
    yield f"  {label:<20}{value}, {basis}: {source}"
    if note:
        yield f"  {'':<20}{note}"


def _cell(figure: Figure | None, unit: str) -> str:
    return scaled(figure.value, unit) if figure is not None else "-"
