"""Made-up fleets for tests of the money, the decision and their report. No number in it was measured."""

from loadslice.spec.budget import Budget, ModelLife, Money, Power, Slo
from loadslice.spec.plan import PlannedBox, PlannedEngine, PlannedFleet
from loadslice.spec.prices import Hours, Part, Prices
from loadslice.spec.simulation import LatencyMs

BUDGET = Budget(
    slo=Slo(p99_ms=200.0),
    power=Power(per_box_w=800.0, per_rack_w=6000.0, tariff_per_kwh=0.2, cooling_factor=1.5),
    money=Money(currency="EUR", horizon_years=3, hour_cost=100.0, rack_unit_per_month=10.0),
    model=ModelLife(changes_per_year=2.0),
)
PRICES = Prices(
    currency="EUR",
    parts={"server": Part(spares_share=0.05)},
    hours={
        "gpu": Hours(migration=40.0, retuning=4.0, upkeep_per_month=2.0),
        "npu": Hours(migration=120.0, retuning=16.0, upkeep_per_month=4.0),
        "cpu": Hours(migration=0.0, retuning=0.0, upkeep_per_month=1.0),
    },
)


def engine(kind: str, count: int, **changes: object) -> PlannedEngine:
    """An engine with round figures."""
    figures: dict[str, object] = {
        "kind": kind,
        "device": None,
        "count": count,
        "box": "server",
        "precision": "int8",
        "batch_rows": 1,
        "price_purchase": {"cpu": 0.0, "gpu": 3000.0, "npu": 600.0}[kind],
        "price_per_hour": None,
        "idle_w": {"cpu": 20.0, "gpu": 40.0, "npu": 2.0}[kind],
        "active_w": {"cpu": 120.0, "gpu": 240.0, "npu": 12.0}[kind],
        "times": "measured",
        "utilisation": 0.5,
        "utilisation_peak_hour": 0.6,
    }
    return PlannedEngine(**(figures | changes))  # type: ignore[arg-type]


def fleet(name: str, engines: dict[str, PlannedEngine], boxes: int = 1, **changes: object) -> PlannedFleet:
    """Engines in servers of one type."""
    server = PlannedBox(
        count=boxes, cores=32, cards=4, price_purchase=5000.0, price_per_hour=None, idle_w=100.0, rack_units=2.0
    )
    figures: dict[str, object] = {
        "name": name,
        "label": " + ".join(f"{part.count} x {key}" for key, part in engines.items()),
        "engines": engines,
        "boxes": {"server": server},
        "meets_slo": True,
        "limits": [],
        "judged": "simulated",
        "latency_ms": LatencyMs(p50=40.0, p95=90.0, p99=120.0, mean=50.0),
        "throughput_per_s": 20.0,
        "goodput_per_s": 20.0,
        "error_rate": 0.0,
        "energy_j": None,
        "power_w": None,
        "power_per_box_w": None,
        "racks_needed": None,
        "utilisation": {key: part.utilisation or 0.0 for key, part in engines.items()},
        "cost_per_hour": None,
        "tco": None,
        "cost_per_1000": None,
        "missing_prices": [],
        "dominated_by": None,
        "policy": {},
        "basis": "measured",
        "interval_95": None,
    }
    return PlannedFleet(**(figures | changes))  # type: ignore[arg-type]
