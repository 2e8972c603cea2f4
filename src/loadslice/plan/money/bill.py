"""A fleet as lines of a bill: what is bought, rented, powered, housed and looked after, with what nobody stated.

Unknown is NaN inside this room, so that a sum that needs it is unknown by itself, and ``None`` outside. Each unknown
carries the key that would make it known.
"""

import math
from dataclasses import dataclass

from loadslice.spec.budget import Budget
from loadslice.spec.plan import PlannedBox, PlannedEngine, PlannedFleet
from loadslice.spec.prices import Hours, Part, Prices, hours_of, part_of

UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class Line:
    """Units of one part. Amounts are of one unit."""

    name: str
    count: int
    owned: int
    purchase: float
    """NaN: unknown, or it is rented."""
    rent_per_hour: float
    """0: it is bought."""
    curve_w: tuple[tuple[float, float], ...]
    """Share of the time that it works, watts; empty: unknown."""
    utilisation: float
    """0 to 1; of a box 0: what its engines draw stands in their lines. NaN: unknown."""
    rack_units: float
    spares_share: float
    """A year, of the purchase."""
    price_spread: float
    cores: int = 0
    """Of a machine; 0: it is an engine."""
    holds: tuple[tuple[tuple[str, float], ...], ...] = ()
    """Of a machine, for its cores and its places for cards: engine line -> share of a machine that one takes."""
    day: tuple[tuple[float, float], ...] = ()
    """Share of the time, and ``utilisation`` in it; empty: the mean stands for all of it."""
    powered: bool = True
    """False: it stands in a rented machine, whose rent has its power."""

    @property
    def rented(self) -> bool:
        """Its power, cooling, space and spares are in the rent."""
        return self.rent_per_hour > 0

    def power_w(self, utilisation: float) -> float:
        """Mean watts of one unit: its curve at a share of the time that it works; NaN: unknown.

        An engine that works a share ``u`` of the time draws ``idle + u (active - idle)``; a rated power times the time
        would charge a machine that mostly waits as if it always worked.
        """
        if not self.curve_w or math.isnan(utilisation):
            return UNKNOWN
        share = min(max(utilisation, 0.0), 1.0)
        for (left, low_w), (right, high_w) in zip(self.curve_w, self.curve_w[1:], strict=False):
            if share <= right:
                return low_w + (high_w - low_w) * (share - left) / (right - left)
        return self.curve_w[-1][1]


@dataclass(frozen=True, slots=True)
class Care:
    """Hours of one kind of engine in the fleet. NaN: unknown."""

    name: str
    count: int
    migration_hours: float
    retuning_hours: float
    upkeep_hours_per_month: float
    each_hours_per_month: float


@dataclass(frozen=True, slots=True)
class Bill:
    """A fleet, ready to be added up."""

    name: str
    lines: tuple[Line, ...]
    care: tuple[Care, ...]
    missing: tuple[str, ...]
    """Keys of figures that nobody stated and that the total needs."""


def bill(fleet: PlannedFleet, budget: Budget, prices: Prices | None = None) -> Bill:
    """Lower a fleet to its lines.

    Args:
        fleet: With the utilisation that a simulation found.
        budget: States hours, tariff, space.
        prices: States what offers do not: spares, hours, what is there already.
    """
    boxes = [
        _box_line(name, box, part_of(prices, name, None), _holds(fleet, name, box))
        for name, box in fleet.boxes.items()
        if box.count
    ]
    rented = {line.name for line in boxes if line.rented}
    engines = [
        _engine_line(name, engine, part_of(prices, name, engine.device), powered=engine.box not in rented)
        for name, engine in fleet.engines.items()
        if engine.count
    ]
    care = _care(fleet, prices)
    return Bill(
        name=fleet.name,
        lines=(*boxes, *engines),
        care=care,
        missing=tuple(dict.fromkeys([*_missing_parts([*boxes, *engines], budget), *_missing_hours(care, budget)])),
    )


def _holds(fleet: PlannedFleet, name: str, box: PlannedBox) -> tuple[tuple[tuple[str, float], ...], ...]:
    """By cores and by cards; where one type alone takes of them, whole engines only: of three, a third each."""
    inside = {key: engine for key, engine in fleet.engines.items() if engine.box == name and engine.count}
    rooms = (
        {key: box.cores / engine.cores for key, engine in inside.items() if engine.cores > 0},
        {key: box.cards / engine.cards for key, engine in inside.items() if engine.cards > 0},
    )
    return tuple(
        tuple((key, 1.0 / max(1.0, math.floor(fit + 1e-9) if len(room) == 1 else fit)) for key, fit in room.items())
        for room in rooms
        if room
    )


