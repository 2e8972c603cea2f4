"""`loadslice devices`: this machine, then the catalogue; with a name, one device and where each figure comes from."""

from collections.abc import Iterable
from typing import Any

import click

from loadslice.app.output import emit, json_option, keep, out_option, say
from loadslice.backends import probe
from loadslice.graph import devices as catalogue
from loadslice.graph.text import describe_device, describe_devices, describe_machine
from loadslice.spec.device import Device


@click.command("devices")
@click.argument("name", required=False)
@json_option
@out_option
def command(name: str | None, as_json: bool, out: Any) -> None:
    """Which devices are there, here and in the catalogue?

    NAME is `local` (this machine), a device of the catalogue, or a .yaml file of your own. Devices of your own live in
    ~/.config/loadslice/devices/*.yaml; one with the name of a shipped device replaces it.

    Example: loadslice devices nvidia-l4
    """
    if name is not None and name != "local":
        device = catalogue.find(name)
        keep(device, out, f"device-{device.name}.json")
        emit(device, as_json=as_json, text=lambda: describe_device(device))
        return
    say("measuring this machine's peak and bandwidth (under 2 s)")
    machine = probe.local()
    if name == "local":
        keep(machine, out, "device-local.json")
        emit(machine, as_json=as_json, text=lambda: [*describe_machine(machine), *describe_device(machine.device)])
        return
    known = catalogue.catalogue()
    document = {"local": machine, "catalogue": known}
    keep(document, out, "devices.json")
    emit(document, as_json=as_json, text=lambda: _all(describe_machine(machine), [machine.device, *known.values()]))


def _all(machine: Iterable[str], listed: list[Device]) -> Iterable[str]:
    yield from machine
    yield ""
    yield from describe_devices(listed)
