"""The cheapest way to validate a plan, in five steps, filled in from what was measured so far.

A modelled figure leaves a step open: the steps are there to replace models by measurements, the cheapest first. Each
open step names the next command.
"""

import statistics
from collections.abc import Mapping, Sequence

from loadslice.plan.decision.facts import Facts
from loadslice.plan.decision.scenario import is_hybrid, kinds
from loadslice.plan.decision.settle import REFERENCES
from loadslice.plan.decision.tree import IDLE_SHARE, MATCH_SHARE
from loadslice.spec.device import Kind
from loadslice.spec.latency import Entry, LatencyTable
from loadslice.spec.plan import CheckItem, PlannedEngine, PlannedFleet
from loadslice.spec.prices import Prices, hours_of
from loadslice.spec.variant import Squeeze, Variant

STEPS = (
    "INT8, then INT4: is the loss acceptable?",
    "This machine's processor: requests/s, P50, P99",
    "NPU: do the operators match, and how many hours does it take?",
    "A borrowed GPU: real utilisation, latency at batch 1, watts of the box at full load",
    "Three years of ownership, then decide",
)


def checklist(
    fleets: Sequence[PlannedFleet],
    facts: Facts,
    *,
    latency: LatencyTable | None = None,
    squeezes: Sequence[Squeeze] = (),
    prices: Prices | None = None,
    box_w: Mapping[Kind, float] | None = None,
    runs_by: Mapping[str, str] | None = None,
) -> list[CheckItem]:
    """The five steps.

    Args:
        fleets: Simulated and priced.
        facts: Operator match and utilisation come from here.
        latency: Tells measured times from modelled ones.
        squeezes: What `loadslice squeeze` tried on each model.
        prices: Hours of adaptation.
        box_w: Kind -> watts of its smallest box at full load.
        runs_by: Engine type of a fleet -> engine of the latency table, where the names differ.
    """
    entries = [] if latency is None else latency.entries
    names = runs_by or {}
    return [
        _precision(squeezes),
        _processor(fleets, entries, names),
        _npu(fleets, facts, prices),
        _gpu(fleets, entries, box_w or {}, names),
        _ownership(fleets),
    ]


def _item(step: int, state: str, evidence: str) -> CheckItem:
    assert state in ("done", "open", "failed", "not needed")
    return CheckItem(step=STEPS[step - 1], state=state, evidence=evidence)  # type: ignore[arg-type]


def _precision(squeezes: Sequence[Squeeze]) -> CheckItem:
    tried = [variant for one in squeezes for variant in one.variants if variant.scheme.weight_bits in (4, 8)]
    if not tried:
        return _item(1, "open", "no INT8 variant was built: loadslice squeeze MODEL --data DIR --target cpu-int8")
    lines, shipped = [], True
    for one in squeezes:
        int8 = _told([variant for variant in one.variants if variant.scheme.weight_bits == 8], "INT8")
        int4 = _told([variant for variant in one.variants if variant.scheme.weight_bits == 4], "INT4")
        shipped &= any(variant.shipped for variant in one.variants if variant.scheme.weight_bits in (4, 8))
        lines.append(f"{one.model}: {int8}; {int4}; floor {one.floor}")
    return _item(1, "done" if shipped else "failed", ". ".join(lines))


def _told(variants: Sequence[Variant], name: str) -> str:
    if not variants:
        return f"{name} not tried"
    best = next((variant for variant in variants if variant.shipped), variants[0])
    metric = best.metric
    value = "not measured" if metric.variant is None else f"{metric.name} {metric.variant:.4g}"
    source = "" if metric.source is None else f" against {metric.source:.4g}"
    faster = "" if best.speedup_vs_untuned is None else f", {best.speedup_vs_untuned:.2g} times as fast"
    return f"{name} {'holds' if best.shipped else 'misses the floor'}: {value}{source}{faster}"


def _processor(fleets: Sequence[PlannedFleet], entries: Sequence[Entry], names: Mapping[str, str]) -> CheckItem:
    fleet = next((one for one in fleets if kinds(one) == {"cpu"} and one.latency_ms.p50 is not None), None)
    if fleet is None:
        return _item(2, "open", "no fleet of processors alone was simulated: offer a processor engine")
    modelled = _unmeasured(fleet, "cpu", entries, names)
    if modelled:
        where = " on such a machine" if fleet.engines[modelled].times_taken_from is not None else ""
        return _item(2, "open", f"times of {modelled} are not measured{where}: loadslice profile PIPELINE")
    figures = fleet.latency_ms
    holds = "keeps the promise" if fleet.meets_slo else "does not keep the promise"
    rate = "unknown" if fleet.throughput_per_s is None else f"{fleet.throughput_per_s:.3g} requests/s"
    evidence = (
        f"{fleet.label}: {rate}, P50 {figures.p50:.3g} ms, P99 {figures.p99:.3g} ms on measured times; it {holds}"
    )
    return _item(2, "done" if fleet.meets_slo else "failed", evidence)


