"""Where a device's roofline puts a model, and whether the model fits its memory.

attainable = min(peak, bandwidth x intensity); the ridge, peak / bandwidth, parts memory-bound from compute-bound.
Reference: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from collections.abc import Iterable, Sequence

from loadslice.spec.device import BUSY, Device, Peak, PeakPrecision
from loadslice.spec.inspection import Bound, DeviceFit, Fit, NodeCost, NodeTime

WIDTH_BITS = {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}

_FLOAT_BITS = {"double": 64, "float": 32, "float16": 16, "bfloat16": 16}

HIGHEST_FIRST: tuple[PeakPrecision, ...] = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4")
"""Where the model's own precision has no peak, the nearest loss: the highest that the device states."""


def fit(
    device: Device,
    *,
    precision: str | None,
    flops: int | None,
    bytes_moved: int | None,
    compulsory_bytes: int | None,
    weight_bytes: dict[str, int],
    peak_activation_bytes: int | None,
    nodes: Iterable[NodeCost] = (),
    kv_bytes_per_token: int | None = None,
) -> DeviceFit:
    """One model on one device; every figure that lacks an operand is ``None``.

    Args:
        device: From the catalogue, a user's file or the probe.
        precision: What the model computes in.
        flops: Of one run.
        bytes_moved: Of one run, at ``precision``, nothing fused.
        compulsory_bytes: Of one run, everything fused.
        weight_bytes: Stored, by ONNX element type.
        peak_activation_bytes: At ``precision``.
        nodes: For the time estimate, node by node.
        kv_bytes_per_token: Of a decoder, at ``precision``.
    """
    at, peak = precision_on(device, precision)
    scale = WIDTH_BITS[at] / WIDTH_BITS[precision] if at is not None and precision is not None else 1.0
    bandwidth = device.bandwidth_bytes_per_s
    ridge = attainable = time_ms = fused_ms = None
    times = node_times(device, precision, nodes)
    if peak is not None and bandwidth is not None:
        ridge = peak.value / bandwidth.value
        if flops is not None and bytes_moved:
            attainable = min(peak.value, bandwidth.value * flops / (bytes_moved * scale))
            time_ms = total_ms(times)
        if flops is not None and compulsory_bytes is not None:
            fused_ms = max(flops / peak.value, compulsory_bytes * scale / bandwidth.value) * 1e3
    return DeviceFit(
        bound=_bound(ridge, flops, bytes_moved, scale),
        bound_if_fused=_bound(ridge, flops, compulsory_bytes, scale),
        fits=_fits(device, _converted(weight_bytes, at), peak_activation_bytes, scale),
        kv_tokens=_kv_tokens(device, _converted(weight_bytes, at), peak_activation_bytes, scale, kv_bytes_per_token),
        precision=at,
        needs_conversion=at != precision if at is not None and precision is not None else None,
        peak_flop_per_s=peak.value if peak is not None else None,
        bandwidth_bytes_per_s=bandwidth.value if bandwidth is not None else None,
        ridge_flop_per_byte=ridge,
        attainable_flop_per_s=attainable,
        time_ms_modelled=time_ms,
        time_ms_modelled_if_fused=fused_ms,
        figures=_sources(device, at, peak),
        nodes=times,
    )


def node_times(device: Device, precision: str | None, nodes: Iterable[NodeCost]) -> list[NodeTime]:
    """Each node alone on a device: FLOPs / peak, bytes / bandwidth, the longer of the two and which it is.

    Args:
        device: With a peak and a bandwidth; otherwise every time is unknown.
        precision: What the model computes in.
        nodes: In any order; the result has it too.
    """
    at, peak = precision_on(device, precision)
    scale = WIDTH_BITS[at] / WIDTH_BITS[precision] if at is not None and precision is not None else 1.0
    bandwidth = device.bandwidth_bytes_per_s
    found = []
    for node in nodes:
        if peak is None or bandwidth is None or node.flops is None or node.bytes is None:
            found.append(NodeTime(name=node.name, time_ms=None, bound=None))
            continue
        compute_ms = node.flops / peak.value * 1e3
        memory_ms = node.bytes * scale / bandwidth.value * 1e3
        bound: Bound | None = "compute" if compute_ms >= memory_ms else "memory"
        longer = max(compute_ms, memory_ms)
        found.append(NodeTime(name=node.name, time_ms=longer, bound=bound if longer else None))
    return found


def total_ms(times: Sequence[NodeTime]) -> float | None:
    """Their sum; ``None`` when there are none or any is unknown."""
    known = [each.time_ms for each in times if each.time_ms is not None]
    return sum(known) if times and len(known) == len(times) else None


def _bound(ridge: float | None, flops: int | None, moved: int | None, scale: float) -> Bound | None:
    if ridge is None or flops is None or not moved:
        return None
    return "compute" if flops / (moved * scale) >= ridge else "memory"


def precision_on(device: Device, precision: str | None) -> tuple[PeakPrecision | None, Peak | None]:
    """The precision that a model would run at on a device, and its peak there.

    The model's own where the device states a peak for it, else the highest it states; ``None``: it states none.
    """
    for candidate in HIGHEST_FIRST:
        if candidate == precision and candidate in device.peak_ops_per_s:
            return candidate, device.peak_ops_per_s[candidate]
    for candidate in HIGHEST_FIRST:
        if candidate in device.peak_ops_per_s:
            return candidate, device.peak_ops_per_s[candidate]
    return None, None


def _converted(weight_bytes: dict[str, int], at: str | None) -> float:
    """Bytes of the weights at a precision: wider floats shrink to it, narrower types and integers stay."""
    width = WIDTH_BITS[at] if at is not None else 64
    return sum(size * min(1.0, width / _FLOAT_BITS.get(dtype, width)) for dtype, size in weight_bytes.items())


def _fits(device: Device, weight_bytes: float, peak_activation_bytes: int | None, scale: float) -> Fit | None:
    if peak_activation_bytes is None:
        return None
    needed = weight_bytes + peak_activation_bytes * scale
    if device.onchip_bytes is not None and needed <= device.onchip_bytes.value:
        return "onchip"
    if device.memory_bytes is None:
        return None
    return "device" if needed <= device.memory_bytes.value else "no"


def _kv_tokens(
    device: Device, weight_bytes: float, peak_activation_bytes: int | None, scale: float, bytes_per_token: int | None
) -> int | None:
    if device.memory_bytes is None or peak_activation_bytes is None or not bytes_per_token:
        return None
    left = device.memory_bytes.value - weight_bytes - peak_activation_bytes * scale
    return max(int(left / (bytes_per_token * scale)), 0)


def _sources(device: Device, at: PeakPrecision | None, peak: Peak | None) -> dict[str, str]:
    used = {
        f"peak_ops_per_s.{at}": peak,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "memory_bytes": device.memory_bytes,
        "onchip_bytes": device.onchip_bytes,
    }
    return {
        name: f"{figure.basis}: {figure.source}" + (f"; {figure.note}" if BUSY in (figure.note or "") else "")
        for name, figure in used.items()
        if figure is not None
    }
