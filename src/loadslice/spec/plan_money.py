"""The part of a plan that says what a fleet costs over the years."""

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
