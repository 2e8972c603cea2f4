"""Changes one assumption of a case and plans again: `python examples/plans/turn.py CASE [ASSUMPTION] [FACTOR]`.

Without a factor it looks for the one at which another fleet is recommended, by halving, and prints it: where the case
turns over. Every step is a whole search on the case's traffic.
"""

import contextlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import build_traffic
import msgspec
import polars as pl
import yaml

from loadslice.app import plan_run
from loadslice.plan.decision.facts import gather
from loadslice.plan.decision.settle import settle
from loadslice.plan.decision.tree import decide
from loadslice.plan.fleet.judge import Judge
from loadslice.plan.fleet.planned import planned
from loadslice.plan.fleet.reference import references, search
from loadslice.plan.fleet.search import Seeker
from loadslice.plan.fleet.setting import POLICIES, set_up
from loadslice.plan.money.tco import costs_by_year
from loadslice.spec import budget as budgets
from loadslice.spec import latency as tables
from loadslice.spec import offers as offers_file
from loadslice.spec import pipeline as pipelines
from loadslice.spec import prices as price_file
from loadslice.spec.files import decode_yaml
from loadslice.spec.plan import Plan, PlannedFleet
from loadslice.workload.trace import Trace, write

HERE = Path(__file__).resolve().parent
FACTOR_MAX = 12.0
STEPS = 7
"""Halvings: the factor is then known to about two hundredths."""


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a case turns over, as found by this script: `turn.yaml` of the case."""

    assumption: str
    """``price of PART``, ``time of ENGINE``, ``traffic``, ``tariff`` or ``hours``."""
    at: float
    """Factor on what the case assumes."""
    before: str
    """Kinds of engines that are recommended, for instance ``cpu + gpu``."""
    after: str
    why: str


def plan(case: Path, assumption: str | None = None, factor: float = 1.0, *, out: Path | None = None) -> Plan:
    """Plan a case with one assumption multiplied.

    Args:
        case: Its folder.
        assumption: As `Turn.assumption`; ``None``: as it is.
        factor: On what it assumes.
        out: Where the plan's files go; ``None``: nowhere.
    """
    with changed(case, assumption, factor) as folder:
        frame = _traffic(folder, assumption, factor)
        write(
            Trace(frame, {"format": "drawn", "source": case.name, "licence": "Apache-2.0"}), folder / "traffic.parquet"
        )
        return plan_run.run(
            plan_run.Asked(
                trace=folder / "traffic.parquet",
                models=(),
                pipeline=folder / "pipeline.yaml",
                budget=folder / "budget.yaml",
                objective="cost",
                profile=folder / "times.json",
                offers=folder / "offers.yaml",
                prices=folder / "prices.yaml",
                devices=(),
                address=None,
                jobs=None,
                seed=0,
                out=out,
            )
        )


@contextlib.contextmanager
def changed(case: Path, assumption: str | None, factor: float) -> Iterator[Path]:
    """A copy of the case's files with one assumption multiplied."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in case.glob("*.*"):
            if path.suffix in (".yaml", ".json"):
                shutil.copy(path, folder)
        if assumption is not None:
            _change(folder, assumption, factor)
        yield folder


def _traffic(folder: Path, assumption: str | None, factor: float) -> pl.DataFrame:
    stated = decode_yaml(folder / "traffic.yaml", build_traffic.Traffic)
    return build_traffic.draw(stated, scale=factor if assumption == "traffic" else 1.0)


