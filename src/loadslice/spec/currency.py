"""Currencies: no sum is made across two of them, and amounts that only fit another unit are questioned.

The scale of a currency is its rough worth against the euro, to one digit. It guards against slips of units (cents for
euros, a month's rent for an hour's) and enters no result.
"""

import math
import re

from loadslice.spec.errors import InputError

SCALE = {
    "EUR": 1,
    "USD": 1,
    "GBP": 1,
    "CHF": 1,
    "CAD": 1.5,
    "AUD": 1.5,
    "SGD": 1.5,
    "CNY": 8,
    "SEK": 10,
    "NOK": 10,
    "DKK": 7,
    "PLN": 4,
    "BRL": 6,
    "INR": 90,
    "JPY": 150,
    "KRW": 1500,
}
"""Units of a currency that are worth about one euro; a currency that is not listed is not questioned."""

AMOUNT_MAX = 1e15
"""In whatever currency: no part of a fleet costs as much."""

HOURS_PER_MONTH = 730.5
"""365.25 days x 24 h / 12."""


PURCHASE, RENT_PER_HOUR = (1.0, 2e6), (0.001, 150.0)
"""Plausible for one part of a fleet, in euros."""


def check_prices(purchase: float | None, rent: float | None, currency: str, purchase_at: str, rent_at: str) -> None:
    """Question what one part of a fleet costs to buy, or to rent for an hour.

    Raises:
        InputError: An amount that nobody pays, with the likely slip.
    """
    check_amount(purchase, currency, *PURCHASE, purchase_at, ("thousands", 1000.0))
    check_amount(rent, currency, *RENT_PER_HOUR, rent_at, ("a price per month", 1 / HOURS_PER_MONTH))


def check_code(code: str, place: str) -> None:
    """Refuse what is no ISO 4217 code.

    Raises:
        InputError: Not three capital letters.
    """
    if not re.fullmatch(r"[A-Z]{3}", code):
        raise InputError(f"{place}: currency '{code}' is not a code of three capital letters, for instance EUR.")


def check_amount(
    value: float | None, currency: str, low: float, high: float, place: str, guess: tuple[str, float] | None = None
) -> None:
    """Question an amount that nobody pays.

    Args:
        value: In ``currency``; ``None`` passes.
        currency: Decides what is plausible; an unlisted one passes.
        low: Smallest plausible amount, in euros.
        high: Largest.
        place: File and key.
        guess: What may have been meant, and what to multiply by: ``("cents", 0.01)``.

    Raises:
        InputError: Not finite, negative, or outside; with the likely slip.
    """
    if value is None:
        return
    if not math.isfinite(value) or not 0 <= value <= AMOUNT_MAX:
        raise InputError(f"{place}: {value} is not an amount of money.")
    scale = SCALE.get(currency)
    if scale is None or value == 0 or low * scale <= value <= high * scale:
        return
    meant = ""
    if guess is not None and low * scale <= value * guess[1] <= high * scale:
        meant = f" If that is {guess[0]}, write {value * guess[1]:.4g}."
    raise InputError(
        f"{place}: {value:g} {currency} is not plausible (from {low * scale:g} to {high * scale:g}).{meant} "
        "Check the unit."
    )


def same_currency(place: str, currencies: dict[str, str]) -> None:
    """Refuse a sum over several currencies.

    Args:
        place: The file to mend.
        currencies: What states an amount -> its currency.

    Raises:
        InputError: More than one; it names one of each.
    """
    seen: dict[str, str] = {}
    for what, code in currencies.items():
        seen.setdefault(code, what)
    if len(seen) > 1:
        listed = ", ".join(f"{what} in {code}" for code, what in seen.items())
        raise InputError(
            f"{place}: amounts in different currencies are not added up: {listed}. Give them in one currency, or state "
            "the rate under `exchange:` of the price file, for instance `exchange: {USD: 0.9}`."
        )
