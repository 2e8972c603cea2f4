import html
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import msgspec
import pytest

from loadslice.evaluate.report.page import render
from loadslice.evaluate.report.page_test import Outline
from loadslice.evaluate.report.plan_page import plan_charts, render_plan, render_section
from loadslice.evaluate.report.specimen import specimen
from loadslice.plan.advice import complete
from loadslice.plan.money.specimen import BUDGET, PRICES, engine, fleet
from loadslice.spec.budget import ModelLife, Offline, People, Power
from loadslice.spec.plan import Compared, HourLoad, Load, Plan
from loadslice.spec.plan_money import BreakEven, Growth, Later
from loadslice.spec.simulation import LatencyMs

HOSTILE = "</style><script>alert(1)</script>"
LOAD = Load(
    requests=144_000,
    span_s=7200.0,
    rate_per_s=20.0,
    peak_rate_per_s=25.0,
    buckets=[HourLoad(hour=0, seconds=3600.0, requests=54_000), HourLoad(hour=1, seconds=3600.0, requests=90_000)],
)
TEAM = msgspec.structs.replace(
    BUDGET,
    people=People(count=8, heterogeneous_experience=True),
    model=ModelLife(parameters=3e9, changes_per_year=2.0, in_production=True),
    offline=Offline(requests_per_day=100_000.0),
)


def bare(**changes) -> Plan:
    figures = {
        "decision": None,
        "decision_path": [],
        "fleets": [],
        "recommended": None,
        "nearest": None,
        "saves_vs_gpu_only_pct": None,
        "objective": "cost",
        "currency": "EUR",
        "load": LOAD,
        "proof": None,
        "compared_with": [],
        "confidence": None,
        "valleys": [],
        "checklist": [],
        "warnings": [HOSTILE],
    }
    return Plan(**(figures | changes))


@pytest.fixture(scope="module")
def plan() -> Plan:
    unpriced = fleet("npu-only", {"npu": engine("npu", 3, price_purchase=None)})
    none = LatencyMs(p50=None, p95=None, p99=None, mean=None)
    absent = fleet("hybrid", {}, boxes=0, meets_slo=None, judged="not judged", latency_ms=none, error_rate=None)
    fleets = [
        fleet("cpu-only", {"cpu": engine("cpu", 2)}),
        fleet("gpu-only", {"gpu": engine("gpu", 1)}),
        unpriced,
        absent,
    ]
    simpler = Compared(planner="fluid", label="1 x npu", meets_slo=False, cost_per_hour=2.0, saves_pct=25.0, added=2)
    return complete(bare(fleets=fleets, compared_with=[simpler]), TEAM, prices=PRICES)


@pytest.fixture(scope="module")
def page(plan: Plan) -> str:
    return render_plan(plan)


def text_of(page: str) -> str:
    bare_text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"[ \n]+", " ", bare_text))


def test_the_decision_is_the_headline_and_the_saving_follows_it(page: str, plan: Plan) -> None:
    headline = re.search(r"<h1>(.*?)</h1>", page)
    assert headline is not None
    assert headline[1] == plan.decision
    assert f"{plan.saves_vs_gpu_only_pct:.0f}% less than GPUs alone" in text_of(page)


def test_every_question_with_its_answer_and_evidence_is_on_the_page(page: str, plan: Plan) -> None:
    text = text_of(page)
    for step in plan.decision_path:
        assert step.question in text
        assert step.answer in text


def test_when_it_has_paid_for_itself_and_what_growth_asks_for_are_on_the_page(plan: Plan) -> None:
    money = msgspec.structs.replace(
        plan,
        break_even=[
            BreakEven(
                against="rented-only",
                what="rented",
                keeps=True,
                less_from_month=14,
                less_until_month=None,
                saved=2500.0,
                dearer_by_most=4000.0,
            )
        ],
        growth=Growth(
            traffic_at_end=2.1,
            carries=1.4,
            simulated=True,
            buys=[Later(month=9, part="gpu", count=1)],
            instead={"month-36": 120.0},
        ),
    )
    text = text_of(render_plan(money))
    assert "It costs less than the cheapest that is rented (rented-only) from month 14 on" in text
    assert "carries 1.4 times today's (as simulated) and adds 1 x gpu in month 9" in text
    assert "Instead, month-36 costs 120 EUR more: bought today for that month" in text


def test_what_is_unknown_is_shown_as_unknown_with_its_names_and_never_as_python(page: str) -> None:
    text = text_of(page)
    assert "the price of npu" in text
    assert "at least" in text
    assert not re.search(r"\b(None|nan|inf|undefined|True|False)\b", text)


def test_all_costs_of_the_document_are_on_the_page_for_an_engineer(page: str, plan: Plan) -> None:
    text = text_of(page).replace("\u202f", "")
    for cost in plan.fleets[0].tco or []:
        for part in (cost.total, cost.power, cost.cooling, cost.space, cost.migration, cost.upkeep):
            assert f" {part:.0f} " in text


def test_turning_points_experiments_and_five_steps_are_told(page: str, plan: Plan) -> None:
    text = text_of(page)
    assert plan.confidence is not None
    assert all(swing.assumption in text for swing in plan.confidence.tornado)
    assert all(trial.name in text for trial in plan.confidence.experiments)
    assert all(item.step in text for item in plan.checklist)
    assert "room for" in text


def test_what_simpler_planners_would_have_bought_is_told_with_the_saving(page: str) -> None:
    told = (
        "fluid takes 1 x npu, which does not keep the promise; 2 engines added until it does; the cheapest fleet found"
    )
    assert f"{told} costs 25.0% less." in text_of(page)


def test_what_others_wrote_is_shown_and_never_run(page: str) -> None:
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "http-equiv" in page


def test_tables_have_captions_and_ids_stand_once(page: str) -> None:
    outline = Outline()
    outline.feed(page)
    tags = [tag for tag, _ in outline.tags]
    assert tags.count("table") == tags.count("caption") >= 6
    given = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
    assert len(given) == len(set(given))
    assert isinstance(outline, HTMLParser)


def test_charts_are_well_formed_and_told_in_words(plan: Plan) -> None:
    drawn = plan_charts(plan)
    assert set(drawn) == {"plan-cost", "plan-valleys"}
    for chart in drawn.values():
        assert ElementTree.fromstring(str(chart)).find("title") is not None


def test_a_plan_of_nothing_is_still_a_page() -> None:
    assert "There is no decision" in render_plan(bare())
    assert plan_charts(bare()) == {}


def test_a_plan_without_a_tariff_is_a_page_that_names_it() -> None:
    dark = msgspec.structs.replace(TEAM, power=Power())
    made = complete(bare(fleets=[fleet("cpu-only", {"cpu": engine("cpu", 2)})]), dark, prices=PRICES)
    assert "power.tariff_per_kwh of the budget" in text_of(render_plan(made))


def test_a_study_with_a_plan_ends_with_it_and_one_without_does_not_speak_of_it(plan: Plan) -> None:
    report = specimen()
    without, with_plan = render(report), render(msgspec.structs.replace(report, planned=plan))
    assert "What to buy" not in without
    assert (
        with_plan.index('id="limits"') < with_plan.index('id="buy"') < with_plan.index(str(render_section(plan))[:200])
    )
    assert plan.decision is not None
    assert plan.decision in html.unescape(with_plan)
    outline = Outline()
    outline.feed(with_plan)
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert HOSTILE not in with_plan
