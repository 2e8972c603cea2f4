"""Each case comes out as its README says, and turns over past the assumption that it names."""

from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="the extra 'plan' is not installed")

from loadslice.spec.files import decode_yaml
from loadslice.spec.functions import load_function
from loadslice.spec.plan import Plan, PlannedFleet

HERE = Path(__file__).resolve().parent

plan = load_function("turn:plan", HERE)
recommended = load_function("turn:recommended", HERE)
Turn = load_function("turn:Turn", HERE)
draw = load_function("build_traffic:draw", HERE)
Traffic = load_function("build_traffic:Traffic", HERE)

CASES = sorted(path.parent.name for path in HERE.glob("*/turn.yaml"))


@cache
def planned(case: str) -> Plan:
    return plan(HERE / case)


def fleet(made: Plan, name: str) -> PlannedFleet:
    return next(one for one in made.fleets if one.name == name)


def total(one: PlannedFleet, years: int) -> float:
    value = next(cost.total for cost in one.tco or [] if cost.years == years)
    assert value is not None
    return value


def purchase(one: PlannedFleet) -> float:
    value = (one.tco or [])[0].purchase
    assert value is not None
    return value


def test_every_case_has_what_a_plan_needs_and_writes_its_assumptions_out() -> None:
    folders = sorted(path.parent.name for path in HERE.glob("*/offers.yaml"))
    assert folders == CASES
    assert len(CASES) == 5
    for case in CASES:
        text = (HERE / case / "README.md").read_text(encoding="utf-8")
        assert "## Assumptions" in text
        assert "## Where it turns over" in text


def test_the_video_service_saves_a_third_over_two_years_though_purchases_are_near() -> None:
    made = planned("video-moderation")
    gpus, hybrid = fleet(made, "gpu-only"), fleet(made, "hybrid")
    assert made.recommended == "hybrid"
    assert 0.15 <= 1 - purchase(hybrid) / purchase(gpus) <= 0.20
    assert 1 - total(hybrid, 2) / total(gpus, 2) >= 0.30
    costs = {cost.years: cost for cost in hybrid.tco or []}
    others = {cost.years: cost for cost in gpus.tco or []}
    assert (costs[2].migration or 0) > (others[2].migration or 0)
    assert (costs[2].power or 0) < (others[2].power or 0) / 2


def test_image_retrieval_takes_one_gpu_and_two_processors_for_three_gpus_with_a_steadier_p99() -> None:
    made = planned("image-retrieval")
    gpus, hybrid = fleet(made, "gpu-only"), fleet(made, "hybrid")
    assert made.recommended == "hybrid"
    assert (gpus.engines["gpu"].count, hybrid.engines["gpu"].count, hybrid.engines["cpu"].count) == (3, 1, 2)
    assert (hybrid.latency_ms.p99 or 0) < (gpus.latency_ms.p99 or 0) / 2
    assert total(hybrid, 3) < total(gpus, 3)


def test_a_dialogue_model_of_three_billion_is_cheapest_on_processors() -> None:
    made = planned("dialogue-3b")
    assert made.recommended == "cpu-only"
    assert (fleet(made, "cpu-only").latency_ms.p95 or 0) < 200
    assert total(fleet(made, "cpu-only"), 3) < total(fleet(made, "gpu-only"), 3)
    assert any(step.answer == "yes" and "3 billion" in step.evidence for step in made.decision_path)


def test_a_ranker_needs_no_card_once_it_is_tuned() -> None:
    made = planned("search-ranker")
    best = fleet(made, made.recommended or "")
    assert {engine.kind for engine in best.engines.values()} == {"cpu"}
    assert purchase(best) == 0


def test_one_model_and_a_few_dozen_requests_are_one_gpu_server_and_no_hybrid() -> None:
    made = planned("one-model")
    best = fleet(made, made.recommended or "")
    assert best.label == "1 x gpu"
    assert made.decision is not None
    assert made.decision.startswith("Stay on one machine")
    assert "too small for a hybrid" in made.decision


@pytest.mark.parametrize("case", CASES)
def test_it_turns_over_past_the_assumption_it_names_and_not_before(case: str) -> None:
    stated = decode_yaml(HERE / case / "turn.yaml", Turn)
    assert recommended(HERE / case) == stated.before
    past = stated.at * (1.12 if stated.at > 1 else 1 / 1.12)
    assert recommended(HERE / case, stated.assumption, past) == stated.after


def test_traffic_is_drawn_alike_every_time_and_follows_the_hours() -> None:
    stated = decode_yaml(HERE / "one-model" / "traffic.yaml", Traffic)
    frame = draw(stated)
    assert frame.equals(draw(stated))
    busiest = stated.rate_per_s.index(max(stated.rate_per_s))
    span_s = stated.seconds_per_hour
    inside = frame.filter(
        (frame["arrival_s"] >= busiest * span_s) & (frame["arrival_s"] < (busiest + 1) * span_s)
    ).height
    assert inside / span_s == pytest.approx(max(stated.rate_per_s), rel=0.1)
    assert frame["arrival_s"].is_sorted()
