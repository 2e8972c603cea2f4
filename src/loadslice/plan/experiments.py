"""Measurements that one could make before deciding, what each costs and what it would settle."""

from collections.abc import Mapping, Sequence
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
    rent_per_hour: float = 0.0

    def cost(self, hour_cost: float | None) -> float | None:
        """Money; ``None``: nobody says what an hour costs."""
        return None if hour_cost is None else self.hours * hour_cost + self.rent_hours * self.rent_per_hour


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
    gpu_rent_per_hour: float = 0.0,
    elsewhere: Mapping[str, float] | None = None,
) -> list[Trial]:
    """Experiments that would settle something that is assumed here.

    Args:
        bills: Of the fleets that are compared.
        kinds: Engine type -> its kind.
        assumed: What may turn out otherwise.
        gpu_rent_per_hour: Of a GPU to borrow; 0: one can be had for nothing.
        elsewhere: Engine type on a machine of which nobody took a profile -> the rent of one, 0 where it is bought.
    """
    names = {one.name for one in assumed}
    others = {name: rent for name, rent in (elsewhere or {}).items() if kinds[name] == "cpu"}
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
            max(others.values(), default=0.0),
        ),
        Trial(
            "borrow a GPU for a day and profile on it", times["gpu"], BORROW_HOURS, BORROW_RENT_HOURS, gpu_rent_per_hour
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
