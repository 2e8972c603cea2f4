"""A device: what its maker, a measurement or arithmetic says it can do, each figure with its source.

Vendors' pages mix figures with and without 2:4 sparsity, and give TOPS without a precision. Neither can enter here:
a peak stands under its precision and must say that it is dense.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml

Kind = Literal["cpu", "gpu", "npu"]
Basis = Literal["stated", "derived", "measured"]
PeakPrecision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4"]

PLAUSIBLE = {
    "peak_ops_per_s": (1e9, 1e17),
    "bandwidth_bytes_per_s": (1e8, 1e14),
    "memory_bytes": (1e6, 1e13),
    "onchip_bytes": (1e4, 1e11),
    "tdp_w": (0.05, 5000.0),
    "idle_w": (0.001, 2000.0),
}
"""Figures outside are in a wrong unit: the smallest and largest parts on sale lie well inside."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One number about a device."""

    value: float
    source: str
    """A page, a document or a package that states it, or the arithmetic that derives it from figures that do."""
    basis: Basis
    note: str | None = None


class Peak(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Peak rate at one precision; one multiply-accumulate is two operations."""

    value: float
    source: str
    basis: Basis
    dense: bool
    """False for a figure that presumes 2:4 sparsity: refused, no dense model reaches it."""
    note: str | None = None


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of the catalogue. A figure that nobody credible states is absent, not guessed."""

    name: str
    title: str
    kind: Kind
    peak_ops_per_s: dict[PeakPrecision, Peak] = {}
    bandwidth_bytes_per_s: Figure | None = None
    """Between the device and its main memory."""
    memory_bytes: Figure | None = None
    """Memory of its own; absent where it uses the host's."""
    onchip_bytes: Figure | None = None
    """On-chip memory that can hold weights or activations; several units together."""
    tdp_w: Figure | None = None
    idle_w: Figure | None = None
    shared_memory: bool = False
    """It uses the host's memory."""
    notes: list[str] = []


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """An inference runtime on this machine."""

    name: str
    version: str | None
    devices: list[str]
    """As the runtime itself reports them."""
    reason: str | None = None
    """Why it cannot be used, when it cannot."""


class LocalMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe of this machine found."""

    cpu: str
    architecture: str
    cores_usable: int
    """Logical processors this process may run on."""
    cores_physical: int | None
    isa: list[str] | None
    """Vector extensions that matter for inference, as the operating system names them; ``None``: not listed here."""
    memory_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int | None
    """The container's limit, where there is one."""
    numa_nodes: int | None
    onchip_bytes: int | None
    """Last-level cache, all instances."""
    runtimes: list[Runtime]
    device: Device
    """This machine's processor as a device, its peak and bandwidth measured."""


def load_device(path: Path) -> Device:
    """Read and check one device file.

    Raises:
        InputError: Not a device file, or a figure that cannot be right.
    """
    try:
        device = decode_yaml(path, Device)
    except InputError as error:
        if "value: Expected `float`, got `str`" in str(error):
            raise InputError(f"{error} YAML needs a sign in the exponent: write 1.5e+12, not 1.5e12.") from error
        raise
    check_device(device, str(path))
    return device


def check_device(device: Device, place: str) -> None:
    """Refuse figures that cannot be right.

    Raises:
        InputError: A sparse peak, an implausible unit, a source that is empty, or figures that contradict each other.
    """
    if (
        not device.name
        or device.name != device.name.lower()
        or not device.name.replace("-", "").replace(".", "").isalnum()
    ):
        raise InputError(f"{place}: name '{device.name}' must be lower case letters, digits, '-' and '.'.")
    for precision, peak in device.peak_ops_per_s.items():
        where = f"{place}: peak_ops_per_s.{precision}"
        if not peak.dense:
            raise InputError(
                f"{where}: a peak with 2:4 sparsity is twice what a dense model can reach. Give the dense one."
            )
        _check_figure(peak, "peak_ops_per_s", where)
    for field in ("bandwidth_bytes_per_s", "memory_bytes", "onchip_bytes", "tdp_w", "idle_w"):
        figure = getattr(device, field)
        if figure is not None:
            _check_figure(figure, field, f"{place}: {field}")
    if device.tdp_w and device.idle_w and device.idle_w.value >= device.tdp_w.value:
        raise InputError(f"{place}: idle_w {device.idle_w.value} is not below tdp_w {device.tdp_w.value}.")
    if device.memory_bytes and device.onchip_bytes and device.onchip_bytes.value >= device.memory_bytes.value:
        raise InputError(f"{place}: onchip_bytes is not below memory_bytes.")


def _check_figure(figure: Figure | Peak, field: str, where: str) -> None:
    low, high = PLAUSIBLE[field]
    if not math.isfinite(figure.value) or not low <= figure.value <= high:
        raise InputError(
            f"{where}: {figure.value:g} is not plausible (from {low:g} to {high:g}); values are in base units: "
            "operations/s, bytes/s, bytes, watts."
        )
    if not figure.source.strip():
        raise InputError(f"{where}: a figure needs a source.")
