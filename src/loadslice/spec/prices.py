"""The price file: what parts of a fleet cost to buy or rent, to power, to house and to look after.

A part is a box or an engine of the offers, named as there or, for an engine, as its device in the catalogue. What the
file states goes before what the offers and the catalogue state. An amount that is not stated is unknown (``None``),
never 0; a total that needs it is unknown too and says which key is missing.
"""

import math
from pathlib import Path

import msgspec

from loadslice.spec.currency import check_code, check_prices, same_currency
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml
from loadslice.spec.offers import Box, Offer, Offers
from loadslice.spec.plan_money import PriceBasis

KINDS = ("cpu", "gpu", "npu")
PART_W_MAX = 20_000.0
RACK_UNIT_W_MIN = 10.0
"""Whatever fills a height unit of a rack draws more than this at full load."""


class Hours(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hours of an engineer that one kind of engine takes, however many of it there are; ``None``: unknown."""

    migration: float | None = None
    """Once, until the first of its kind serves: porting, quantising, validating."""
    retuning: float | None = None
    """Each time the model changes: converting and validating it again for this kind."""
    upkeep_per_month: float | None = None
    """Drivers, toolchain, monitoring, being on call."""
    each_per_month: float = 0.0
    """For every single engine, on top."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A box or an engine; ``None``: as the offers say, or unknown."""

    purchase: float | None = None
    """Price of one; give it or ``rent_per_hour``."""
    rent_per_hour: float | None = None
    """Price of one for every hour of the year; its power, cooling and space are in it."""
    currency: str | None = None
    """``None``: the file's."""
    source: str | None = None
    """Who said so, and when."""
    basis: PriceBasis = "assumed"
    price_spread: float = 0.25
    """How far the price may be off, as a share of it: 95 of 100 such prices lie within."""
    idle_w: float | None = None
    active_w: float | None = None
    """At full load."""
    power_curve: list[tuple[float, float]] | None = None
    """Share of the time that it works (0 to 1, ascending) and watts, instead of the two above."""
    rack_units: float | None = None
    """Height units of a box; 0: it stands in no rack."""
    owned: int = 0
    """How many are there already: they cost no purchase."""
    spares_share: float = 0.0
    """Spare parts and replacements a year, as a share of the purchase."""


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole price file."""

    currency: str
    exchange: dict[str, float] = {}
    """What one unit of another currency costs in the file's."""
    parts: dict[str, Part] = {}
    hours: dict[str, Hours] = {}
    """By an engine's name, its device or its kind (cpu, gpu, npu); the first that is there counts."""


def load(path: Path) -> Prices:
    """Read and check a price file; every amount comes back in the file's currency.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check(decode_yaml(path, Prices), str(path))


def check(prices: Prices, place: str) -> Prices:
    """Refuse what cannot be meant and bring all amounts into one currency.

    Raises:
        InputError: A wrong unit of measure, or a currency without a rate.
    """
    check_code(prices.currency, f"{place}: currency")
    for code, rate in prices.exchange.items():
        check_code(code, f"{place}: exchange")
        if not math.isfinite(rate) or rate <= 0:
            raise InputError(f"{place}: exchange.{code}: {rate} is not a rate.")
    parts = {name: _in_currency(part, prices, f"{place}: parts.{name}") for name, part in prices.parts.items()}
    for name, part in parts.items():
        _check_part(part, prices.currency, f"{place}: parts.{name}")
    for name, hours in prices.hours.items():
        where = f"{place}: hours.{name}"
        _within(where, {"migration": hours.migration}, 0, 100_000)
        _within(where, {"retuning": hours.retuning}, 0, 10_000)
        _within(where, {"upkeep_per_month": hours.upkeep_per_month, "each_per_month": hours.each_per_month}, 0, 5000)
    return msgspec.structs.replace(prices, parts=parts)


def apply(prices: Prices, offers: Offers, currency: str, place: str) -> Offers:
    """Offers with the file's prices and power in place of their own.

    Args:
        prices: Checked.
        offers: Checked.
        currency: Of the budget.
        place: Name of the price file.

    Raises:
        InputError: The price file is in another currency than the budget, or prices a part that is not offered.
    """
    same_currency(place, {"the budget": currency, "the prices": prices.currency})
    known = {*offers.boxes, *offers.engines, *(offer.device for offer in offers.engines.values() if offer.device)}
    for name in prices.parts:
        if name not in known:
            raise InputError(f"{place}: parts.{name}: not offered. Offered are {', '.join(sorted(known))}.")
        of_device = [engine for engine, offer in offers.engines.items() if offer.device == name]
        if prices.parts[name].owned and len(of_device) > 1:
            raise InputError(
                f"{place}: parts.{name}.owned: {', '.join(of_device)} are all of that device, and what is there can be "
                "only one of them. State `owned` by the engine's name."
            )
    timed = {*offers.engines, *(one.device for one in offers.engines.values() if one.device), *KINDS}
    for name in prices.hours:
        if name not in timed:
            raise InputError(
                f"{place}: hours.{name}: neither an engine or a device that is offered, nor a kind. Write one of "
                f"{', '.join(sorted(timed))}."
            )
    boxes = {name: _priced_box(box, prices.parts.get(name)) for name, box in offers.boxes.items()}
    engines = {
        name: _priced_engine(offer, part_of(prices, name, offer.device)) for name, offer in offers.engines.items()
    }
    for name, box in boxes.items():
        _check_together(box, prices.parts.get(name), f"{place}: parts.{name}")
    for name, offer in engines.items():
        _check_together(offer, part_of(prices, name, offer.device), f"{place}: parts.{name}")
    return msgspec.structs.replace(offers, boxes=boxes, engines=engines)


def _check_together(merged: Box | Offer, stated: Part | None, place: str) -> None:
    """Refuse what the price file and the offers say only together."""
    if stated is None:
        return
    if stated.owned and merged.price_per_hour is not None:
        raise InputError(
            f"{place}.owned: {stated.owned} of a part that is rented for {merged.price_per_hour:g} an hour are not "
            "owned. State its purchase, or remove one of the two."
        )
    active_w = stated.active_w if isinstance(merged, Box) else merged.active_w
    if merged.idle_w is not None and active_w is not None and merged.idle_w > active_w:
        raise InputError(
            f"{place}: with what the offers say, idle_w {merged.idle_w:g} is above active_w {active_w:g}. "
            "State both here."
        )


def part_of(prices: Prices | None, name: str, device: str | None) -> Part | None:
    """What the file says of an engine or a box: by its name, else by its device."""
    if prices is None:
        return None
    return prices.parts.get(name) or (prices.parts.get(device) if device else None)


def hours_of(prices: Prices | None, name: str, device: str | None, kind: str) -> Hours:
    """Hours of an engine: by its name, else its device, else its kind; all unknown where nobody says."""
    known = {} if prices is None else prices.hours
    return known.get(name) or (known.get(device) if device else None) or known.get(kind) or Hours()


def _priced_box(box: Box, part: Part | None) -> Box:
    if part is None:
        return box
    changes: dict[str, float | str | None] = {}
    if part.purchase is not None or part.rent_per_hour is not None:
        changes = {"price_purchase": part.purchase, "price_per_hour": part.rent_per_hour, "currency": part.currency}
    if part.idle_w is not None:
        changes["idle_w"] = part.idle_w
    if part.rack_units is not None:
        changes["rack_units"] = part.rack_units
    return msgspec.structs.replace(box, **changes)


def _priced_engine(offer: Offer, part: Part | None) -> Offer:
    if part is None:
        return offer
    changes: dict[str, float | str | None] = {}
    if part.purchase is not None or part.rent_per_hour is not None:
        changes = {"price_purchase": part.purchase, "price_per_hour": part.rent_per_hour, "currency": part.currency}
    if part.power_curve is not None:
        changes |= {"idle_w": part.power_curve[0][1], "active_w": part.power_curve[-1][1]}
    for key in ("idle_w", "active_w"):
        if getattr(part, key) is not None:
            changes[key] = getattr(part, key)
    return msgspec.structs.replace(offer, **changes)


def _in_currency(part: Part, prices: Prices, place: str) -> Part:
    code = part.currency or prices.currency
    check_code(code, f"{place}.currency")
    if code != prices.currency and code not in prices.exchange:
        same_currency(place, {"the file": prices.currency, "this part": code})
    rate = 1.0 if code == prices.currency else prices.exchange[code]
    return msgspec.structs.replace(
        part,
        purchase=None if part.purchase is None else part.purchase * rate,
        rent_per_hour=None if part.rent_per_hour is None else part.rent_per_hour * rate,
        currency=prices.currency,
    )


def _check_part(part: Part, currency: str, place: str) -> None:
    check_prices(part.purchase, part.rent_per_hour, currency, f"{place}.purchase", f"{place}.rent_per_hour")
    if part.purchase is not None and part.rent_per_hour is not None:
        raise InputError(f"{place}: purchase and rent_per_hour: give one; make two offers to compare them.")
    if part.rent_per_hour == 0:
        raise InputError(f"{place}.rent_per_hour: nothing is rented for 0. For what costs nothing write purchase: 0.")
    if part.rent_per_hour is not None and part.owned:
        raise InputError(f"{place}.owned: {part.owned} rented parts are not owned. Remove one of the two keys.")
    _within(place, {"price_spread": part.price_spread, "spares_share": part.spares_share}, 0, 5)
    _within(place, {"idle_w": part.idle_w}, 0, PART_W_MAX)
    _within(place, {"active_w": part.active_w}, 0.001, PART_W_MAX)
    _within(place, {"rack_units": part.rack_units}, 0, 60)
    _within(place, {"owned": part.owned}, 0, 1_000_000)
    _check_power(part, place)


def _check_power(part: Part, place: str) -> None:
    """A power curve rises with the load and is in watts."""
    if part.power_curve is not None:
        if part.idle_w is not None or part.active_w is not None:
            raise InputError(f"{place}: power_curve and idle_w or active_w say it twice. Keep one of them.")
        shares, watts = [point[0] for point in part.power_curve], [point[1] for point in part.power_curve]
        if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1 or shares != sorted(set(shares)):
            raise InputError(f"{place}.power_curve: shares must rise from 0 to 1, for instance [[0, 40], [1, 70]].")
        if any(not 0 <= value <= PART_W_MAX for value in watts) or watts != sorted(watts):
            raise InputError(f"{place}.power_curve: watts must not fall, from 0 to {PART_W_MAX:g}.")
    if part.idle_w is not None and part.active_w is not None and part.idle_w > part.active_w:
        raise InputError(f"{place}: idle_w {part.idle_w:g} is above active_w {part.active_w:g}.")
    most_w = part.active_w or part.idle_w
    if part.rack_units and most_w and part.rent_per_hour is None and most_w < RACK_UNIT_W_MIN * part.rack_units:
        raise InputError(
            f"{place}: {most_w:g} W in {part.rack_units:g} height units of a rack is not plausible. If that is "
            f"kilowatts, write {most_w * 1000:g}."
        )


def _within(where: str, values: dict[str, float | None], low: float, high: float) -> None:
    for key, value in values.items():
        if value is not None and (not math.isfinite(value) or not low <= value <= high):
            raise InputError(f"{where}.{key}: {value:g} is not between {low:g} and {high:g}.")
