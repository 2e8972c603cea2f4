"""What is assumed and how far it may be off: every draw of the Monte Carlo comes from here.

Prices, tariff, hours and traffic are off by a factor whose logarithm is normal, with 95 of 100 between ``1 / (1 +
spread)`` and ``1 + spread``. A modelled time is off by the error its own model states (`spec.latency.ModelError`),
Student's t; a measured one by `MEASURED_SD`. What has one name is drawn once and hits every fleet that has it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadslice.plan.money.bill import Bill
from loadslice.plan.money.years import Array, Shocks
from loadslice.sim.draws import t_95
from loadslice.spec.latency import Entry

SPREAD = 0.25
MEASURED_SD = 0.03
"""Of a time that was measured: two profiles of one quiet machine differ by about that (docs/sim-vs-measured.md)."""
FACTOR_MAX = 10.0
Z_95 = 1.959964
"""Standard normal: 95 of 100 within so many deviations."""

TRAFFIC, TARIFF, HOURS = "traffic", "tariff", "hours"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that may turn out otherwise."""

    name: str
    sd: float
    """Standard deviation of the logarithm of the factor."""
    freedom: int | None = None
    """Of Student's t; ``None``: normal."""
    why: str = ""

    @property
    def bounds_95(self) -> tuple[float, float]:
        """Factors that 95 of 100 draws lie between."""
        half = self.sd * (t_95(self.freedom) if self.freedom else Z_95)
        return math.exp(-half), math.exp(half)

    def draw(self, rng: np.random.Generator, worlds: int) -> Array:
        """Factors, [worlds]."""
        raw = rng.standard_t(self.freedom, worlds) if self.freedom else rng.standard_normal(worlds)
        most = math.log(FACTOR_MAX)
        return np.asarray(np.exp(np.clip(self.sd * raw, -most, most)), np.float64)


def price_of(line: str) -> str:
    """Name of the assumption on a part's price."""
    return f"price of {line}"


def time_of(line: str) -> str:
    """Name of the assumption on an engine's service times."""
    return f"time of {line}"


def assumptions(
    bills: Iterable[Bill], times: Mapping[str, Assumption] | None = None, *, spread: float = SPREAD
) -> list[Assumption]:
    """Everything that may turn out otherwise for these fleets.

    Args:
        bills: Of the fleets that are compared.
        times: Engine type -> the error of its times, as `time_error` finds it; an absent one counts as measured.
        spread: On traffic, tariff and hours; a part's price has its own.
    """
    within = f"95 of 100 within {spread:.0%}"
    sd = math.log1p(spread) / Z_95
    found = {name: Assumption(name, sd, why=within) for name in (TRAFFIC, TARIFF, HOURS)}
    for bill in bills:
        for line in bill.lines:
            if line.rented or (line.purchase > 0 and line.count > line.owned):
                own = Assumption(
                    price_of(line.name),
                    math.log1p(line.price_spread) / Z_95,
                    why=f"95 of 100 within {line.price_spread:.0%}",
                )
                found.setdefault(own.name, own)
            if not line.cores:
                measured = Assumption(time_of(line.name), MEASURED_SD, why=f"measured: sd {MEASURED_SD:.0%}")
                found.setdefault(time_of(line.name), (times or {}).get(line.name, measured))
    return [one for one in found.values() if one.sd > 0]


def time_error(line: str, entries: Sequence[Entry]) -> Assumption:
    """How far an engine type's times may be off: the widest of its entries'.

    Args:
        line: The engine type.
        entries: Of the latency table, those that it runs by.
    """
    errors = [entry.error for entry in entries if entry.error is not None]
    if not errors and any(entry.basis != "measured" for entry in entries):
        # A model that states no error is given the spread of every other assumption.
        why = f"modelled without a stated error: 95 of 100 within {SPREAD:.0%}"
        return Assumption(time_of(line), math.log1p(SPREAD) / Z_95, why=why)
    if not errors:
        return Assumption(time_of(line), MEASURED_SD, why=f"measured: sd {MEASURED_SD:.0%}")
    worst = max(errors, key=lambda error: math.hypot(error.device_sd, error.model_sd))
    sd = math.hypot(worst.device_sd, worst.model_sd)
    why = f"modelled: sd {sd:.0%} of the logarithm, t with {worst.freedom} degrees of freedom; {worst.why}"
    return Assumption(time_of(line), sd, worst.freedom, why)


def shocks_of(factors: Mapping[str, Array], bill: Bill, worlds: int) -> Shocks:
    """The draws as one fleet meets them; an assumption that is absent holds."""
    one = np.ones(worlds)
    return Shocks(
        traffic=factors.get(TRAFFIC, one),
        tariff=factors.get(TARIFF, one),
        hours=factors.get(HOURS, one),
        price={line.name: factors[price_of(line.name)] for line in bill.lines if price_of(line.name) in factors},
        time={line.name: factors[time_of(line.name)] for line in bill.lines if time_of(line.name) in factors},
    )