def _box_line(name: str, box: PlannedBox, part: Part | None, holds: tuple[tuple[tuple[str, float], ...], ...]) -> Line:
    part = part or Part()
    purchase, rent = _amounts(box.price_purchase, box.price_per_hour, part)
    idle_w = part.idle_w if part.idle_w is not None else box.idle_w
    return Line(
        name=name,
        count=box.count,
        owned=part.owned,
        purchase=purchase,
        rent_per_hour=rent,
        curve_w=() if idle_w is None else ((0.0, idle_w), (1.0, part.active_w or idle_w)),
        utilisation=0.0,
        rack_units=part.rack_units if part.rack_units is not None else box.rack_units,
        spares_share=part.spares_share,
        price_spread=part.price_spread,
        cores=box.cores,
        holds=holds,
    )


def _engine_line(name: str, engine: PlannedEngine, part: Part | None, *, powered: bool) -> Line:
    """An engine's line; what stands in a rented machine is powered by its rent."""
    part = part or Part()
    purchase, rent = _amounts(engine.price_purchase, engine.price_per_hour, part)
    idle_w = part.idle_w if part.idle_w is not None else engine.idle_w
    active_w = part.active_w if part.active_w is not None else engine.active_w
    curve = () if idle_w is None or active_w is None else ((0.0, idle_w), (1.0, active_w))
    return Line(
        name=name,
        count=engine.count,
        owned=part.owned,
        purchase=purchase,
        rent_per_hour=rent,
        curve_w=tuple(part.power_curve) if part.power_curve is not None else curve,
        utilisation=UNKNOWN if engine.utilisation is None else engine.utilisation,
        day=tuple(engine.utilisation_over_time),
        rack_units=0.0,
        spares_share=part.spares_share,
        price_spread=part.price_spread,
        powered=powered,
    )


def _amounts(purchase: float | None, rent: float | None, part: Part) -> tuple[float, float]:
    """Purchase and rent of one: what the price file states, whole, before what the fleet carries."""
    if part.purchase is not None or part.rent_per_hour is not None:
        purchase, rent = part.purchase, part.rent_per_hour
    if rent:
        return UNKNOWN, rent
    return (UNKNOWN if purchase is None else purchase), 0.0


def _care(fleet: PlannedFleet, prices: Prices | None) -> tuple[Care, ...]:
    """Hours once for each kind that has an entry of its own: two engines of one device are looked after together."""
    found: dict[str, Care] = {}
    for name, engine in fleet.engines.items():
        if not engine.count:
            continue
        hours = hours_of(prices, name, engine.device, engine.kind)
        key = engine.kind if hours == Hours() else _key(prices, name, engine)
        count = engine.count + (found[key].count if key in found else 0)
        found[key] = Care(
            name=key,
            count=count,
            migration_hours=_known(hours.migration),
            retuning_hours=_known(hours.retuning),
            upkeep_hours_per_month=_known(hours.upkeep_per_month),
            each_hours_per_month=hours.each_per_month,
        )
    return tuple(found.values())


def _key(prices: Prices | None, name: str, engine: PlannedEngine) -> str:
    known = {} if prices is None else prices.hours
    return next(key for key in (name, engine.device, engine.kind) if key in known)


def _known(value: float | None) -> float:
    return UNKNOWN if value is None else value


def _missing_parts(lines: list[Line], budget: Budget) -> list[str]:
    missing = []
    for line in lines:
        if line.rented:
            continue
        if math.isnan(line.purchase) and (line.count > line.owned or line.spares_share > 0):
            missing.append(f"the price of {line.name}")
        if not line.curve_w and line.powered:
            missing.append(f"idle_w and active_w of {line.name}")
        if math.isnan(line.utilisation):
            missing.append(f"the utilisation of {line.name} (it was not simulated)")
    if any(not line.rented and line.powered for line in lines):
        missing += [] if budget.power.tariff_per_kwh is not None else ["power.tariff_per_kwh of the budget"]
        missing += [] if budget.power.cooling_factor is not None else ["power.cooling_factor of the budget"]
    if any(line.rack_units and not line.rented for line in lines) and budget.money.rack_unit_per_month is None:
        missing.append("money.rack_unit_per_month of the budget")
    return missing


def _missing_hours(care: tuple[Care, ...], budget: Budget) -> list[str]:
    missing = []
    for kind in care:
        for key in ("migration", "retuning", "upkeep_per_month"):
            attribute = {"upkeep_per_month": "upkeep_hours_per_month"}.get(key, f"{key}_hours")
            value = getattr(kind, attribute)
            needed = key != "retuning" or budget.model.changes_per_year != 0
            if math.isnan(value) and needed:
                missing.append(f"hours.{kind.name}.{key} of the price file")
    if any(kind.retuning_hours > 0 for kind in care) and budget.model.changes_per_year is None:
        missing.append("model.changes_per_year of the budget")
    if any(_asks_hours(kind) for kind in care) and budget.money.hour_cost is None:
        missing.append("money.hour_cost of the budget")
    return missing


def _asks_hours(kind: Care) -> bool:
    hours = (kind.migration_hours, kind.retuning_hours, kind.upkeep_hours_per_month, kind.each_hours_per_month)
    return any(math.isnan(value) or value > 0 for value in hours)
