"""The part of a plan that says what a fleet costs over the years."""

from typing import Literal

import msgspec


class YearCost(msgspec.Struct, frozen=True, kw_only=True):
    """Money over so many years; parts that are unknown are ``None`` and so is then the total."""

    years: int
    total: float | None
    purchase: float | None
    """Paid for machines and cards, rent included."""
    depreciation: float | None
    """Of what was bought, the value that is gone at the end. The total counts this and the rent, not the purchase."""
    power: float | None
    cooling: float | None
    space: float | None
    migration: float | None
    """Hours of porting, retuning and testing, at ``hour_cost``."""
    upkeep: float | None
    """Spares and hours of running it."""
    rent: float | None = None
    at_least: float = 0.0
    """Sum of the parts of the total that are known."""
    interval_95: tuple[float, float] | None = None
    """Bounds of the total by what was drawn of price, power, traffic and model error."""
    missing: list[str] = []
    """What would have to be known, in words."""


SHOWN_MAX = 4
"""Later purchases that are told in words."""

PriceBasis = Literal["quote", "list", "assumed"]
"""How a price is known."""


class PriceOf(msgspec.Struct, frozen=True, kw_only=True):
    """What one of a part costs, as the plan was made with it, and who said so."""

    part: str
    purchase: float | None
    rent_per_hour: float | None
    basis: PriceBasis | None
    """``None``: the offers file or the catalogue states it, and not how it is known."""
    source: str | None
    """Who said so, and when."""
    spread: float
    """How far it may be off, as a share of it: 95 of 100 such prices lie within."""
    owned: int = 0
    """How many are there already, at no price."""

    def told(self, currency: str) -> str:
        """In words."""
        if self.purchase is None and self.rent_per_hour is None:
            return f"{self.part}: no price is known"
        amount = f"{self.purchase:,.0f} {currency}" if self.rent_per_hour is None else ""
        amount = amount or f"{self.rent_per_hour:,.4g} {currency} an hour"
        known = "stated" if self.basis is None else "list price" if self.basis == "list" else self.basis
        there = f", {self.owned} there already" if self.owned else ""
        return (
            f"{self.part}: {amount}{there} ({known}, within {self.spread:.0%}): {self.source or 'no source is named'}"
        )


Tenure = Literal["present", "rented", "bought", "mixed"]
"""How one comes by a fleet; present: nothing is bought or rented, it is there."""


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The recommended fleet against another by money as it is paid: undiscounted, residual values not counted."""

    against: str
    """Fleet: what is there already, or the cheapest of the table that is rented, or bought, instead."""
    what: Tenure
    keeps: bool
    """It keeps the promise, too."""
    less_from_month: int | None
    """By the end of this month, and from then on, the recommended fleet has cost less; 1: from the beginning; ``None``:
    not within the horizon."""
    less_until_month: int | None
    """Until the end of this month it has cost less, and more at the horizon's end; ``None``: otherwise."""
    saved: float
    """By the horizon's end; negative: it has cost more."""
    dearer_by_most: float
    """Money that it was behind by in the worst month."""

    def told(self, currency: str, years: int) -> str:
        """In words, after "the recommended fleet"."""
        other = {
            "present": "what is there already",
            "rented": "the cheapest that is rented",
            "bought": "the cheapest that is bought",
        }[self.what]
        other = f"{other} ({self.against}{'' if self.keeps else ', which does not keep the promise'})"
        end = f"{abs(self.saved):,.0f} {currency} {'less' if self.saved >= 0 else 'more'} by the end of {years} years"
        if self.less_from_month == 1:
            return f"costs less than {other} from the first month on, {end}"
        if self.less_from_month is not None:
            behind = f"behind by {self.dearer_by_most:,.0f} {currency} at most"
            return f"costs less than {other} from month {self.less_from_month} on, {behind} before, {end}"
        if self.less_until_month is not None:
            return f"costs less than {other} until month {self.less_until_month} only, {end}"
        return f"has not cost less than {other} within the horizon, {end}"


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that growth asks for."""

    month: int
    """1: the first."""
    part: str
    count: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic that grows: what the recommended fleet buys later, and what buying it today would cost."""

    traffic_at_end: float
    """In the horizon's last month, as a multiple of today's."""
    carries: float | None
    """Multiple of today's traffic under which the recommended fleet keeps the promise as it stands; ``None``: nothing
    on it is ever busy."""
    simulated: bool
    """False: by the utilisation of its busiest engine."""
    buys: list[Later]
    """More of the same, in its month."""
    instead: dict[str, float]
    """Fleet -> what it costs more over the horizon than the recommended one; negative: less. Those that are cheapest
    for the traffic of a later month, bought today; where one of them is recommended, the cheapest that grows."""

    def told(self, currency: str) -> list[str]:
        """In words: what the recommended fleet carries, what it buys when, and what buying ahead would cost."""
        limit = "any" if self.carries is None else f"{self.carries:.3g} times today's"
        how = "as simulated" if self.simulated else "by the utilisation of its busiest engine"
        asked = (
            f"traffic grows to {self.traffic_at_end:.3g} times today's; the recommended fleet carries {limit} ({how})"
        )
        shown = [f"{one.count} x {one.part} in month {one.month}" for one in self.buys[:SHOWN_MAX]]
        more = [f"{len(self.buys) - SHOWN_MAX} more later"] if len(self.buys) > SHOWN_MAX else []
        later = ", ".join([*shown, *more]) or "nothing"
        return [f"{asked} and adds {later}"] + [
            f"instead, {name} costs {abs(cost):,.0f} {currency} {'more' if cost >= 0 else 'less'}: "
            f"{'bought today for that month' if name.startswith('month-') else 'it grows with the traffic'}"
            for name, cost in self.instead.items()
        ]
