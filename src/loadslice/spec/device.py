"""A device: what its maker, a measurement or arithmetic says it can do, each figure with its source.

Vendors' pages mix figures with and without 2:4 sparsity, and give TOPS without a precision. Neither can enter here:
a peak stands under its precision and must say that it is dense.
"""

import math
import re
from bisect import bisect_right
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.currency import check_code
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml

Kind = Literal["cpu", "gpu", "npu"]
Basis = Literal["stated", "derived", "measured"]
PeakPrecision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4"]

BUSY = "the machine was busy"
"""Begins the note of a figure of this machine that was measured beside others' work."""

PLAUSIBLE = {
    "peak_ops_per_s": (1e9, 1e17),
    "bandwidth_bytes_per_s": (1e8, 1e14),
    "memory_bytes": (1e6, 1e13),
    "onchip_bytes": (1e4, 1e11),
    "tdp_w": (0.05, 5000.0),
    "idle_w": (0.001, 2000.0),
    "active_w": (0.01, 5000.0),
    "host_link_bytes_per_s": (1e6, 2e12),
    "launch_s": (1e-8, 0.1),
    "sync_s": (1e-8, 1.0),
    "cores": (1.0, 4096.0),
}
"""Figures outside are in a wrong unit: the smallest and largest parts on sale lie well inside."""

PURCHASE_MAX, RENT_MAX = 1e6, 1e3
"""More than that for one device, or for one hour of it, is a whole rack, or a currency of small coins: say so per
device."""


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


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one device costs, at one place and time; prices of hardware age within months."""

    value: float
    """For one device; for rent, one hour of it."""
    currency: str
    """ISO 4217, for instance USD; amounts of different currencies are never added."""
    date: str
    """When it was seen: YYYY, YYYY-MM or YYYY-MM-DD."""
    region: str | None = None
    """Where it holds; ``None``: the source names none."""
    offer: str | None = None
    """What exactly is sold: an instance type, a card, the terms."""
    source: str
    basis: Basis
    note: str | None = None


class PowerCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Power drawn at shares of full load, joined by straight lines."""

    points: list[tuple[float, float]]
    """Share of time that it computes (0 to 1), watts; the first at 0, the last at 1."""
    source: str
    basis: Basis
    error: float = 0.1
    """Relative standard deviation of the watts at one load: 0.1 is what a vendor's tool shows against a meter."""
    note: str | None = None

    def at(self, load: float) -> float:
        """Watts at a share of load from 0 to 1."""
        assert 0.0 <= load <= 1.0, "a load is a share"
        upper = min(bisect_right([share for share, _ in self.points], load), len(self.points) - 1)
        (left, low_w), (right, high_w) = self.points[upper - 1], self.points[upper]
        return low_w + (high_w - low_w) * (load - left) / (right - left)

    @property
    def idle_w(self) -> float:
        """Ready, without work."""
        return self.points[0][1]

    @property
    def active_w(self) -> float:
        """Computing all the time."""
        return self.points[-1][1]


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
    """Ready for work without any: driver and context loaded, clocks as they then are."""
    active_w: Figure | None = None
    """While it computes; seldom the TDP, which is what its cooler must bear."""
    power: PowerCurve | None = None
    """Measured or stated between idle and full load; see `power_curve`, which derives one where it can."""
    host_link_bytes_per_s: Figure | None = None
    """One way between its memory and the host's; absent where it uses the host's memory."""
    launch_s: Figure | None = None
    """Least time from one kernel to the next, however little it does."""
    sync_s: Figure | None = None
    """What handing over a batch and waking up for the answer takes beside copies and kernels."""
    cores: Figure | None = None
    """Physical cores of a CPU, which engines share by their threads."""
    purchase_price: list[Price] = []
    rent_per_hour: list[Price] = []
    shared_memory: bool = False
    """It uses the host's memory."""
    notes: list[str] = []


def disturbed(device: Device) -> list[str]:
    """Figures of this machine that were measured beside others' work, each with its note."""
    figures: dict[str, Figure | Peak] = {f"peak {name}": peak for name, peak in device.peak_ops_per_s.items()}
    figures |= {} if device.bandwidth_bytes_per_s is None else {"bandwidth": device.bandwidth_bytes_per_s}
    return [f"{name}: {figure.note}" for name, figure in figures.items() if BUSY in (figure.note or "")]


def load_device(path: Path) -> Device:
    """Read and check one device file.

    Raises:
        InputError: Not a device file, or a figure that cannot be right.
    """
    device = decode_yaml(path, Device)
    check_device(device, str(path))
    return device


