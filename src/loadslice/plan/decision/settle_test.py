import msgspec
import pytest

from loadslice.plan.decision import scenario
from loadslice.plan.decision.facts import Fact, Facts
from loadslice.plan.decision.settle import settle
from loadslice.plan.decision.tree import Decision
from loadslice.plan.money.specimen import BUDGET, engine, fleet
from loadslice.spec.budget import People
from loadslice.spec.plan import Limit
from loadslice.spec.plan_money import YearCost
from loadslice.spec.simulation import LatencyMs

TEAM = msgspec.structs.replace(BUDGET, people=People(count=12, heterogeneous_experience=True))
FACTS = Facts(budget=TEAM, rate_per_s=Fact(200.0, "measured", "measured"))
PARTS = {"depreciation": None, "power": None, "cooling": None, "space": None, "migration": None, "upkeep": None}


def priced(name: str, total: float | None, kinds: list[str], boxes: int = 2, **changes):
    cost = YearCost(years=3, total=total, purchase=None, **PARTS)
    return fleet(name, {kind: engine(kind, 1) for kind in kinds}, boxes=boxes, tco=[cost], **changes)


def decided(kind="gpu", codes=("else_gpu",), excluded=None) -> Decision:
    return Decision("A GPU.", kind, codes, (), excluded or {})


def ms(p50: float) -> LatencyMs:
    return LatencyMs(p50=p50, p95=100.0, p99=150.0, mean=p50)


def test_the_cheapest_that_keeps_the_promise_is_recommended_and_agreement_is_said() -> None:
    made = settle(decided(), FACTS, [priced("gpu-only", 100.0, ["gpu"]), priced("cpu-only", 150.0, ["cpu"])])
    assert (made.recommended, made.winner) == ("gpu-only", "agree")
    assert made.steps[0].answer == "yes"


def test_a_fleet_that_breaks_a_limit_or_the_promise_is_not_recommended() -> None:
    broken = Limit(name="per_box_w", limit=1.0, value=2.0, met=False, evidence="")
    cheap = priced("npu-only", 10.0, ["npu"], limits=[broken])
    late = priced("cpu-only", 20.0, ["cpu"], meets_slo=False)
    assert settle(decided(), FACTS, [cheap, late, priced("gpu-only", 100.0, ["gpu"])]).recommended == "gpu-only"


def test_a_limit_that_cannot_be_told_does_not_drop_a_fleet() -> None:
    unknown = Limit(name="per_box_w", limit=1.0, value=None, met=None, evidence="")
    assert settle(decided(), FACTS, [priced("gpu-only", 9.0, ["gpu"], limits=[unknown])]).recommended == "gpu-only"


def test_the_simulation_wins_over_the_questions_and_says_so_with_both_costs() -> None:
    made = settle(decided("cpu"), FACTS, [priced("gpu-only", 100.0, ["gpu"]), priced("cpu-only", 150.0, ["cpu"])])
    assert (made.recommended, made.winner) == ("gpu-only", "simulation")
    assert "the questions say CPU" in made.steps[0].evidence
    assert "costs 50 EUR more" in made.steps[0].evidence
    alone = settle(decided("cpu"), FACTS, [priced("gpu-only", 100.0, ["gpu"])])
    assert "No fleet with a CPU keeps the promise" in alone.steps[0].evidence


def test_what_is_said_of_money_is_money_whatever_the_objective() -> None:
    fast, slow = priced("gpu-only", 100.0, ["gpu"], latency_ms=ms(10.0)), priced("cpu-only", 60.0, ["cpu"])
    made = settle(decided("cpu"), FACTS, [fast, slow], lambda one: one.latency_ms.p50, best_is="the fastest")
    assert made.recommended == "gpu-only"
    assert "the fastest fleet that keeps the promise is GPU" in made.steps[0].evidence
    assert "costs 40 EUR less" in made.steps[0].evidence
    both = priced("hybrid", 120.0, ["cpu", "gpu"], latency_ms=ms(5.0))
    made = settle(decided("cpu"), FACTS, [both, slow], lambda one: one.latency_ms.p50, best_is="the fastest")
    assert "It costs 100% more than the cheapest fleet of one kind" in made.sentence


