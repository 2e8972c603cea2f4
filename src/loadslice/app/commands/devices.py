"""`loadslice devices`: this machine, then the catalogue; with a name, one device and where each figure comes from."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from loadslice.app.devices_text import consequences, describe_money, describe_power
from loadslice.app.output import Finite, emit, json_option, keep, out_option, say
from loadslice.backends import probe
from loadslice.graph import devices as catalogue
from loadslice.graph.text import describe_device, describe_devices, describe_machine
from loadslice.spec.device import Device, Kind, PeakPrecision, power_curve
from loadslice.spec.errors import InputError


@click.command("devices")
@click.argument("name", required=False)
@click.option(
    "--devices",
    "own",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="A folder of device files that join the catalogue and win over it.",
)
@click.option("--kind", type=click.Choice(["cpu", "gpu", "npu"]), default=None, help="List these only.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4"]),
    default=None,
    help="List devices that state a peak at it.",
)
@click.option("--max-watts", type=Finite(0.01, 10_000), default=None, help="List devices of at most this TDP.")
@click.option(
    "--min-memory-gb", type=Finite(0, 10_000), default=None, help="List devices with this memory of their own."
)
@json_option
@out_option
def command(
    name: str | None,
    own: Path | None,
    kind: Kind | None,
    precision: PeakPrecision | None,
    max_watts: float | None,
    min_memory_gb: float | None,
    as_json: bool,
    out: Any,
) -> None:
    """Which devices are there, here and in the catalogue?

    NAME is `local` (this machine), a device of the catalogue, or a .yaml file of your own: every figure is shown with
    its source and how it is known, what is absent and what that prevents. Devices of your own live in
    ~/.config/loadslice/devices/*.yaml or in the folder of --devices; one with the name of a shipped device replaces
    it. With a filter only the catalogue is listed, and this machine is not measured.

    Example: loadslice devices nvidia-l4
    """
    filters = {"--kind": kind, "--precision": precision, "--max-watts": max_watts, "--min-memory-gb": min_memory_gb}
    given = [option for option, value in filters.items() if value is not None]
    if name is not None and given:
        raise InputError(f"{given[0]} filters the list; '{name}' is one device. Give one of the two.")
    if name is not None and name != "local":
        device = catalogue.find(name, own)
        keep(device, out, f"device-{device.name}.json")
        emit(device, as_json=as_json, text=lambda: _explained(device))
        return
    if given:
        found = {
            device.name: device
            for device in catalogue.catalogue(own).values()
            if _passes(device, kind, precision, max_watts, min_memory_gb)
        }
        if not found:
            raise InputError(f"no device passes {' and '.join(given)}. Leave one out, or see `loadslice devices`.")
        document = {"catalogue": found}
        keep(document, out, "devices.json")
        emit(document, as_json=as_json, text=lambda: describe_devices(list(found.values())))
        return
    known = catalogue.catalogue(own)
    say("measuring this machine's peak and bandwidth (under 2 s)")
    machine = probe.local()
    if name == "local":
        keep(machine, out, "device-local.json")
        emit(machine, as_json=as_json, text=lambda: [*describe_machine(machine), *describe_device(machine.device)])
        return
    listed = {"local": machine, "catalogue": known}
    keep(listed, out, "devices.json")
    emit(listed, as_json=as_json, text=lambda: _all(describe_machine(machine), [machine.device, *known.values()]))


def _passes(
    device: Device,
    kind: Kind | None,
    precision: PeakPrecision | None,
    max_watts: float | None,
    min_memory_gb: float | None,
) -> bool:
    """A figure that a filter asks for and nobody states does not pass."""
    curve = power_curve(device)
    most_w = device.tdp_w.value if device.tdp_w is not None else curve.active_w if curve is not None else None
    memory = device.memory_bytes
    return (
        (kind is None or device.kind == kind)
        and (precision is None or precision in device.peak_ops_per_s)
        and (max_watts is None or (most_w is not None and most_w <= max_watts))
        and (min_memory_gb is None or (memory is not None and memory.value >= min_memory_gb * 1e9))
    )


def _explained(device: Device) -> Iterable[str]:
    yield from describe_device(device)
    yield from describe_power(device)
    yield from describe_money(device)
    absent = list(consequences(device))
    if absent:
        yield "  absent, and what that prevents:"
        yield from (f"    {line}" for line in absent)


def _all(machine: Iterable[str], listed: list[Device]) -> Iterable[str]:
    yield from machine
    yield ""
    yield from describe_devices(listed)
