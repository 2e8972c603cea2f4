"""What each part costs and who said so: prices as they entered the plan."""

from loadslice.spec.offers import Box, Offer, Offers
from loadslice.spec.plan_money import PriceOf
from loadslice.spec.prices import Part, Prices, part_of


def stated(offers: Offers, prices: Prices | None) -> list[PriceOf]:
    """Every offered part with its price, how that is known and its source.

    Args:
        offers: With the price file's amounts and the catalogue's in them.
        prices: The price file.
    """
    parts: list[tuple[str, Box | Offer]] = [*offers.boxes.items(), *offers.engines.items()]
    return [_of(name, part, part_of(prices, name, getattr(part, "device", None))) for name, part in parts]


def _of(name: str, offered: Box | Offer, part: Part | None) -> PriceOf:
    from_file = part is not None and (part.purchase is not None or part.rent_per_hour is not None)
    return PriceOf(
        part=name,
        purchase=offered.price_purchase,
        rent_per_hour=offered.price_per_hour,
        basis=part.basis if part is not None and from_file else None,
        source=part.source if part is not None and from_file else offered.source,
        spread=(part or Part()).price_spread,
        owned=(part or Part()).owned,
    )
