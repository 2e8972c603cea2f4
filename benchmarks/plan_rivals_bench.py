"""What is saved against two simpler planners, and what a promise costs them: drawn cases, each judged by simulation.

A case is three kinds of engines with drawn prices, powers and times, Poisson arrivals with a tide, and a drawn P99.
All of it is synthetic. The search here is not told what the rivals found (`loadslice plan` takes a rival's fleet where
it is cheaper). ``fluid`` plans by throughput alone, as planners do that read a table of it; ``greedy`` buys the best
bargain again and again. Where the simulation finds their answer too small, engines of the type they use most are added
until it holds, which is counted.
"""

import os
import time
from typing import Any

import msgspec
import numpy as np
import polars as pl

from loadslice.plan.fleet import rivals, specimen
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.search import Seeker
from loadslice.plan.fleet.setting import POLICIES, Setting, set_up
from loadslice.sim import simulate
from loadslice.spec.budget import Slo

CASES = 30
SECONDS = 120.0


def run() -> dict[str, Any]:
    """Plan every case three ways.

    Returns:
        Shares of cases, savings in percent, seconds of one search.
    """
    simulate.warm()
    found = [made for seed in range(CASES) if (made := _case(seed)) is not None]
    figures: dict[str, Any] = {"cases_that_can_be_kept": len(found), "load_average_1m": os.getloadavg()[0]}
    figures["search_s_median"] = float(np.median([seconds for _, seconds, _ in found]))
    figures["search_s_worst"] = max(seconds for _, seconds, _ in found)
    figures["proven"] = sum(proven for proven, _, _ in found)
    for name in ("fluid", "greedy"):
        own = [others[name] for _, _, others in found]
        saved = [saving for _, saving in own if saving is not None]
        figures |= {
            f"{name}_first_answer_fails": sum(not holds for holds, _ in own),
            f"{name}_never_holds": sum(saving is None for _, saving in own),
            f"{name}_cheaper_than_the_search": sum(saving < -0.1 for saving in saved),
            f"saved_against_{name}_pct_median": float(np.median(saved)),
            f"saved_against_{name}_pct_most": max(saved),
        }
    return figures


Rivals = dict[str, tuple[bool, float | None]]


def _case(seed: int) -> tuple[bool, float, Rivals] | None:
    """Proven or not, seconds, and of each rival: its first answer holds, percent saved; ``None``: nothing holds."""
    setting, slo = _drawn(np.random.default_rng(seed))
    judge = Judge(setting.lowered.problem, setting.design, setting.traffic, slo, POLICIES, 0)
    began = time.perf_counter()
    found = Seeker(judge.problem, judge, time.perf_counter).cheapest()
    seconds = time.perf_counter() - began
    if found.best is None:
        return None
    seeker = Seeker(judge.problem, judge, time.perf_counter)
    others: Rivals = {}
    for planner in (rivals.fluid, rivals.greedy):
        made = planner(judge.problem, seeker)
        saved = None if made.final is None else 100 * (1 - found.best.mix.cost_per_hour / made.final.mix.cost_per_hour)
        others[made.planner] = (made.first is not None and made.first.holds, saved)
    return found.proven, seconds, others


def _drawn(draws: np.random.Generator) -> tuple[Setting, Slo]:
    rate_per_s = float(np.exp(draws.uniform(np.log(50), np.log(800))))
    count = int(rate_per_s * SECONDS)
    tide = 1 + draws.uniform(0, 0.7) * np.sin(np.linspace(0, 2 * np.pi, count))
    frame = pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / rate_per_s, count) / tide)})
    engines = {
        name: msgspec.structs.replace(
            offer,
            price_purchase=(offer.price_purchase or 0.0) * float(np.exp(draws.normal(0, 0.6))),
            active_w=(offer.active_w or 0.0) * float(draws.uniform(1.0, 2.0)),
        )
        for name, offer in specimen.OFFERS.engines.items()
    }
    table = specimen.latency()
    slower = {name: float(np.exp(draws.normal(0, 0.5))) for name in engines}
    entries = [
        msgspec.structs.replace(
            entry,
            latency_ms=msgspec.structs.replace(
                entry.latency_ms,
                p50=(entry.latency_ms.p50 or 0.0) * slower[entry.engine],
                p90=(entry.latency_ms.p90 or 0.0) * slower[entry.engine],
                p99=(entry.latency_ms.p99 or 0.0) * slower[entry.engine],
            ),
        )
        for entry in table.entries
    ]
    slo = Slo(p99_ms=float(np.exp(draws.uniform(np.log(12), np.log(120)))), error_rate=0.001)
    budget = msgspec.structs.replace(specimen.BUDGET, slo=slo)
    offers = msgspec.structs.replace(specimen.OFFERS, engines=engines)
    table = msgspec.structs.replace(table, entries=entries)
    return set_up(frame, specimen.pipeline(), table, offers, budget), slo


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:>40} {value}")
