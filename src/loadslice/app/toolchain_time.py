"""Time for what a compiler leaves to the CPU, which its own figures leave out."""

from dataclasses import dataclass

import msgspec

from loadslice.spec.toolchain import CompilerReport


@dataclass(frozen=True, slots=True)
class HostTime:
    """The CPU beside the device."""

    operations_per_s: float | None
    """Scalar operations; a multiply-accumulate is two."""


def host_time(report: CompilerReport, host: HostTime) -> CompilerReport:
    """The report with the CPU's part beside the device's.

    Adds ``host_ms_modelled`` (operations of the layers left to the CPU over its rate, ours and not the compiler's) and
    ``total_ms_modelled``; both ``None`` where an operand is unknown, never 0 for want of one.
    """
    if "device_ms_modelled" not in report.figures:
        return report
    hosted = [layer for layer in report.layers if layer.on == "host"]
    work = [layer.host_operations for layer in hosted]
    operations = None if None in work else sum(count for count in work if count is not None)
    time_ms = None
    if operations == 0:
        time_ms = 0.0
    elif operations is not None and host.operations_per_s is not None:
        time_ms = operations / host.operations_per_s * 1e3
    device_ms = report.figures["device_ms_modelled"]
    on_device = len(hosted) < len(report.layers)
    whole = None
    if time_ms is not None and (device_ms is not None or not on_device):
        whole = time_ms + (device_ms or 0.0)
    notes = list(report.notes)
    if hosted:
        rate = "at the given rate" if host.operations_per_s is not None else "once --host-ops-per-s gives its rate"
        notes.append(f"{len(hosted)} layers run on the CPU at no cost to the compiler; host_ms_modelled adds it {rate}")
    figures = report.figures | {
        "host_operations": operations,
        "host_ms_modelled": time_ms,
        "total_ms_modelled": whole,
    }
    return msgspec.structs.replace(report, figures=figures, notes=notes)
