"""Everything a search needs, put together once: traffic lowered, demand added up, offers in numbers."""

from dataclasses import dataclass

import msgspec
import numpy as np
import polars as pl

from loadslice.plan.fleet import elsewhere
from loadslice.plan.fleet.candidate import Design, Policy, pipeline_of, table_of, times_name
from loadslice.plan.fleet.demand import Demand, demand
from loadslice.plan.fleet.lower import Lowered, lower
from loadslice.plan.fleet.problem import HOURS_PER_YEAR
from loadslice.sim import simulate
from loadslice.sim.record import Traffic
from loadslice.spec.budget import Budget
from loadslice.spec.errors import InputError
from loadslice.spec.latency import LatencyTable
from loadslice.spec.offers import Offers
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.prices import Prices

POLICIES = (Policy(name="batches as profiled"), Policy(name="one at a time", rows_most=1))
"""Tried in this order until one keeps the promise; more are tried around the fleet that is found."""

BEYOND_LEAST = 10
"""Requests beyond a percentile, at least: of fewer, another trace of one service shows quite another percentile."""
DAY_H = 23.0


@dataclass(frozen=True, slots=True)
class Setting:
    """A search's input."""

    design: Design
    traffic: Traffic
    demand: Demand
    lowered: Lowered
    offers: Offers
    warnings: list[str]


def set_up(
    trace: pl.DataFrame,
    pipeline: Pipeline,
    latency: LatencyTable,
    offers: Offers,
    budget: Budget,
    *,
    prices: Prices | None = None,
    seed: int = 0,
) -> Setting:
    """Put a search's input together.

    Args:
        trace: Inputs named, as `simulate.prepare` takes it.
        pipeline: Checked.
        latency: Has times under the names that offers take theirs from.
        offers: Checked, in the budget's currency.
        budget: Checked.
        prices: What keeping a part costs beside its price.
        seed: Of the draw that gives inputs to rows that name none.

    Raises:
        InputError: A stage that no offer can run.
    """
    runs = _runs(pipeline, latency, offers)
    misnamed = [*_unknown_stages(offers, pipeline), *_without_power(offers, budget)]
    used = {name for names in runs for name in names}
    warnings = [f"'{name}' has no time for any stage; it is left out." for name in offers.engines if name not in used]
    offers = msgspec.structs.replace(
        offers, engines={name: offer for name, offer in offers.engines.items() if name in used}
    )
    hours = budget.money.horizon_years * HOURS_PER_YEAR
    per_hour: dict[str, float | None] = {
        name: None
        if offer.price_purchase is None and offer.price_per_hour is None
        else (offer.price_purchase or 0.0) / hours + (offer.price_per_hour or 0.0)
        for name, offer in offers.engines.items()
    }
    found = elsewhere.taken_over(offers, latency, pipeline)
    design = Design(
        pipeline,
        elsewhere.with_taken_over(latency, offers, found),
        dict(offers.engines),
        dict(offers.boxes),
        runs,
        per_hour,
        budget.money.currency,
        found,
    )
    warnings += [*elsewhere.told(offers, found), *misnamed]
    one_each = np.ones(len(offers.engines), np.int64)
    boxes = np.ones(len(offers.boxes), np.int64)
    every = pipeline_of(design, one_each, POLICIES[0])
    assert every is not None
    prepared = simulate.prepare(trace, every, table_of(design, one_each, boxes, every), seed=seed)
    asked = demand(prepared, runs, patience_s=max(budget.slo.latency_limits_ms.values()) / 1000)
    warnings += _thin(prepared.traffic, budget)
    warnings += [line for line in prepared.warnings if "unknown:" not in line]
    return Setting(
        design, prepared.traffic, asked, lower(offers, budget, asked, prices), offers, list(dict.fromkeys(warnings))
    )


def _unknown_stages(offers: Offers, pipeline: Pipeline) -> list[str]:
    """Keys of offers that name no stage, which would be passed over in silence."""
    stages = {stage.name for stage in pipeline.stages}
    named = {
        f"'{name}': {key}: '{stage}' is no stage of the pipeline ({', '.join(sorted(stages))})."
        for name, offer in offers.engines.items()
        for key, found in (("stages", offer.stages or ()), ("batch", offer.batch))
        for stage in found
        if stage not in stages
    }
    return sorted(named)


def _without_power(offers: Offers, budget: Budget) -> list[str]:
    """What an hour of a mix leaves out where nobody states a tariff."""
    if budget.power.tariff_per_kwh is not None or all(box.price_per_hour for box in offers.boxes.values()):
        return []
    left_out = "what an hour of a mix costs, by which mixes are chosen, is without power"
    return [f"power.tariff_per_kwh of the budget is not stated: {left_out}."]


def _thin(traffic: Traffic, budget: Budget) -> list[str]:
    """What so little traffic cannot say."""
    total, span_h = len(traffic.arrival_ns), float(traffic.arrival_ns[-1]) / 3.6e12
    found = []
    for name in budget.slo.latency_limits_ms:
        least = round(BEYOND_LEAST / (1 - int(name[1:]) / 100))
        if total < least:
            found.append(f"{total:,} requests are too few for a {name.upper()}: record {least:,} or more.")
    if span_h < DAY_H:
        covered = f"{span_h:.2g} hours" if span_h >= 1 else f"{60 * span_h:.2g} minutes"
        found.append(
            f"the trace covers {covered}; it is taken for every day of the years: record a week for its tides."
        )
    return found


def _runs(pipeline: Pipeline, latency: LatencyTable, offers: Offers) -> tuple[tuple[str, ...], ...]:
    """By stage, offers that have times for it and may run it."""
    known = {(entry.variant, entry.engine) for entry in latency.entries}
    found = []
    for stage in pipeline.stages:
        names = tuple(
            name
            for name, offer in offers.engines.items()
            if (stage.variant_id, times_name(name, offer)) in known
            and (offer.stages is None or stage.name in offer.stages)
        )
        if not names:
            tables = sorted({entry.engine for entry in latency.entries if entry.variant == stage.variant_id})
            raise InputError(
                f"stage '{stage.name}': none of the offered engines ({', '.join(offers.engines)}) has a time for "
                f"'{stage.variant_id}'; the latency table has it on {', '.join(tables) or 'no engine'}. "
                "Run `loadslice profile` on one, or offer an engine with `times:` of one that has."
            )
        found.append(names)
    return tuple(found)
