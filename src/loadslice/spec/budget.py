"""The budget file: what is promised to users, and what power, money and people there are."""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.currency import check_amount, check_code
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml
from loadslice.spec.portrait import PrecisionClass

Scenario = Literal["interactive", "offline", "multi-user", "edge"]

RACK_W_MIN = 100.0
"""Less than a single server draws: kilowatts were meant."""
BOX_IN_RACK_W_MIN = 10.0


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is promised; at least one latency."""

    p95_ms: float | None = None
    p99_ms: float | None = None
    error_rate: float = 0.01
    """Largest share of requests that may end otherwise than completed."""
    wrong_characters_share: float | None = None
    """Largest share of characters read wrong, where the true text is known; ``None``: not part of the promise."""

    @property
    def latency_limits_ms(self) -> dict[str, float]:
        """Percentile name -> limit, those that are promised."""
        stated = {"p95": self.p95_ms, "p99": self.p99_ms}
        return {name: limit for name, limit in stated.items() if limit is not None}


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Electricity and its limits; ``None``: unknown or no limit."""

    per_box_w: float | None = None
    per_rack_w: float | None = None
    tariff_per_kwh: float | None = None
    """In the budget's currency."""
    cooling_factor: float | None = None
    """Power drawn by the site over power drawn by its machines (PUE), at least 1."""
    racks: int = 1
    """Racks that may draw ``per_rack_w`` each."""


