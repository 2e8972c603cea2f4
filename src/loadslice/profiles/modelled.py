"""How long a model would take on a device that is not here, how much energy, and how far off that may be.

``time = sum over kinds of operators (slowness x roofline time) + launches x launch time + copies over the host's link +
a fixed part``; what a device states of its own (launch, synchronisation) replaces what was fitted. The spread of the
stated error comes from predictions of models and devices that were left out of the calibration
(`loadslice.profiles.calibration`), widened by the share of the time that operators take which were never measured on
such a device.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loadslice.graph.inspect import inspect
from loadslice.graph.op_class import Demand, demand
from loadslice.graph.roofline import precision_on
from loadslice.profiles.calibration import Calibration, Fit, Kindly, novelty
from loadslice.spec.device import Device, PeakPrecision, PowerCurve, disturbed, power_curve
from loadslice.spec.errors import InputError
from loadslice.spec.inspection import Inspection
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds, ModelError

UNMEASURED_KIND_SD = 1.0
"""A kind of device without any calibration: a factor of 2.7 either way at one standard deviation."""

BUSY_SD = 0.7
"""Of a roof that was measured beside others' work: it is what they left, a factor of two either way once they go."""

SD_MAX = 2.5


def entries(
    path: Path,
    device: Device,
    calibration: Calibration,
    *,
    variant: str,
    engine: str,
    shapes: Mapping[str, list[int]],
    batches: Sequence[int],
    shape: list[int] | None = None,
    to: PeakPrecision | None = None,
) -> Iterator[Entry]:
    """Modelled entries of one model on one device.

    Args:
        path: An `.onnx` file.
        device: With a peak; see `missing`.
        calibration: For the device's kind.
        variant: Its name in the table.
        engine: The engine's.
        shapes: Input name to shape, rows first, as for `inspect`.
        batches: Row counts; the first dimension of every input that has the first batch's rows is replaced.
        shape: Bucket the entries are of, without the row dimension.
        to: Precision that the model would be converted to; ``None``: its own where the device has it.

    Raises:
        InputError: The device lacks a figure, the model does not fit it, a shape is open or a batch does not go.
    """
    lacking = missing(device)
    if lacking:
        raise InputError(
            f"device '{device.name}' states no {' and no '.join(lacking)}: times on it cannot be modelled. Put the "
            f"figure in a .yaml file of your own; `loadslice devices {device.name}` shows what is known."
        )
    if to is not None and to not in device.peak_ops_per_s:
        raise InputError(
            f"device '{device.name}' states no peak at {to}; it has {', '.join(device.peak_ops_per_s)}. Choose one of "
            "them, or put the figure in a .yaml file of your own."
        )
    for batch in batches:
        given = {name: [batch, *sides[1:]] if sides else sides for name, sides in shapes.items()}
        yield entry(
            inspected(path, given, device),
            device,
            calibration,
            variant=variant,
            engine=engine,
            batch=batch,
            shape=shape,
            to=to,
        )


def missing(device: Device) -> list[str]:
    """Figures without which nothing can be modelled.

    An NPU on a link, without memory beside its chip, needs no bandwidth: what the chip does not hold comes over the
    link.
    """
    lacking = [] if device.peak_ops_per_s else ["peak"]
    no_memory = device.kind == "npu" and device.memory_bytes is None and device.host_link_bytes_per_s is not None
    if device.bandwidth_bytes_per_s is None and not no_memory:
        lacking.append("bandwidth")
    return lacking


def inspected(path: Path, shapes: dict[str, list[int]], device: Device) -> Inspection:
    """A model at shapes that close everything, and that fits the device.

    Raises:
        InputError: A shape is open, a cost is unknown, or the model does not fit.
    """
    result = inspect(path, shapes, [device])
    open_inputs = [each.name for each in result.dynamic_inputs if each.given is None]
    if result.flops is None or open_inputs:
        names = ", ".join(open_inputs) or "its inputs"
        raise InputError(f"{path}: the shape of {names} is open. Give it, for instance --shape NAME=1x3x224x224.")
    if not result.complete:
        first = result.unknown_ops[0]
        raise InputError(
            f"{path}: the cost of {sum(op.count for op in result.unknown_ops)} operators is unknown ({first.type}: "
            f"{first.reason}), so a time would be too short. Measure it, or remove them."
        )
    if result.devices[device.name].fits == "no":
        raise InputError(
            f"{path}: weights and activations do not fit the memory of '{device.name}' at these shapes. Give a smaller "
            "batch or a device with more."
        )
    return result