def power_curve(device: Device) -> PowerCurve | None:
    """Power by load, from what the device states: its curve, or a straight line from idle to active.

    Without an active figure the line ends at the TDP, is ``derived`` and says so: an upper bound, for a cooler is
    built for the worst program. A TDP without an idle figure gives no curve: TDP times time is not an energy.
    """
    if device.power is not None:
        return device.power
    if device.idle_w is None:
        return None
    if device.active_w is not None:
        weakest: Basis = "derived" if "derived" in (device.idle_w.basis, device.active_w.basis) else "stated"
        if device.idle_w.basis == device.active_w.basis == "measured":
            weakest = "measured"
        return PowerCurve(
            points=[(0.0, device.idle_w.value), (1.0, device.active_w.value)],
            source=f"idle: {device.idle_w.source}; active: {device.active_w.source}",
            basis=weakest,
            note="a straight line between the two",
        )
    if device.tdp_w is None:
        return None
    return PowerCurve(
        points=[(0.0, device.idle_w.value), (1.0, device.tdp_w.value)],
        source=f"idle: {device.idle_w.source}; full load taken as the TDP: {device.tdp_w.source}",
        basis="derived",
        error=DERIVED_POWER_ERROR,
        note="an upper bound: no figure of what it draws while it computes",
    )


def part_of(device: Device, threads: int) -> Device:
    """A CPU as an engine of so many threads has it: its share of peaks, bandwidth, cache, power and price.

    The share of the bandwidth is what is left when all other cores are as busy; alone, an engine has more.

    Raises:
        InputError: The device states no cores, or fewer than that.
    """
    if device.cores is None:
        raise InputError(f"device '{device.name}' states no cores, so a part of {threads} threads is unknown.")
    if threads > device.cores.value:
        raise InputError(f"device '{device.name}' has {device.cores.value:g} cores, not {threads}.")
    share = threads / device.cores.value

    def cut(figure: Figure | None) -> Figure | None:
        return None if figure is None else msgspec.structs.replace(figure, value=figure.value * share, basis="derived")

    curve = power_curve(device)
    return msgspec.structs.replace(
        device,
        peak_ops_per_s={
            name: msgspec.structs.replace(peak, value=peak.value * share, basis="derived")
            for name, peak in device.peak_ops_per_s.items()
        },
        bandwidth_bytes_per_s=cut(device.bandwidth_bytes_per_s),
        onchip_bytes=cut(device.onchip_bytes),
        tdp_w=cut(device.tdp_w),
        idle_w=cut(device.idle_w),
        active_w=cut(device.active_w),
        power=None
        if curve is None
        else msgspec.structs.replace(curve, points=[(load, power_w * share) for load, power_w in curve.points]),
        cores=cut(device.cores),
        purchase_price=[msgspec.structs.replace(price, value=price.value * share) for price in device.purchase_price],
        rent_per_hour=[msgspec.structs.replace(price, value=price.value * share) for price in device.rent_per_hour],
    )


DERIVED_POWER_ERROR = 0.3
"""A curve that ends at the TDP: inference was seen to draw from about 40 to 100 % of it."""


def purchase_price(device: Device, currency: str | None = None) -> Price | None:
    """The latest purchase price, in a currency where one is named; ``None``: none is known."""
    return _latest(device.purchase_price, currency)


def rent_per_hour(device: Device, currency: str | None = None) -> Price | None:
    """The latest rent for one hour of one device, in a currency where one is named; ``None``: none is known."""
    return _latest(device.rent_per_hour, currency)


def _latest(prices: list[Price], currency: str | None) -> Price | None:
    known = [price for price in prices if currency is None or price.currency == currency]
    return max(known, key=lambda price: price.date, default=None)


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
    _check_precisions(device, place)
    for field in FIGURES:
        figure = getattr(device, field)
        if figure is not None:
            _check_figure(figure, field, f"{place}: {field}")
    _check_efficiency(device, place)
    if device.power is not None:
        _check_curve(device.power, f"{place}: power")
    _check_prices(device.purchase_price, PURCHASE_MAX, f"{place}: purchase_price")
    _check_prices(device.rent_per_hour, RENT_MAX, f"{place}: rent_per_hour")
    if device.active_w and device.idle_w and device.idle_w.value > device.active_w.value:
        raise InputError(f"{place}: idle_w {device.idle_w.value} is above active_w {device.active_w.value}.")
    if device.active_w and device.tdp_w and device.active_w.value > ABOVE_TDP_MAX * device.tdp_w.value:
        raise InputError(
            f"{place}: active_w {device.active_w.value:g} is far above tdp_w {device.tdp_w.value:g}; is one of them of "
            "a whole server?"
        )
    if device.tdp_w and device.idle_w and device.idle_w.value >= device.tdp_w.value:
        raise InputError(f"{place}: idle_w {device.idle_w.value} is not below tdp_w {device.tdp_w.value}.")
    if device.memory_bytes and device.onchip_bytes and device.onchip_bytes.value >= device.memory_bytes.value:
        raise InputError(f"{place}: onchip_bytes is not below memory_bytes.")