def _unmeasured(fleet: PlannedFleet, kind: Kind, entries: Sequence[Entry], names: Mapping[str, str]) -> str | None:
    """First engine of a kind whose times are not all measured."""
    for name, engine in fleet.engines.items():
        if engine.kind != kind or not engine.count:
            continue
        own = [entry for entry in entries if entry.engine == names.get(name, name)]
        if engine.times != "measured" or any(entry.basis != "measured" for entry in own):
            return name
    return None


def _npu(fleets: Sequence[PlannedFleet], facts: Facts, prices: Prices | None) -> CheckItem:
    allowed = facts.budget.devices
    offered = [(name, engine) for fleet in fleets for name, engine in fleet.engines.items() if engine.kind == "npu"]
    match = facts.npu
    if match is None and not offered and allowed is not None:
        return _item(3, "not needed", f"the budget allows {', '.join(allowed)}, no NPU among them or offered")
    if match is None:
        return _item(3, "open", "no model was inspected for an NPU: loadslice inspect MODEL --device NPU")
    hours = _adaptation(offered, prices)
    if match.value.supported_flops_share < MATCH_SHARE or match.value.fits == "no":
        return _item(3, "failed", f"{match.evidence}; {hours}")
    return _item(3, "done", f"{match.evidence}; {hours}")


def _adaptation(offered: Sequence[tuple[str, PlannedEngine]], prices: Prices | None) -> str:
    name, device = (offered[0][0], offered[0][1].device) if offered else ("npu", None)
    hours = hours_of(prices, name, device, "npu").migration
    return "hours of adaptation not stated (hours.npu.migration)" if hours is None else f"{hours:g} h of adaptation"


def _gpu(
    fleets: Sequence[PlannedFleet],
    entries: Sequence[Entry],
    box_w: Mapping[Kind, float],
    names: Mapping[str, str],
) -> CheckItem:
    fleet = next((one for one in fleets if kinds(one) == {"gpu"}), None)
    if fleet is None:
        fleet = next((one for one in fleets if "gpu" in kinds(one)), None)
    if fleet is None:
        return _item(4, "not needed", "no GPU is offered")
    modelled = _unmeasured(fleet, "gpu", entries, names)
    if modelled:
        how = "borrow one for a day: loadslice profile PIPELINE --on GPU"
        return _item(4, "open", f"times of {modelled} are not measured; {how}")
    own = {names.get(name, name) for name, engine in fleet.engines.items() if engine.kind == "gpu"}
    single = [
        entry for entry in entries if entry.engine in own and entry.batch == 1 and entry.latency_ms.p50 is not None
    ]
    if not single:
        return _item(4, "open", "no time at batch 1: loadslice profile PIPELINE --on GPU")
    busy = max((engine.utilisation or 0.0) for engine in fleet.engines.values() if engine.kind == "gpu")
    watts = box_w.get("gpu")
    if watts is None:
        return _item(4, "open", "the watts of its box at full load are not known: measure them at the plug")
    by_stage: dict[str, list[float]] = {}
    for entry in single:
        by_stage.setdefault(entry.variant, []).append(entry.latency_ms.p50 or 0.0)
    total_ms = sum(statistics.median(found) for found in by_stage.values())
    stages = f"{len(by_stage)} stage{'s' if len(by_stage) > 1 else ''}"
    evidence = (
        f"{busy:.0%} used, batch 1 takes {total_ms:.3g} ms over {stages}, its box draws {watts:.3g} W at full load"
    )
    if busy < IDLE_SHARE:
        return _item(4, "failed", f"{evidence}; under {IDLE_SHARE:.0%} used: optimise what is there instead")
    return _item(4, "done", evidence)


def _ownership(fleets: Sequence[PlannedFleet]) -> CheckItem:
    kept = [fleet for fleet in fleets if fleet.meets_slo and fleet.name in REFERENCES]
    kept = kept or [fleet for fleet in fleets if fleet.meets_slo]
    if not kept:
        return _item(5, "failed" if fleets else "open", "no fleet keeps the promise")
    lines, missing = [], []
    for fleet in kept:
        cost = next((one for one in fleet.tco or [] if one.years == 3), None)
        if cost is None:
            missing.append(f"{fleet.name}: not priced")
        elif cost.total is None:
            missing.append(f"{fleet.name}: {', '.join(cost.missing)}")
        else:
            lines.append(
                f"{fleet.name}{' (hybrid)' if is_hybrid(fleet) and fleet.name != 'hybrid' else ''} {cost.total:,.0f}"
            )
    if missing:
        return _item(5, "open", f"prices are missing: {'; '.join(missing)}")
    return _item(5, "done", f"over three years: {', '.join(lines)}")