def test_the_questions_win_where_the_simulation_cannot_see_and_the_price_is_printed() -> None:
    out = decided("gpu", excluded={"npu": "operators do not match"})
    made = settle(out, FACTS, [priced("npu-only", 40.0, ["npu"]), priced("gpu-only", 100.0, ["gpu"])])
    assert (made.recommended, made.winner) == ("gpu-only", "method")
    assert made.passed_over == {"npu-only": "operators do not match"}
    assert "costs 60 EUR more" in made.steps[0].evidence


def test_a_small_team_gets_one_kind_of_engine_unless_only_a_hybrid_keeps_the_promise() -> None:
    small = msgspec.structs.replace(BUDGET, people=People(count=2, heterogeneous_experience=True))
    facts = Facts(budget=small)
    both = [priced("hybrid", 60.0, ["gpu", "cpu"]), priced("gpu-only", 100.0, ["gpu"])]
    assert settle(decided(), facts, both).recommended == "gpu-only"
    assert settle(decided(), facts, both[:1]).recommended == "hybrid"
    assert settle(decided(), FACTS, both).recommended == "hybrid"


def test_a_processor_that_only_runs_python_beside_a_card_makes_no_second_kind() -> None:
    parts = {"gpu": engine("gpu", 1), "host": engine("cpu", 1, models=False)}
    cost = YearCost(years=3, total=100.0, purchase=None, **PARTS)
    gpus = fleet("gpu-only", parts, boxes=1, tco=[cost])
    few = msgspec.structs.replace(BUDGET, people=People(count=2))
    made = settle(decided(), Facts(budget=few), [gpus])
    assert made.recommended == "gpu-only"
    assert made.sentence.startswith("Stay on one machine")
    assert "observability_first" not in made.codes


def test_a_saving_inside_the_error_of_prices_goes_to_the_simpler_fleet() -> None:
    single = priced("gpu-only", 100.0, ["gpu"])
    assert settle(decided(), FACTS, [priced("hybrid", 96.0, ["gpu", "cpu"]), single]).recommended == "gpu-only"
    assert settle(decided(), FACTS, [priced("hybrid", 94.0, ["gpu", "cpu"]), single]).recommended == "hybrid"


def test_of_equally_simple_fleets_at_one_cost_the_reference_plan_goes_first() -> None:
    fleets = [priced("3 x gpu", 97.0, ["gpu"]), priced("gpu-only", 100.0, ["gpu"])]
    assert settle(decided(), FACTS, fleets).recommended == "gpu-only"
    fleets[0] = priced("3 x gpu", 90.0, ["gpu"])
    assert settle(decided(), FACTS, fleets).recommended == "3 x gpu"


def test_one_machine_that_is_enough_is_stay_on_one_machine_and_too_small_for_a_hybrid() -> None:
    facts = Facts(budget=TEAM, rate_per_s=Fact(30.0, "measured", "measured"))
    made = settle(decided(), facts, [priced("gpu-only", 100.0, ["gpu"], boxes=1)])
    assert made.codes == ("stay_on_one_machine", "too_small_for_hybrid")
    assert made.sentence.startswith("Stay on one machine")
    assert "too small for a hybrid" in made.sentence
    busy = settle(decided(), FACTS, [priced("gpu-only", 100.0, ["gpu"], boxes=1)])
    assert busy.codes == ("stay_on_one_machine",)


def test_a_hybrid_says_what_it_saves_and_that_observability_comes_first_without_experience() -> None:
    green = Facts(budget=msgspec.structs.replace(BUDGET, people=People(count=12)))
    fleets = [priced("hybrid", 60.0, ["gpu", "cpu"]), priced("gpu-only", 100.0, ["gpu"])]
    made = settle(decided(), green, fleets)
    assert "40% less" in made.sentence
    assert "Observability first" in made.sentence
    assert "Observability" not in settle(decided(), FACTS, fleets).sentence


