"""What a device costs and draws, and what its missing figures prevent, as lines for a person."""

from collections.abc import Iterator

from loadslice.graph.numbers import scaled
from loadslice.profiles import calibration, modelled
from loadslice.spec.device import Device, Figure, power_curve

_LINKS = {
    "host_link_bytes_per_s": ("host link", "B/s"),
    "launch_s": ("launch", "s"),
    "sync_s": ("synchronisation", "s"),
    "active_w": ("active", "W"),
    "cores": ("cores", ""),
}


def describe_power(device: Device) -> Iterator[str]:
    """Links, launches and power."""
    for field, (label, unit) in _LINKS.items():
        figure: Figure | None = getattr(device, field)
        if figure is not None:
            value = f"{figure.value * 1e6:g} us" if unit == "s" else scaled(figure.value, unit)
            yield f"  {label:<20}{value}, {figure.basis}: {figure.source}"
            if figure.note:
                yield f"  {'':<20}{figure.note}"
    curve = power_curve(device)
    if curve is None:
        return
    points = ", ".join(f"{power_w:.4g} W at {load:.0%}" for load, power_w in curve.points)
    yield f"  {'power by load':<20}{points}, {curve.basis}, +-{curve.error:.0%}: {curve.source}"
    if curve.note:
        yield f"  {'':<20}{curve.note}"


def describe_money(device: Device) -> Iterator[str]:
    """Prices, newest first."""
    for label, prices in (("to buy", device.purchase_price), ("to rent, an hour", device.rent_per_hour)):
        for price in sorted(prices, key=lambda each: each.date, reverse=True):
            where = f", {price.region}" if price.region else ""
            offer = f" ({price.offer})" if price.offer else ""
            yield f"  {label:<20}{price.value:,g} {price.currency}, {price.date}{where}{offer}, {price.basis}"
            yield f"  {'':<20}{price.source}" + (f"; {price.note}" if price.note else "")


def consequences(device: Device) -> Iterator[str]:
    """Every figure that is absent and matters, with what cannot be said without it."""
    for what in modelled.missing(device):
        yield f"{what}: times cannot be modelled; measure, or give the figure in a file of your own"
    if device.kind != "cpu" and not device.shared_memory and device.host_link_bytes_per_s is None:
        yield "host link: copies to and from it count as no time"
    if power_curve(device) is None:
        lacking = "idle power" if device.idle_w is None else "active power and TDP"
        yield f"{lacking}: energy and running cost are unknown (TDP times time is not an energy)"
    if not device.purchase_price and not device.rent_per_hour:
        yield "price: plans that use it have no cost; a price file or a file of your own gives one"
    if (
        device.memory_bytes is None
        and not device.shared_memory
        and device.onchip_bytes is None
        and device.kind != "cpu"
    ):
        yield "memory: whether a model fits is unknown"
    if device.kind == "cpu" and device.cores is None:
        yield "cores: an engine of some of its threads cannot be modelled"
    known = calibration.shipped().kinds.get(device.kind)
    if known is not None and device.name not in known.devices and not modelled.missing(device):
        spread = known.errors.device_sd if known.errors.device_sd is not None else known.errors.model_sd
        yield f"measurement: none was in the calibration, so modelled times carry {spread:.2f} more (log sd)"
