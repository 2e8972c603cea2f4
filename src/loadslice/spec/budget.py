"""The budget file: what is promised to users, and what power, money and people there are."""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml

Scenario = Literal["interactive", "offline", "multi-user", "edge"]


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


class Money(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Money, in one currency."""

    currency: str = "EUR"
    purchase_max: float | None = None
    horizon_years: int = 3
    hour_cost: float | None = None
    """One hour of an engineer."""


class People(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who will run it."""

    count: int | None = None
    heterogeneous_experience: bool = False
    """Somebody here has run more than one kind of engine in production."""


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
        ("power.per_box_w", power.per_box_w, 1, 1_000_000),
        ("power.per_rack_w", power.per_rack_w, 1, 10_000_000),
        ("power.tariff_per_kwh", power.tariff_per_kwh, 0, 1_000_000),
        ("power.cooling_factor", power.cooling_factor, 1, 10),
        ("money.purchase_max", money.purchase_max, 0, 1e15),
        ("money.horizon_years", money.horizon_years, 1, 20),
        ("money.hour_cost", money.hour_cost, 0, 1e9),
        ("people.count", budget.people.count, 0, 1_000_000),
        ("growth_per_year", budget.growth_per_year, -0.99, 100),
    ):
        if value is not None and (not math.isfinite(value) or not low <= value <= high):
            raise InputError(f"{place}: {key}: {value} is not between {low} and {high}.")
    slo = budget.slo
    if slo.p95_ms is not None and slo.p99_ms is not None and slo.p99_ms < slo.p95_ms:
        raise InputError(f"{place}: slo.p99_ms: {slo.p99_ms} is below slo.p95_ms {slo.p95_ms}.")
    return budget
