"""How long batches take on an emulated device, and what energy they use.

Time. A latency table that the engine names (``options.times``) is believed, whatever made it. Without one the device's
roofline is used, node by node and nothing fused, with quantise and dequantise nodes left out, for a device fuses those
into the operator between them. Energy. The device's power lies between idle and TDP in proportion to how much of its
peak a batch uses; where the pipeline gives ``active_w``, that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loadslice.graph import roofline
from loadslice.spec.coverage import OperatorTable
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.inspection import Inspection
from loadslice.spec.latency import Basis, Entry, LatencyTable
from loadslice.spec.pipeline import Engine, Precision
from loadslice.spec.twin import TwinTime

WEAKEST_FIRST: tuple[Basis, ...] = ("emulated", "modelled", "measured")

QUANTISE = ("QuantizeLinear", "DequantizeLinear")

Batch = tuple[int, tuple[int, ...]]
"""Rows, and the shape of one."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """One emulated engine with everything known about its device."""

    name: str
    engine: Engine
    device: Device
    table: OperatorTable | None
    times: LatencyTable | None
    times_file: str

    @property
    def place(self) -> str:
        """Of the engine in the pipeline file."""
        return f"engines.{self.name}"

    @property
    def static_shapes(self) -> bool:
        """It is built for the shapes that it takes; so the table says, and without one every NPU is."""
        return self.table.static_shapes if self.table is not None else self.device.kind == "npu"


def known(
    one: Emulated, variant: str, precision: Precision, fits: Mapping[Batch, Inspection]
) -> tuple[list[TwinTime], Basis, str]:
    """Times of every batch, how they are known, and by whom.

    Args:
        one: The engine.
        variant: The model's name in a latency table.
        precision: What the device computes it at.
        fits: What the model asks for in each batch.

    Raises:
        InputError: The table that the engine names lacks a time, or there is no table and no roofline.
    """
    if one.times is not None:
        return _by_table(one, one.times, variant, list(fits))
    times = [_by_roofline(one, precision, batch, found) for batch, found in fits.items()]
    peak = one.device.peak_ops_per_s[precision]
    assert one.device.bandwidth_bytes_per_s is not None
    source = f"roofline at {precision}: peak by {peak.source}; bandwidth by {one.device.bandwidth_bytes_per_s.source}"
    return times, "modelled", source


def _by_table(
    one: Emulated, table: LatencyTable, variant: str, batches: Sequence[Batch]
) -> tuple[list[TwinTime], Basis, str]:
    """The table's times of this variant: on this engine, or on an engine of the device's name."""
    place = f"{one.place}.options.times: {one.times_file}"
    own = [entry for entry in table.entries if entry.variant == variant and entry.engine in (one.name, one.device.name)]
    if not own:
        raise InputError(
            f"{place} has no time for '{variant}' on '{one.name}' or '{one.device.name}'. Add an entry, or "
            "leave `times` out to have the device's roofline."
        )
    times = []
    for entry in own:
        ms = mean_ms(entry)
        shape = None if entry.shape is None else tuple(entry.shape)
        times.append(TwinTime(rows=entry.batch, shape=shape, ms=ms, energy_j=_energy_j(one, entry.energy_j, ms, None)))
    if one.static_shapes:
        times = [_of_batch(times, batch, f"{place}: '{variant}'") for batch in batches]
    sources = ", ".join(dict.fromkeys(entry.source or "no source given" for entry in own))
    weakest = min((entry.basis for entry in own), key=WEAKEST_FIRST.index)
    return times, weakest, f"{one.times_file}: {sources}"


def mean_ms(entry: Entry) -> float:
    """One number for a distribution: its mean where it is known, else its median."""
    times = entry.latency_ms
    if times.mean is not None:
        return times.mean
    if times.samples:
        return sum(times.samples) / len(times.samples)
    assert times.p50 is not None
    return times.p50


def _of_batch(times: Sequence[TwinTime], batch: Batch, place: str) -> TwinTime:
    rows, row = batch
    for known in times:
        if known.rows == rows and known.shape in (None, row):
            return replace(known, shape=row)
    raise InputError(
        f"{place} has no time for {rows} rows of {'x'.join(map(str, row))}, which the pipeline wants. Add an entry."
    )


def _by_roofline(one: Emulated, precision: Precision, batch: Batch, found: Inspection) -> TwinTime:
    device = one.device
    peak, bandwidth = device.peak_ops_per_s.get(precision), device.bandwidth_bytes_per_s
    if peak is None or bandwidth is None:
        lacks = f"peak_ops_per_s.{precision}" if peak is None else "bandwidth_bytes_per_s"
        raise InputError(
            f"{one.place}: no time is known for device '{device.name}': nobody states its {lacks}. Give "
            "options: {times: TABLE.json} (a latency table, as `loadslice profile` writes it), or `device: FILE.yaml`, "
            "a copy of the device with that figure."
        )
    nodes = [node for node in found.nodes_cost if node.op not in QUANTISE]
    unknown = next((node for node in nodes if node.flops is None or node.bytes is None), None)
    if unknown is not None:
        raise InputError(
            f"{one.place}: no time can be modelled: the cost of node '{unknown.name}' ({unknown.op}) of {found.model} "
            "is unknown. Give options: {times: TABLE.json}."
        )
    narrowed = roofline.WIDTH_BITS[precision] / roofline.WIDTH_BITS[between_nodes(found)]
    seconds = sum(max((n.flops or 0) / peak.value, (n.bytes or 0) * narrowed / bandwidth.value) for n in nodes)
    used = sum(n.flops or 0 for n in nodes) / (peak.value * seconds) if seconds > 0 else 0.0
    rows, row = batch
    return TwinTime(rows=rows, shape=row, ms=1e3 * seconds, energy_j=_energy_j(one, None, 1e3 * seconds, used))


def between_nodes(found: Inspection) -> str:
    """What tensors between nodes are stored at in the file: floats in a quantised one, and where nothing multiplies."""
    return "fp32" if found.precision in (None, "int8", "int4") else found.precision


def _energy_j(one: Emulated, stated_j: float | None, ms: float, used: float | None) -> float | None:
    """Energy of a batch: as stated, by the pipeline's ``active_w``, or by the device's power at this utilisation."""
    if stated_j is not None:
        return stated_j
    if one.engine.active_w is not None:
        return one.engine.active_w * ms / 1e3
    idle, tdp = one.device.idle_w, one.device.tdp_w
    if idle is None or tdp is None or used is None:
        return None
    return (idle.value + (tdp.value - idle.value) * used) * ms / 1e3
