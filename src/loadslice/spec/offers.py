"""The offers file: machines and engines that a fleet may be made of, with what each costs and draws.

A machine (box) has cores and places for cards; an engine takes some of either. A figure that is absent is unknown:
plans that need it are shown and marked, never dropped.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.device import Kind
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml
from loadslice.spec.pipeline import Batch, Precision

COUNT_MAX = 4096
GPU_W_MIN, CORE_W_MIN = 2.0, 0.02
"""At work, a graphics processor draws more and so does one core: kilowatts were meant."""
OFFERS_MAX = 64


class Box(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine."""

    cores: int
    cards: int = 0
    """Places for accelerators."""
    price_purchase: float | None = None
    price_per_hour: float | None = None
    """Where it is rented; its engines' own prices are then beside it, per hour too."""
    idle_w: float | None = None
    """Without its cards, its cores idle; 0 where it is counted with the engines."""
    rack_units: float = 1.0
    count_max: int = COUNT_MAX
    profiled: bool | None = None
    """The profile was taken on such a machine; ``None``: by its cores, and where it is not rented."""
    currency: str | None = None
    """Of its prices; ``None``: the file's."""
    source: str | None = None


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An engine of one type. Power and prices are of one engine, beside its box."""

    kind: Kind
    box: str
    times: str | None = None
    """Engine of the latency table whose times it has; ``None``: its own name."""
    stages: list[str] | None = None
    """Stages it may run; ``None``: every one it has times for."""
    backend: str | None = None
    """Runtime that drives it; ``None``: as the pipeline's engine of the name in ``times``, else a twin."""
    device: str | None = None
    """Name in the device catalogue."""
    precision: Precision | None = None
    cores: float = 0.0
    """Of its box that are its own while it works; parts of one where engines share."""
    cards: int = 0
    slots: int = 1
    """Batches at a time."""
    batch: dict[str, Batch] = {}
    """By stage; where absent the search finds it."""
    price_purchase: float | None = None
    price_per_hour: float | None = None
    idle_w: float | None = None
    active_w: float | None = None
    memory_bytes: float | None = None
    count_max: int = COUNT_MAX
    currency: str | None = None
    source: str | None = None


class Offers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole offers file."""

    version: Literal[1]
    currency: str | None = None
    """``None``: the budget's."""
    boxes: dict[str, Box]
    engines: dict[str, Offer]
    notes: list[str] = []
    """Assumptions, in words."""


def load(path: Path) -> Offers:
    """Read and check an offers file.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check(decode_yaml(path, Offers), str(path))


def check(offers: Offers, place: str) -> Offers:
    """Refuse what types cannot: boxes that are not there, engines that fit into none, units that were confused.

    Raises:
        InputError: The first fault found.
    """
    if not offers.engines or not offers.boxes:
        raise InputError(f"{place}: give at least one box and one engine.")
    if len(offers.engines) > OFFERS_MAX:
        raise InputError(f"{place}: engines: {len(offers.engines)} are more than {OFFERS_MAX}.")
    for name in sorted(offers.boxes.keys() & offers.engines.keys()):
        raise InputError(
            f"{place}: '{name}' is a box and an engine; the price file could not tell them apart. Rename one."
        )
    for name, box in offers.boxes.items():
        where = f"{place}: boxes.{name}"
        _within(where, {"cores": box.cores}, 1, 4096)
        _within(where, {"cards": box.cards, "count_max": box.count_max}, 0, COUNT_MAX)
        _check_price(box, where)
        _within(where, {"rack_units": box.rack_units}, 0.01, 100)
        _watts(where, {"idle_w": box.idle_w}, 5000)
    for name, offer in offers.engines.items():
        _check_offer(offer, offers, f"{place}: engines.{name}")
    return offers


def _check_offer(offer: Offer, offers: Offers, where: str) -> None:
    if offer.box not in offers.boxes:
        raise InputError(f"{where}.box: '{offer.box}' is not a box here ({', '.join(offers.boxes)}).")
    box = offers.boxes[offer.box]
    _within(where, {"cores": offer.cores}, 0, box.cores)
    _within(where, {"cards": offer.cards}, 0, box.cards)
    if offer.cores <= 0 and offer.cards == 0:
        raise InputError(f"{where}: takes neither cores nor cards of its box; give one of them.")
    _within(where, {"slots": offer.slots}, 1, 256)
    _within(where, {"count_max": offer.count_max}, 0, COUNT_MAX)
    _check_price(offer, where)
    _within(where, {"memory_bytes": offer.memory_bytes}, 1e5, 1e14)
    _watts(where, {"idle_w": offer.idle_w, "active_w": offer.active_w}, 5000)
    least_w = GPU_W_MIN if offer.kind == "gpu" else CORE_W_MIN * offer.cores if offer.kind == "cpu" else 0.0
    if offer.active_w == 0:
        raise InputError(f"{where}.active_w: nothing works on 0 W. Leave out what is not known.")
    if offer.active_w is not None and offer.active_w < least_w:
        raise InputError(
            f"{where}.active_w: no such {offer.kind.upper()} works on {offer.active_w:g} W. If that is kilowatts, "
            f"write {offer.active_w * 1000:g}."
        )
    if offer.idle_w is not None and offer.active_w is not None and offer.idle_w > offer.active_w:
        raise InputError(f"{where}: idle_w {offer.idle_w:g} is above active_w {offer.active_w:g}.")


def _check_price(part: Box | Offer, where: str) -> None:
    """A part is bought or rented, and a rent is money."""
    _within(where, {"price_purchase": part.price_purchase, "price_per_hour": part.price_per_hour}, 0, 1e9)
    if part.price_purchase is not None and part.price_per_hour is not None:
        raise InputError(f"{where}: price_purchase and price_per_hour: give one; make two offers to compare them.")
    if part.price_per_hour == 0:
        raise InputError(f"{where}.price_per_hour: nothing is rented for 0. For what costs nothing: price_purchase: 0.")


def _within(where: str, values: dict[str, float | None], low: float, high: float) -> None:
    for key, value in values.items():
        if value is not None and (not math.isfinite(value) or not low <= value <= high):
            raise InputError(f"{where}.{key}: {value:g} is not between {low:g} and {high:g}.")


def _watts(where: str, values: dict[str, float | None], most_w: float) -> None:
    """No engine and no idle machine on sale draws more; a larger number is milliwatts, a tiny one kilowatts."""
    for key, value in values.items():
        if value is None or value == 0:
            continue
        if not math.isfinite(value) or not 0.01 <= value <= most_w:
            raise InputError(
                f"{where}.{key}: {value:g} is not plausible (from 0.01 to {most_w:g}); it is in watts, "
                "neither kilowatts nor milliwatts."
            )
