"""Measurements that one could make before deciding, what each costs and what it would settle."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from loadslice.plan.money.bill import Bill
from loadslice.plan.shocks import HOURS, SIMULATED, TARIFF, TRAFFIC, Assumption, price_of, time_of
from loadslice.spec.device import Kind


@dataclass(frozen=True, slots=True)
class Trial:
    """One experiment. Hours are an engineer's, estimated for one model; they are shown beside the cost."""

    name: str
    settles: tuple[str, ...]
    hours: float
    rent_hours: float = 0.0
    rent_per_hour: float | None = None
    """``None``: nobody states one."""

    def cost(self, hour_cost: float | None) -> float | None:
        """Money; ``None``: nobody says what an hour costs, or what is to be rented."""
        if hour_cost is None or (self.rent_hours and self.rent_per_hour is None):
            return None
        return self.hours * hour_cost + self.rent_hours * (self.rent_per_hour or 0.0)


PROFILE_HOURS = 4.0
STUDY_HOURS = 2.0
BORROW_HOURS, BORROW_RENT_HOURS = 16.0, 24.0
COMPILER_HOURS = 8.0
QUOTE_HOURS = 2.0
RECORD_HOURS = 4.0
BILL_HOURS = 0.5
PORT_HOURS = 40.0


def trials(
    bills: Sequence[Bill],
    kinds: dict[str, Kind],
    assumed: Sequence[Assumption],
    *,
    rents: Mapping[str, float] | None = None,
    elsewhere: AbstractSet[str] = frozenset(),
) -> list[Trial]:
    """Experiments that would settle something that is assumed here.

    Args:
        bills: Of the fleets that are compared.
        kinds: Engine type -> its kind.
        assumed: What may turn out otherwise.
        rents: Engine type -> rent of one with its machine, where it is offered for rent.
        elsewhere: Engine types on machines of which nobody took a profile.
    """
    names = {one.name for one in assumed}
    others = {name for name in elsewhere if kinds[name] == "cpu"}
    rents = rents or {}
    engines = sorted({line.name for bill in bills for line in bill.lines if line.name in kinds})
    times: dict[Kind, tuple[str, ...]] = {
        kind: tuple(
            time_of(name) for name in engines if kinds[name] == kind and time_of(name) in names and name not in others
        )
        for kind in ("cpu", "gpu", "npu")
    }
    parts = sorted({line.name for bill in bills for line in bill.lines})
    prices = tuple(price_of(part) for part in parts if price_of(part) in names)
    found = [
        Trial("profile on this machine: loadslice profile", times["cpu"], PROFILE_HOURS),
        Trial(
            "rent or borrow such a machine for a day and profile on it: loadslice profile",
            tuple(time_of(name) for name in engines if name in others and time_of(name) in names),
            PROFILE_HOURS,
            BORROW_RENT_HOURS,
            _least(rents, others),
        ),
        Trial(
            "borrow a GPU for a day and profile on it",
            times["gpu"],
            BORROW_HOURS,
            BORROW_RENT_HOURS,
            _least(rents, {name for name, kind in kinds.items() if kind == "gpu"}),
        ),
        Trial("compile for the NPU with its vendor's compiler: loadslice toolchain", times["npu"], COMPILER_HOURS),
        Trial(
            "study again on a quiet machine: loadslice study",
            (*times["cpu"], SIMULATED) if SIMULATED in names else (),
            STUDY_HOURS,
        ),
        Trial("ask for a price quote", prices, QUOTE_HOURS),
        Trial("record a week of traffic: loadslice.record", (TRAFFIC,) if TRAFFIC in names else (), RECORD_HOURS),
        Trial("look up the tariff on the last bill", (TARIFF,) if TARIFF in names else (), BILL_HOURS),
        Trial("port one model as a trial and count the hours", (HOURS,) if HOURS in names else (), PORT_HOURS),
    ]
    return [trial for trial in found if trial.settles]


def _least(rents: Mapping[str, float], names: AbstractSet[str]) -> float | None:
    """The least rent of some engines; ``None``: none of them is offered for rent."""
    return min((rent for name, rent in rents.items() if name in names), default=None)
