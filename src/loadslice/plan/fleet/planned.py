"""A judged fleet as the plan document says it."""

import numpy as np

from loadslice.plan.fleet.candidate import Design, batch_of, entries_of, template
from loadslice.plan.fleet.judge import Judge, Verdict
from loadslice.plan.fleet.lower import Lowered
from loadslice.plan.fleet.problem import Int64s, full_load_w, packed, purchase, racks
from loadslice.plan.fleet.search import Fleet
from loadslice.plan.fleet.setting import Setting
from loadslice.plan.fleet.tune import described
from loadslice.spec.budget import Budget
from loadslice.spec.latency import Basis
from loadslice.spec.plan import Limit, PlannedBox, PlannedEngine, PlannedFleet
from loadslice.spec.simulation import LatencyMs

WEAKEST: tuple[Basis, ...] = ("emulated", "modelled", "measured")
UNKNOWN = LatencyMs(p50=None, p95=None, p99=None, mean=None)


def lacking(name: str, reason: str) -> PlannedFleet:
    """A reference plan that cannot be built."""
    limit = Limit(name="devices", limit=None, value=None, met=False, evidence=reason)
    return _empty(name, [limit])


def impossible(name: str, what: str = "no number of the offered engines carries the load") -> PlannedFleet:
    """A plan none of whose fleets carries the load, whatever it costs and draws."""
    return _empty(name, [Limit(name="capacity", limit=1.0, value=None, met=False, evidence=what)])


def _empty(name: str, limits: list[Limit]) -> PlannedFleet:
    return PlannedFleet(
        name=name,
        label="none",
        engines={},
        boxes={},
        meets_slo=None,
        limits=limits,
        judged="not judged",
        latency_ms=UNKNOWN,
        throughput_per_s=None,
        goodput_per_s=None,
        error_rate=None,
        energy_j=None,
        power_w=None,
        power_per_box_w=None,
        racks_needed=None,
        utilisation={},
        cost_per_hour=None,
        tco=None,
        cost_per_1000=None,
        missing_prices=[],
        dominated_by=None,
        policy={},
        basis="measured",
        interval_95=None,
    )


def planned(name: str, label: str, fleet: Fleet, setting: Setting, judge: Judge, budget: Budget) -> PlannedFleet:
    """A fleet that was simulated.

    Args:
        name: Of the plan.
        label: What it consists of.
        fleet: Judged.
        setting: Its offers and demand.
        judge: That simulated it; knows where its stages may run, and how its machines were filled.
        budget: Its limits.
    """
    lowered, problem, design = setting.lowered, setting.lowered.problem, judge.design
    counts, verdict = fleet.mix.counts, fleet.verdict
    there = [k for k in range(len(problem.engines)) if counts[k] > 0]
    standing = packed(judge.problem, counts)
    assert standing is not None, "it was simulated in these machines"
    boxes = standing.machines
    names = [problem.engines[k] for k in there] + [problem.boxes[b] for b in np.flatnonzero(boxes)]
    watts_known = not any({"idle_w", "active_w"} & set(lowered.missing.get(part, ())) for part in names)
    unpriced = lowered.unpriced(counts, boxes)
    engines = {problem.engines[k]: _engine(k, fleet, setting, design) for k in there}
    return PlannedFleet(
        name=name,
        label=label,
        engines=engines,
        boxes=_boxes(setting, boxes),
        meets_slo=None if verdict is None else verdict.holds,
        limits=_limits(verdict, fleet, boxes, lowered, budget, unpriced=unpriced),
        judged="not judged" if verdict is None else "simulated",
        latency_ms=UNKNOWN if verdict is None else verdict.latency_ms,
        throughput_per_s=None if verdict is None else verdict.throughput_per_s,
        goodput_per_s=None if verdict is None else verdict.goodput_per_s,
        error_rate=None if verdict is None else verdict.error_rate,
        energy_j=None if verdict is None or not watts_known else verdict.energy_j,
        power_w=full_load_w(problem, counts, boxes) if watts_known else None,
        power_per_box_w=standing.hungriest_w if watts_known else None,
        racks_needed=racks(problem, standing) if watts_known else None,
        utilisation={} if verdict is None else verdict.utilisation,
        cost_per_hour=None if unpriced else fleet.mix.cost_per_hour,
        tco=None,
        cost_per_1000=None,
        missing_prices=unpriced,
        dominated_by=None,
        policy={} if verdict is None else described(verdict.policy, counts),
        basis=min((engine.times for engine in engines.values()), key=WEAKEST.index),
        interval_95=None,
    )