def test_optimise_first_and_an_npu_later_reach_the_sentence() -> None:
    made = settle(decided(None, ("optimise_first",)), FACTS, [priced("gpu-only", 100.0, ["gpu"])])
    assert made.sentence.startswith("Optimise first")
    assert settle(decided(codes=("gpu_then_npu",)), FACTS, [priced("gpu-only", 1.0, ["gpu"])]).sentence.endswith(
        "stable."
    )


def test_nothing_that_keeps_the_promise_is_no_recommendation() -> None:
    made = settle(decided(), FACTS, [priced("gpu-only", 100.0, ["gpu"], meets_slo=False)])
    assert (made.recommended, made.winner, made.codes) == (None, "neither", ("nothing_meets",))
    only_npu = settle(decided(excluded={"npu": "no operators"}), FACTS, [priced("npu-only", 1.0, ["npu"])])
    assert only_npu.recommended is None
    assert "no operators" in only_npu.steps[0].evidence


def test_a_fleet_without_a_price_comes_after_those_that_have_one() -> None:
    fleets = [priced("cpu-only", None, ["cpu"]), priced("gpu-only", 100.0, ["gpu"])]
    assert settle(decided(), FACTS, fleets).recommended == "gpu-only"
    assert settle(decided(), FACTS, fleets[:1]).recommended == "cpu-only"


def test_interactive_vetoes_a_hybrid_whose_first_results_come_later_than_from_each_part_alone() -> None:
    parts = [
        priced("gpu-only", 100.0, ["gpu"], latency_ms=ms(30.0)),
        priced("cpu-only", 150.0, ["cpu"], latency_ms=ms(80.0)),
    ]
    late = priced("hybrid", 50.0, ["gpu", "cpu"], latency_ms=ms(85.0))
    made = settle(decided(), FACTS, [late, *parts])
    assert (made.recommended, made.winner) == ("gpu-only", "method")
    assert "scheduling costs more than it brings" in made.steps[0].evidence
    between = priced("hybrid", 50.0, ["gpu", "cpu"], latency_ms=ms(60.0))
    assert settle(decided(), FACTS, [between, *parts]).recommended == "hybrid"
    offline = msgspec.structs.replace(TEAM, scenario="offline")
    assert settle(decided(), Facts(budget=offline), [late, *parts]).recommended == "hybrid"


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("interactive", {"latency_ms": ms(30.0)}, {"latency_ms": ms(60.0)}),
        ("offline", {"energy_j": 1000.0}, {"energy_j": 3000.0}),
        ("multi-user", {"latency_ms": LatencyMs(p50=30.0, p95=60.0, p99=90.0, mean=40.0)}, {"latency_ms": ms(30.0)}),
        ("edge", {"energy_j": 1000.0}, {"energy_j": 3000.0}),
    ],
)
def test_each_scenario_prefers_what_it_is_about(name, better: dict, worse: dict) -> None:
    good, bad = fleet("good", {"gpu": engine("gpu", 1)}, **better), fleet("bad", {"gpu": engine("gpu", 1)}, **worse)
    first, second = scenario.scores([good, bad], name, 10.0)
    assert first.score is not None
    assert second.score is not None
    assert first.score > second.score
    assert first.score <= 1


def test_soak_prefers_the_fleet_that_runs_further_from_its_end() -> None:
    calm = fleet("calm", {"gpu": engine("gpu", 1, utilisation_peak_hour=0.4)})
    hot = fleet("hot", {"gpu": engine("gpu", 1, utilisation_peak_hour=0.8)})
    assert [score.parts["soak"] for score in scenario.scores([calm, hot], "offline", 10.0)] == [1.0, 0.5]


def test_an_unknown_figure_is_named_and_its_weight_goes_to_the_others() -> None:
    one = fleet("one", {"gpu": engine("gpu", 1)}, energy_j=None)
    score = scenario.scores([one], "edge", 10.0)[0]
    assert (score.score, score.unknown) == (1.0, ("energy",))


def test_weights_of_every_scenario_add_up_to_one() -> None:
    assert all(sum(weights.values()) == pytest.approx(1.0) for weights in scenario.WEIGHTS.values())
