"""What an hour of a fleet of language engines costs: rents as they are, purchases spread over years.

Power, cooling, space and people are not in it: a plan for a pipeline counts those.
"""

from collections.abc import Mapping
from typing import NamedTuple

from loadslice.spec.currency import HOURS_PER_MONTH
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language
from loadslice.spec.prices import Prices, part_of


class Rent(NamedTuple):
    """What an hour of one engine costs."""

    part: str
    """Key of the price file: engines of one part are counted together."""
    per_hour: float
    """Of each: rent, or spare parts of what is bought."""
    bought_per_hour: float = 0.0
    """Of each that has to be bought, on top."""
    owned: int = 0
    """How many have not."""


def rents(language: Language, prices: Prices, place: str, years: float | None = None) -> dict[str, Rent]:
    """By engine: of the price file's part of that name, else of its device.

    Args:
        language: Checked.
        prices: Checked.
        place: Name of the price file.
        years: Over which a purchase is spread; ``None``: nothing may be bought.

    Raises:
        InputError: An engine has no price, or one to buy and no years.
    """
    found = {}
    for name, engine in language.engines.items():
        part = part_of(prices, name, engine.device)
        known = f"'{name}'" if engine.device is None else f"'{name}' or '{engine.device}'"
        key = name if name in prices.parts else str(engine.device)
        if part is not None and part.rent_per_hour is not None:
            found[name] = Rent(key, part.rent_per_hour)
        elif part is None or part.purchase is None:
            raise InputError(f"{place}: parts: engine {known} has neither rent_per_hour nor purchase. Give one.")
        elif years is None:
            raise InputError(
                f"{place}: parts: engine {known} has a purchase. Say over how many years it is spread, for instance "
                "--years 3, or give it a rent_per_hour."
            )
        else:
            spares = part.purchase * part.spares_share / (12 * HOURS_PER_MONTH)
            found[name] = Rent(key, spares, part.purchase / (years * 12 * HOURS_PER_MONTH), part.owned)
    return found


def of_fleet(rent: Mapping[str, Rent], counts: Mapping[str, int]) -> float:
    """What an hour of so many engines of each name costs; what is owned of a part is there once for all of them."""
    parts: dict[str, tuple[Rent, int]] = {}
    for name, count in counts.items():
        one = rent[name]
        parts[one.part] = (one, count + (parts[one.part][1] if one.part in parts else 0))
    return sum(count * one.per_hour + max(0, count - one.owned) * one.bought_per_hour for one, count in parts.values())