def entry(
    result: Inspection,
    device: Device,
    calibration: Calibration,
    *,
    variant: str,
    engine: str,
    batch: int,
    shape: list[int] | None = None,
    to: PeakPrecision | None = None,
) -> Entry:
    """One modelled entry.

    Args:
        result: From `inspected`, at the batch's shapes.
        device: That it was inspected for.
        calibration: For the device's kind.
        variant: Its name in the table.
        engine: The engine's.
        batch: Rows.
        shape: Bucket, without the row dimension.
        to: As for `entries`.
    """
    asked = demand(device, result.precision, result.nodes_cost, to)
    known = calibration.kinds.get(device.kind)
    parts = parts_of(result, device, calibration, to)
    mean_ms = sum(parts.values())
    curve = power_curve(device)
    at, _ = precision_on(device, to or result.precision)
    return Entry(
        variant=variant,
        engine=engine,
        batch=batch,
        shape=shape,
        latency_ms=Milliseconds(mean=round(mean_ms, 6), family="lognormal", cv=known.cv if known else 0.1),
        energy_j=None if curve is None else round(curve.active_w * mean_ms / 1e3, 9),
        basis="modelled",
        source=_source(device, at, result.precision, parts, curve),
        error=error(asked, device, known, curve, at),
    )


def parts_of(
    result: Inspection, device: Device, calibration: Calibration, to: PeakPrecision | None = None
) -> dict[str, float]:
    """`time_parts` of one run of an inspected model; arguments as of `entry`."""
    asked = demand(device, result.precision, result.nodes_cost, to)
    known = calibration.kinds.get(device.kind)
    return time_parts(asked, device, known, transfer_bytes=_transfer_bytes(result))


def time_parts(asked: Demand, device: Device, known: Kindly | None, *, transfer_bytes: float) -> dict[str, float]:
    """Where the time goes, ms: ``compute`` (kernels), ``launch``, ``copy`` (over the host's link), ``fixed``.

    Args:
        asked: Of the device.
        device: Its own launch, synchronisation and link figures win over fitted ones.
        known: Calibration of its kind; ``None``: the bare roofline.
        transfer_bytes: In and out of the device for one batch.
    """
    fitted = known.fit if known is not None else None
    launch_ms = fitted.launch_ms if fitted is not None else 0.0
    if device.launch_s is not None:
        launch_ms = max(launch_ms, device.launch_s.value * 1e3)
    fixed_ms = fitted.fixed_ms if fitted is not None else 0.0
    if device.sync_s is not None:
        fixed_ms = device.sync_s.value * 1e3
    link = device.host_link_bytes_per_s
    copies = link is not None and not device.shared_memory
    return {
        "compute": sum(_slowness(fitted, kind) * ms for kind, ms in asked.roofline_ms.items()),
        "launch": asked.launches * launch_ms,
        "copy": transfer_bytes / link.value * 1e3 if copies and link is not None else 0.0,
        "fixed": fixed_ms,
    }


def _slowness(fitted: Fit | None, kind: str) -> float:
    return 1.0 if fitted is None else fitted.slowness.get(kind, fitted.otherwise)


def _transfer_bytes(result: Inspection) -> float:
    """Inputs and outputs of one run: what moves if everything is fused, less the weights."""
    moved = result.compulsory_bytes
    return max(0.0, float(moved - result.weight_bytes)) if moved is not None else 0.0


