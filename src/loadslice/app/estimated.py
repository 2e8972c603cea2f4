"""Times on devices that are not here as a call would take them: kernels, launches, copies, driver, and the error.

A roofline alone is a bound that nothing reaches: a small model on a GPU is all launches and waiting. What is added is
fitted on published measurements (`loadslice.profiles.calibration`), and so is how far off it may be.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from loadslice.app.slice_problem import Machine, Opened
from loadslice.graph.census import precision
from loadslice.graph.op_class import Demand, OpClass, demand
from loadslice.graph.op_times import op_costs
from loadslice.graph.roofline import precision_on
from loadslice.profiles import modelled
from loadslice.profiles.calibration import Calibration, shipped
from loadslice.sim.draws import t_95
from loadslice.spec.device import Device
from loadslice.spec.inspection import Estimate, Inspection
from loadslice.spec.uncertainty import interval


def with_estimates(result: Inspection, devices: Sequence[Device]) -> Inspection:
    """The inspection with the time of a whole call on each of its devices that can be modelled.

    Args:
        result: Of a model whose every cost is known; another comes back as it is.
        devices: That it was inspected for.
    """
    if result.flops is None or not result.complete:
        return result
    known = shipped()
    fits = dict(result.devices)
    for device in devices:
        fit = fits.get(device.name)
        if fit is not None and fit.fits != "no" and not modelled.missing(device):
            fits[device.name] = msgspec.structs.replace(fit, estimate=_estimate(result, device, known))
    return msgspec.structs.replace(result, devices=fits)


def _estimate(result: Inspection, device: Device, known: Calibration) -> Estimate:
    entry = modelled.entry(result, device, known, variant="", engine="", batch=1)
    assert entry.error is not None, "what is modelled states its error"
    assert entry.latency_ms.mean is not None
    low, high = interval(entry, t_95(entry.error.freedom))
    time_ms = entry.latency_ms.mean
    return Estimate(
        time_ms=time_ms,
        low_ms=time_ms * low,
        high_ms=time_ms * high,
        parts_ms=modelled.parts_of(result, device, known),
        error=entry.error,
        sources=known.sources(device.kind),
    )


def calibrated(opened: Opened, machine: Machine) -> Machine:
    """The machine with modelled operators as long as operators on such devices were measured to be.

    Each operator gets its launch; the driver's part of a call is the link's synchronisation, paid for each transfer.
    Of NPUs only whole models were published, so that an operator without products costs nothing by them: there the
    roofline's time is the least.

    Args:
        opened: The model.
        machine: Times by the roofline, which are replaced, or from a file, which stay.
    """
    known, at = shipped(), precision(opened.body)
    costs = dict(zip(opened.graph.keys, op_costs(opened.body, opened.graph, []), strict=True))
    times = dict(machine.times)
    for name, device in machine.modelled.items():
        kindly = known.kinds.get(device.kind)
        asked = {key: demand(device, at, costs[key]) for key, ms in times[name].nodes_ms.items() if ms is not None}
        parts = {key: modelled.time_parts(one, device, kindly, transfer_bytes=0.0) for key, one in asked.items()}
        nodes_ms: dict[str, float | None] = dict(times[name].nodes_ms)
        for key, part in parts.items():
            taken_ms = part["compute"] + part["launch"]
            nodes_ms[key] = max(taken_ms, nodes_ms[key] or 0.0) if device.kind == "npu" else taken_ms
        launch_ms = sum(part["launch"] for part in parts.values())
        times[name] = msgspec.structs.replace(
            times[name],
            source=f"calibrated {times[name].source}, launches {launch_ms:.3g} ms of all",
            nodes_ms=nodes_ms,
            fitted_on=known.sources(device.kind),
            error=modelled.error(_together(asked.values()), device, kindly, None, precision_on(device, at)[0]),
        )
    return replace(machine, times=times)


def _together(asked: Iterable[Demand]) -> Demand:
    total: dict[OpClass, float] = {}
    for one in asked:
        for kind, ms in one.roofline_ms.items():
            total[kind] = total.get(kind, 0.0) + ms
    return Demand(total)