def recommended(case: Path, assumption: str | None = None, factor: float = 1.0) -> str:
    """Kinds of engines that are recommended, for instance ``cpu + gpu``.

    The search, the simulations and the money of `plan`; fleets beside the reference plans, tuned policy numbers and the
    Monte Carlo are left out, which halving does not need.
    """
    with changed(case, assumption, factor) as folder:
        budget, prices = budgets.load(folder / "budget.yaml"), price_file.load(folder / "prices.yaml")
        offers = price_file.apply(
            prices, offers_file.load(folder / "offers.yaml"), budget.money.currency, "prices.yaml"
        )
        pipeline, latency = pipelines.load(folder / "pipeline.yaml"), tables.load(folder / "times.json")
        frame = _traffic(folder, assumption, factor)
    setting = set_up(frame, pipeline, latency, offers, budget, prices=prices)
    fleets = []
    for reference in references(setting.lowered.problem, setting.design, setting.demand.kinds):
        if reference.lacks is not None:
            continue
        judge = Judge(reference.problem, reference.design, setting.traffic, budget.slo, POLICIES, 0)
        seeker = Seeker(reference.problem, judge, lambda: 0.0)
        found = search(reference, seeker, lambda _: None).best
        if found is not None:
            fleets.append(planned(reference.name, reference.name, found, setting, judge, budget))
    priced = [msgspec.structs.replace(one, tco=costs_by_year(one, budget, prices)) for one in fleets]
    facts = gather(budget, rate_per_s=float((setting.demand.requests / setting.demand.seconds).max()))
    settled = settle(decide(facts), facts, priced)
    return _kinds(priced, settled.recommended)


def _change(folder: Path, assumption: str, factor: float) -> None:
    """Multiply one assumption in the files."""
    what, _, name = assumption.partition(" of ")
    if what == "price":
        _edit(folder / "offers.yaml", lambda offers: _scale_price(offers, name, factor))
    elif what == "time":
        path = folder / "times.json"
        table = json.loads(path.read_text(encoding="utf-8"))
        for entry in table["entries"]:
            if entry["engine"] == name:
                entry["latency_ms"]["mean"] *= factor
        path.write_text(json.dumps(table), encoding="utf-8")
    elif what == "tariff":
        _edit(folder / "budget.yaml", lambda budget: _scale(budget["power"], "tariff_per_kwh", factor))
    elif what == "hours":
        _edit(folder / "budget.yaml", lambda budget: _scale(budget["money"], "hour_cost", factor))
    else:
        assert what == "traffic", f"'{assumption}' is not an assumption that this script changes"


def _edit(path: Path, change: Callable[[Any], None]) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(yaml.safe_dump(document), encoding="utf-8")


def _scale_price(offers: dict[str, Any], name: str, factor: float) -> None:
    part = offers["engines"].get(name) or offers["boxes"][name]
    _scale(part, "price_purchase", factor)


def _scale(part: dict[str, Any], key: str, factor: float) -> None:
    part[key] *= factor


def turning(case: Path, assumption: str, up: bool) -> tuple[float | None, str | None, str | None]:
    """The factor at which another kind of fleet is recommended, what was and what is then.

    Args:
        case: Its folder.
        assumption: As `Turn.assumption`.
        up: Look above what is assumed, else below.
    """
    before = recommended(case)
    good, bad = 1.0, FACTOR_MAX if up else 1.0 / FACTOR_MAX
    after = recommended(case, assumption, bad)
    if after == before:
        return None, before, None
    for _ in range(STEPS):
        middle = math.sqrt(good * bad)
        found = recommended(case, assumption, middle)
        print(f"  {assumption} x {middle:.3f}: {found}", file=sys.stderr)
        good, bad, after = (middle, bad, after) if found == before else (good, middle, found)
    return bad, before, after


def kinds(made: Plan) -> str:
    """Kinds of engines that a plan recommends."""
    return _kinds(made.fleets, made.recommended)


def _kinds(fleets: Sequence[PlannedFleet], name: str | None) -> str:
    fleet = next((fleet for fleet in fleets if fleet.name == name), None)
    return "none" if fleet is None else " + ".join(sorted({engine.kind for engine in fleet.engines.values()}))


if __name__ == "__main__":
    folder = HERE / sys.argv[1]
    if len(sys.argv) > 3:
        made = plan(folder, sys.argv[2], float(sys.argv[3]))
        print(kinds(made), made.decision)
    else:
        stated = decode_yaml(folder / "turn.yaml", Turn)
        asked = sys.argv[2] if len(sys.argv) > 2 else stated.assumption
        at, was, then = turning(folder, asked, stated.at > 1)
        print(f"{asked}: " + ("does not turn over" if at is None else f"x {at:.3g}, from {was} to {then}"))