class Money(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Money, in one currency."""

    currency: str = "EUR"
    purchase_max: float | None = None
    horizon_years: int = 3
    hour_cost: float | None = None
    """One hour of an engineer."""
    rack_unit_per_month: float | None = None
    """Rent of one height unit of rack space."""
    depreciation_years: float | None = None
    """Straight line, down to the residual value; ``None``: written off over the years that are looked at."""
    residual_share: float = 0.0
    """Of the purchase, what is left when it is written off."""
    discount_per_year: float = 0.0
    """0.08: 1.08 in a year count as 1 today."""


class People(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who will run it."""

    count: int | None = None
    heterogeneous_experience: bool = False
    """Somebody here has run more than one kind of engine in production."""


class ModelLife(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known about the model beside its file; ``None``: unknown."""

    parameters: float | None = None
    """How many; otherwise from `loadslice inspect`."""
    changes_per_year: float | None = None
    """New weights or a new architecture in production."""
    precision_min: PrecisionClass | None = None
    """Lowest precision at which answers are still right."""
    in_production: bool | None = None
    """It has been serving users without a change of operators for a quarter or longer."""


class Offline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Work that nobody waits for, beside the recorded traffic."""

    requests_per_day: float
    window_minutes: float = 24 * 60.0
    """It must be done within this time of the day."""
    precision: PrecisionClass | None = None
    """What it is computed at."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole budget file."""

    slo: Slo
    power: Power = Power()
    money: Money = Money()
    people: People = People()
    growth_per_year: float = 0.0
    """0.3: traffic grows by 30 % a year."""
    devices: list[str] | None = None
    """Devices that may be used, by catalogue name; ``None``: any."""
    scenario: Scenario = "interactive"
    model: ModelLife = ModelLife()
    offline: Offline | None = None


def load(path: Path) -> Budget:
    """Read and check a budget file.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check(decode_yaml(path, Budget), str(path))


def check(budget: Budget, place: str) -> Budget:
    """Refuse numbers that cannot be meant.

    Raises:
        InputError: No latency promised, or a number out of range.
    """
    if not budget.slo.latency_limits_ms:
        raise InputError(f"{place}: slo: give p95_ms or p99_ms, for instance `slo: {{p95_ms: 300, error_rate: 0.01}}`.")
    power, money = budget.power, budget.money
    for key, value, low, high in (
        ("slo.p95_ms", budget.slo.p95_ms, 0.001, 86_400_000),
        ("slo.p99_ms", budget.slo.p99_ms, 0.001, 86_400_000),
        ("slo.error_rate", budget.slo.error_rate, 0, 1),
        ("slo.wrong_characters_share", budget.slo.wrong_characters_share, 0, 1),
        ("power.per_box_w", power.per_box_w, 0.05, 100_000),
        ("power.per_rack_w", power.per_rack_w, 0.05, 1_000_000),
        ("power.racks", power.racks, 1, 100_000),
        ("power.tariff_per_kwh", power.tariff_per_kwh, 0, 1_000_000),
        ("power.cooling_factor", power.cooling_factor, 1, 10),
        ("money.purchase_max", money.purchase_max, 0, 1e15),
        ("money.horizon_years", money.horizon_years, 1, 20),
        ("money.depreciation_years", money.depreciation_years, 0.5, 30),
        ("money.residual_share", money.residual_share, 0, 1),
        ("money.discount_per_year", money.discount_per_year, 0, 1),
        ("people.count", budget.people.count, 0, 1_000_000),
        ("growth_per_year", budget.growth_per_year, -0.99, 100),
        ("model.parameters", budget.model.parameters, 1, 1e14),
        ("model.changes_per_year", budget.model.changes_per_year, 0, 1000),
    ):
        if value is not None and (not math.isfinite(value) or not low <= value <= high):
            raise InputError(f"{place}: {key}: {value} is not between {low} and {high}.")
    slo = budget.slo
    if slo.p95_ms is not None and slo.p99_ms is not None and slo.p99_ms < slo.p95_ms:
        raise InputError(f"{place}: slo.p99_ms: {slo.p99_ms} is below slo.p95_ms {slo.p95_ms}.")
    _check_power(power, place)
    _check_money(budget, place)
    if budget.offline is not None:
        _check_offline(budget.offline, place)
    return budget


def _check_power(power: Power, place: str) -> None:
    """Watts that are meant as kilowatts show beside each other."""
    box_w, rack_w = power.per_box_w, power.per_rack_w
    if rack_w is not None and rack_w < RACK_W_MIN:
        raise InputError(
            f"{place}: power.per_rack_w: no rack is limited to {rack_w:g} W. If that is kilowatts, write "
            f"{rack_w * 1000:g}; without a rack leave it out."
        )
    if box_w is not None and rack_w is not None and box_w > rack_w:
        raise InputError(
            f"{place}: power.per_box_w: {box_w:g} is above power.per_rack_w {rack_w:g}, one box in a rack."
        )
    if box_w is not None and rack_w is not None and box_w < BOX_IN_RACK_W_MIN:
        raise InputError(
            f"{place}: power.per_box_w: no box in a rack runs on {box_w:g} W. If that is kilowatts, write "
            f"{box_w * 1000:g}; without a rack leave per_rack_w out."
        )


def _check_money(budget: Budget, place: str) -> None:
    """Amounts against what anybody pays; the ranges are wide, a slip of units is wider."""
    money, currency = budget.money, budget.money.currency
    check_code(currency, f"{place}: money.currency")
    tariff = budget.power.tariff_per_kwh
    check_amount(tariff, currency, 0.01, 2.0, f"{place}: power.tariff_per_kwh", ("cents", 0.01))
    salary = ("a month's", 1 / 160)
    check_amount(money.hour_cost, currency, 2.0, 1000.0, f"{place}: money.hour_cost", salary)
    yearly = ("a year's", 1 / 12)
    check_amount(money.rack_unit_per_month, currency, 1.0, 500.0, f"{place}: money.rack_unit_per_month", yearly)
    thousands = ("thousands", 1000.0)
    check_amount(money.purchase_max, currency, 1.0, 1e11, f"{place}: money.purchase_max", thousands)


def _check_offline(offline: Offline, place: str) -> None:
    if not 0 < offline.requests_per_day <= 1e12:
        raise InputError(f"{place}: offline.requests_per_day: {offline.requests_per_day:g} is not between 0 and 1e12.")
    if not 0 < offline.window_minutes <= 24 * 60:
        raise InputError(f"{place}: offline.window_minutes: {offline.window_minutes:g} is not within one day (1440).")