def _check_precisions(device: Device, place: str) -> None:
    """The traps between two precisions: a sparse figure, a figure without tensor units."""
    peaks = device.peak_ops_per_s
    for wide, narrow in (("fp16", "int8"), ("bf16", "int8"), ("fp16", "fp8"), ("fp8", "int8")):
        if wide not in peaks or narrow not in peaks:
            continue
        ratio = peaks[narrow].value / peaks[wide].value
        if ratio > NARROWER_MAX:
            raise InputError(
                f"{place}: peak_ops_per_s.{narrow} is {ratio:.3g} times {wide}; up to {NARROWER_MAX:g} can be right. "
                f"Is {narrow} with 2:4 sparsity, or {wide} without tensor units?"
            )
    if "fp16" in peaks and "bf16" in peaks and not 0.5 <= peaks["fp16"].value / peaks["bf16"].value <= 2:
        raise InputError(f"{place}: peak_ops_per_s.fp16 and bf16 differ more than twice; is one without tensor units?")


def _check_efficiency(device: Device, place: str) -> None:
    """Kilowatts for watts show beside the peak."""
    most = max((peak.value for peak in device.peak_ops_per_s.values()), default=0.0)
    for field in ("tdp_w", "active_w"):
        figure = getattr(device, field)
        if figure is not None and most / figure.value > OPS_PER_J_MAX:
            raise InputError(
                f"{place}: {field} {figure.value:g} is not plausible beside a peak of {most:.3g} operations/s. "
                f"If that is kilowatts, write {figure.value * 1000:g}."
            )


OPS_PER_J_MAX = 1e14
"""The thriftiest chips on sale reach a tenth of it, at int8."""

NARROWER_MAX = 4.2
"""int8 at four times fp16: the most a shipped part has (fp16 that must accumulate in fp32 at half rate)."""

ABOVE_TDP_MAX = 1.2

FIGURES = (
    "bandwidth_bytes_per_s",
    "memory_bytes",
    "onchip_bytes",
    "tdp_w",
    "idle_w",
    "active_w",
    "host_link_bytes_per_s",
    "launch_s",
    "sync_s",
    "cores",
)
"""Fields of `Device` that are one figure each."""

_DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")


def _check_curve(curve: PowerCurve, where: str) -> None:
    shares = [share for share, _ in curve.points]
    if len(shares) < 2 or shares[0] != 0.0 or shares[-1] != 1.0 or sorted(set(shares)) != shares:
        raise InputError(f"{where}.points: shares of load must rise from 0 to 1, not {shares}.")
    low, high = PLAUSIBLE["idle_w"][0], PLAUSIBLE["active_w"][1]
    watts = [power_w for _, power_w in curve.points]
    if any(not low <= power_w <= high for power_w in watts) or sorted(watts) != watts:
        raise InputError(f"{where}.points: watts must lie from {low:g} to {high:g} and not fall with load: {watts}.")
    if not 0 <= curve.error <= 1:
        raise InputError(f"{where}.error: {curve.error:g} must be a share, from 0 to 1.")
    if not curve.source.strip():
        raise InputError(f"{where}: a curve needs a source.")


def _check_prices(prices: list[Price], most: float, where: str) -> None:
    for index, price in enumerate(prices):
        place = f"{where}[{index}]"
        check_code(price.currency, place)
        if not _DATE.fullmatch(price.date):
            raise InputError(f"{place}.date: '{price.date}' must be YYYY, YYYY-MM or YYYY-MM-DD.")
        if not 0 < price.value <= most:
            raise InputError(f"{place}.value: {price.value:g} must be above 0 and at most {most:g}, for one device.")
        if not price.source.strip():
            raise InputError(f"{place}: a price needs a source.")


def _check_figure(figure: Figure | Peak, field: str, where: str) -> None:
    low, high = PLAUSIBLE[field]
    if not math.isfinite(figure.value) or not low <= figure.value <= high:
        raise InputError(
            f"{where}: {figure.value:g} is not plausible (from {low:g} to {high:g}); values are in base units: "
            "operations/s, bytes/s, bytes, watts, seconds."
        )
    if not figure.source.strip():
        raise InputError(f"{where}: a figure needs a source.")