def error(
    asked: Demand, device: Device, known: Kindly | None, curve: PowerCurve | None, at: str | None = None
) -> ModelError:
    """How far off a modelled time may be.

    Args:
        asked: Work of the model, as the device would do it.
        device: That is not here.
        known: Calibration of its kind; ``None``: none was measured, and the error is that of kinds unmeasured.
        curve: Of its power, whose error is that of energies.
        at: Precision that it computes in; one that the calibration was not fitted at adds to the error.
    """
    found = _calibrated_error(asked, device, known, curve, at)
    beside = disturbed(device)
    if not beside:
        return found
    return msgspec.structs.replace(
        found,
        device_sd=round(min(math.hypot(found.device_sd, BUSY_SD), SD_MAX), 4),
        why=f"{found.why}; not to be relied on, {'; '.join(beside)}",
    )


def _calibrated_error(
    asked: Demand, device: Device, known: Kindly | None, curve: PowerCurve | None, at: str | None
) -> ModelError:
    power_sd = curve.error if curve is not None else 0.0
    if known is None:
        return ModelError(
            device=device.name,
            device_sd=UNMEASURED_KIND_SD,
            model_sd=UNMEASURED_KIND_SD,
            power_sd=power_sd,
            freedom=1,
            why=f"no {device.kind} was measured: the bare roofline, which nothing reaches",
        )
    share = novelty(known.fit, {str(kind): ms for kind, ms in asked.roofline_ms.items()})
    model_sd = math.hypot(known.errors.model_sd, share * known.fit.between_kinds_sd)
    processor = device.title.rpartition(",")[0]
    seen = device.name in known.devices or (device.name == "local" and processor in known.devices)
    between = known.errors.device_sd
    device_sd = 0.0 if seen else known.errors.model_sd if between is None else between
    why = (
        f"{known.what}: models left out were off by {known.errors.model_sd:.2f} "
        f"(log sd, {known.errors.families} families)"
    )
    if seen:
        why += "; this device is among those measured"
    elif between is None:
        why += (
            "; only one such device was measured, so what another differs by is unknown and taken to be as much again"
        )
    else:
        why += f"; devices left out by {device_sd:.2f} ({known.errors.devices} devices), and this one was not measured"
    if at is not None and at != known.precision:
        other_sd = UNMEASURED_KIND_SD if known.precision_sd is None else known.precision_sd
        model_sd = math.hypot(model_sd, other_sd)
        why += f"; fitted at {known.precision}, and another precision is off by {other_sd:.2f}"
    if share > 0.01:
        kinds = ", ".join(sorted(kind for kind in asked.roofline_ms if kind not in known.fit.slowness))
        why += f"; {share:.0%} of its time is in operators ({kinds}) that were not measured on a {device.kind}"
    return ModelError(
        device=device.name,
        device_sd=round(min(device_sd, SD_MAX), 4),
        model_sd=round(min(model_sd, SD_MAX), 4),
        power_sd=power_sd,
        freedom=max(1, known.errors.families - 1),
        why=why,
    )


def _source(
    device: Device, at: str | None, own: str | None, parts: Mapping[str, float], curve: PowerCurve | None
) -> str:
    what = f"calibrated roofline of {device.name} at {at}"
    if own is not None and at != own:
        what += f" (the model is {own}: converted first)"
    what += "; " + ", ".join(f"{name} {ms:.3g} ms" for name, ms in parts.items() if ms)
    if curve is None:
        return f"{what}; no power curve, so no energy"
    return f"{what}; power {curve.active_w:.3g} W, {curve.basis}"


def with_modelled(measured: LatencyTable | None, modelled: Sequence[Entry]) -> LatencyTable:
    """One table of both; where a variant was measured on an engine, what is modelled of the two is dropped.

    Args:
        measured: Or emulated; ``None``: there is none.
        modelled: Entries of `entries`.
    """
    if measured is None:
        return LatencyTable(entries=list(modelled))
    known = {(each.variant, each.engine) for each in measured.entries if each.basis != "modelled"}
    fresh = [each for each in modelled if (each.variant, each.engine) not in known]
    replaced = {(each.variant, each.engine) for each in fresh}
    kept = [each for each in measured.entries if (each.variant, each.engine) not in replaced]
    return msgspec.structs.replace(measured, entries=[*kept, *fresh])