def _engine(k: int, fleet: Fleet, setting: Setting, design: Design) -> PlannedEngine:
    name = setting.lowered.problem.engines[k]
    offer, settings = design.offers[name], template(design, name)
    stages = [stage for stage, names in zip(design.pipeline.stages, design.runs, strict=True) if name in names]
    rows = 1
    if fleet.verdict is not None:
        batches = [batch_of(design, stage, name, fleet.verdict.policy) for stage in stages]
        rows = max([1, *(batch.size for batch in batches if batch is not None)])
    bases = [entry.basis for stage in stages for entry in entries_of(design, stage, name)]
    return PlannedEngine(
        kind=offer.kind,
        device=offer.device,
        count=int(fleet.mix.counts[k]),
        box=offer.box,
        cores=offer.cores,
        cards=offer.cards,
        count_max=offer.count_max,
        precision=settings.precision,
        batch_rows=rows,
        price_purchase=offer.price_purchase,
        price_per_hour=offer.price_per_hour,
        idle_w=offer.idle_w,
        active_w=offer.active_w,
        times=min(bases, key=WEAKEST.index),
        times_taken_from=design.taken_over.get(name),
        utilisation=None if fleet.verdict is None else fleet.verdict.utilisation.get(name),
        utilisation_peak_hour=float(fleet.mix.busy[:, k].max()),
        memory_bytes=offer.memory_bytes,
        models=any(stage.python is None for stage in stages) or all(stage.python for stage in design.pipeline.stages),
    )


def _boxes(setting: Setting, boxes: Int64s) -> dict[str, PlannedBox]:
    return {
        name: PlannedBox(
            count=int(count),
            cores=box.cores,
            cards=box.cards,
            price_purchase=box.price_purchase,
            price_per_hour=box.price_per_hour,
            idle_w=box.idle_w,
            rack_units=box.rack_units,
            count_max=box.count_max,
        )
        for (name, box), count in zip(setting.offers.boxes.items(), boxes, strict=True)
        if count
    }


def _simulated_on(verdict: Verdict) -> str:
    where = "on the recorded traffic" if verdict.whole else "in the busiest stretch, where it was given up"
    return f"simulated {where}"


def _limits(
    verdict: Verdict | None,
    fleet: Fleet,
    boxes: Int64s,
    lowered: Lowered,
    budget: Budget,
    *,
    unpriced: list[str],
) -> list[Limit]:
    found: list[Limit] = []
    if verdict is not None:
        for name, limit_ms in budget.slo.latency_limits_ms.items():
            value = getattr(verdict.latency_ms, name)
            found.append(
                Limit(
                    name="p95_ms" if name == "p95" else "p99_ms",
                    limit=limit_ms,
                    value=value,
                    met=value is not None and (value <= limit_ms if verdict.whole else None),
                    evidence=_simulated_on(verdict),
                )
            )
        rate = verdict.error_rate
        found.append(
            Limit(
                name="error_rate",
                limit=budget.slo.error_rate,
                value=rate,
                met=rate <= budget.slo.error_rate,
                evidence=_simulated_on(verdict),
            )
        )
    money = budget.money
    if money.purchase_max is not None:
        paid = purchase(lowered.problem, fleet.mix.counts, boxes)
        found.append(
            Limit(
                name="purchase_max",
                limit=money.purchase_max,
                value=None if unpriced else paid,
                met=None if unpriced else paid <= money.purchase_max + 1e-6,
                evidence=f"unknown: {', '.join(unpriced)}" if unpriced else f"{paid:,.0f} {money.currency}",
            )
        )
    return found
