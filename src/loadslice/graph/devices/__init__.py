"""The device catalogue: one YAML file per device beside this one, and the user's own."""

import difflib
import os
from importlib import resources
from pathlib import Path

from loadslice.spec.device import Device, load_device
from loadslice.spec.errors import InputError


def user_folder() -> Path:
    """Where a user's devices live: `$XDG_CONFIG_HOME/loadslice/devices`, usually `~/.config/loadslice/devices`."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "loadslice" / "devices"


def catalogue(own: Path | None = None) -> dict[str, Device]:
    """All devices by name; a user's file replaces a shipped device of the same name, not one beside it.

    Args:
        own: Folder of the user's `*.yaml`, read after `user_folder()`, so that its devices win.

    Raises:
        InputError: One of the files is not a device, or the folder is none.
    """
    if own is not None and not own.is_dir():
        raise InputError(f"{own}: no such folder. Give one that holds a .yaml file for each device.")
    devices: dict[str, Device] = {}
    with resources.as_file(resources.files(__name__)) as shipped:
        for folder in (shipped, user_folder(), *([own] if own is not None else [])):
            devices |= _folder(folder)
    return devices


def _folder(folder: Path) -> dict[str, Device]:
    found: dict[str, Device] = {}
    files: dict[str, Path] = {}
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        device = load_device(path)
        if device.name in found:
            raise InputError(
                f"{path}: name '{device.name}' is that of {files[device.name].name} too. Rename one of them."
            )
        found[device.name], files[device.name] = device, path
    return found


def find(name: str, own: Path | None = None) -> Device:
    """A device of the catalogue by name, or one read from a `.yaml` file.

    Args:
        name: Of a device, or a file's path.
        own: As for `catalogue`.

    Raises:
        InputError: No such device; the nearest names are listed.
    """
    if name.endswith((".yaml", ".yml")):
        return load_device(Path(name))
    devices = catalogue(own)
    if name not in devices:
        near = difflib.get_close_matches(name.lower(), devices, n=3, cutoff=0.4) or sorted(devices)
        raise InputError(
            f"device '{name}' is not in the catalogue; near it: {', '.join(near)}. "
            "Run `loadslice devices` for all, or give a .yaml file of your own."
        )
    return devices[name]
