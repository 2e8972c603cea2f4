from typing import Any

import msgspec
import pytest

from loadslice.plan.advice import complete
from loadslice.plan.money.specimen import BUDGET, PRICES, engine, fleet
from loadslice.spec.budget import ModelLife, Offline, People, Power
from loadslice.spec.files import Stamp, encode_json
from loadslice.spec.latency import OTHERS, Entry, LatencyTable, Milliseconds
from loadslice.spec.observed import Observed
from loadslice.spec.plan import HourLoad, Limit, Load, Plan, Proof
from loadslice.spec.simulation import LatencyMs

LOAD = Load(
    requests=20 * 7200,
    span_s=7200.0,
    rate_per_s=20.0,
    peak_rate_per_s=25.0,
    buckets=[
        HourLoad(hour=0, seconds=3600.0, requests=15 * 3600),
        HourLoad(hour=1, seconds=3600.0, requests=25 * 3600),
    ],
)
CPU = fleet("cpu-only", {"cpu": engine("cpu", 2)}, latency_ms=LatencyMs(p50=60.0, p95=100.0, p99=150.0, mean=70.0))
GPU = fleet("gpu-only", {"gpu": engine("gpu", 1)})
TEAM = msgspec.structs.replace(
    BUDGET,
    people=People(count=8, heterogeneous_experience=True),
    model=ModelLife(parameters=3e9, changes_per_year=2.0, in_production=True),
)


def plan(*fleets, **changes) -> Plan:
    bare = Plan(
        decision=None,
        decision_path=[],
        fleets=list(fleets),
        recommended=None,
        nearest="gpu-only",
        saves_vs_gpu_only_pct=None,
        objective="cost",
        currency="EUR",
        load=LOAD,
        proof=None,
        compared_with=[],
        confidence=None,
        valleys=[],
        checklist=[],
        warnings=["kept"],
    )
    return msgspec.structs.replace(bare, **changes)


def test_a_searched_plan_comes_back_with_money_decision_confidence_valleys_and_checklist() -> None:
    made = complete(plan(CPU, GPU), TEAM, prices=PRICES)
    assert made.recommended == "cpu-only"
    assert made.nearest is None
    assert made.decision is not None
    assert made.decision.startswith("Stay on one machine")
    assert [cost.years for cost in made.fleets[0].tco or []] == [2, 3]
    assert made.confidence is not None
    assert made.confidence.survives is not None
    assert len(made.valleys) == 2
    assert made.valley_fill is not None
    assert len(made.checklist) == 5
    assert made.warnings[0] == "kept"
    assert msgspec.json.decode(encode_json(made), type=Plan) == made


def test_what_is_saved_against_the_gpu_alone_is_the_difference_of_the_totals() -> None:
    made = complete(plan(CPU, GPU), TEAM, prices=PRICES)
    cpu, gpu = (next(cost.total or 0 for cost in one.tco or [] if cost.years == 3) for one in made.fleets)
    assert made.saves_vs_gpu_only_pct == pytest.approx(100 * (1 - cpu / gpu))
    assert complete(plan(CPU), TEAM, prices=PRICES).saves_vs_gpu_only_pct is None


def test_the_interval_holds_the_total_and_a_thousand_cost_what_the_longest_horizon_says() -> None:
    made = complete(plan(CPU, GPU), TEAM, prices=PRICES).fleets[0]
    for cost in made.tco or []:
        assert cost.interval_95 is not None
        assert cost.total is not None
        assert cost.interval_95[0] < cost.total < cost.interval_95[1]
    assert made.cost_per_1000 is not None


def test_a_fleet_that_costs_a_little_less_than_the_recommended_one_is_spoken_of() -> None:
    other = fleet("2 x other", {"other": engine("cpu", 2, idle_w=0.0)})
    made = complete(plan(CPU, other), TEAM, prices=PRICES)
    assert made.recommended == "cpu-only"
    assert [line for line in made.warnings if line.startswith("2 x other costs ") and "within the 5%" in line]
    assert not [line for line in complete(plan(CPU, GPU), TEAM, prices=PRICES).warnings if " costs " in line]


def test_a_decision_on_disturbed_times_says_so_beside_it() -> None:
    entry = Entry(variant="v", engine="cpu", batch=1, latency_ms=Milliseconds(p50=1.0), basis="measured")
    made = Stamp(schema="latency/1", loadslice="1", machine={OTHERS: 74})
    times = LatencyTable(entries=[entry], stamp=made)
    said = complete(plan(CPU, GPU), TEAM, prices=PRICES, latency=times).decision
    assert "other processes took 74 % of the machine" in (said or "")


def test_a_wall_that_a_fleet_breaks_at_full_load_takes_it_out() -> None:
    tight = msgspec.structs.replace(TEAM, power=msgspec.structs.replace(TEAM.power, per_box_w=300.0))
    made = complete(plan(CPU, GPU), tight, prices=PRICES)
    assert made.recommended is None
    assert made.nearest == "cpu-only"
    assert (made.decision or "").endswith("The nearest is 2 x cpu, which breaks per_box_w (340 against 300).")
    assert [limit.met for limit in made.fleets[0].limits] == [False, True]
    assert made.confidence is None
    assert (made.valleys, made.valley_fill) == ([], None)


def test_missing_figures_are_warned_of_by_name_and_the_fleet_stays() -> None:
    bare = msgspec.structs.replace(TEAM, power=Power())
    made = complete(plan(CPU, GPU), bare, prices=PRICES)
    assert len(made.fleets) == 2
    assert made.fleets[0].missing_prices == ["power.tariff_per_kwh of the budget", "power.cooling_factor of the budget"]
    assert any("cpu-only: its cost is unknown, at least" in warning for warning in made.warnings)


@pytest.mark.parametrize(("objective", "wanted"), [("latency", "gpu-only"), ("cost", "cpu-only")])
def test_the_objective_decides_what_is_least(objective, wanted: str) -> None:
    made = complete(plan(CPU, GPU, objective=objective), TEAM, prices=PRICES)
    assert made.recommended == wanted
    # Confidence is of what is cheapest; of a fleet that was chosen for its latency it would say that others cost less.
    assert (made.confidence is None) == (objective != "cost")
    assert any("where cost is the objective only" in warning for warning in made.warnings) == (objective != "cost")


def test_the_scenario_is_told_with_every_score() -> None:
    made = complete(plan(CPU, GPU), TEAM, prices=PRICES)
    step = made.decision_path[-1]
    assert step.question == "Which fleet is best in the scenario 'interactive'?"
    assert step.answer == "gpu-only; the objective decides, not the scenario"
    assert "cpu-only 0." in step.evidence


def test_offline_work_in_the_valleys_is_set_against_machines_of_its_own() -> None:
    job = msgspec.structs.replace(TEAM, offline=Offline(requests_per_day=400_000.0))
    made = complete(plan(CPU, GPU), job, prices=PRICES).valley_fill
    assert made is not None
    assert made.fits is True
    assert made.separate == "1 x cpu"
    assert made.separate_total is not None
    assert made.power_total is not None
    assert made.saved == pytest.approx(made.separate_total - made.power_total)


def test_fleets_that_the_questions_rule_out_are_named_in_the_confidence() -> None:
    small = msgspec.structs.replace(TEAM, people=People(count=2, heterogeneous_experience=True))
    hybrid = fleet(
        "hybrid", {"cpu": engine("cpu", 1, idle_w=0.0, active_w=1.0), "gpu": engine("gpu", 1, price_purchase=1.0)}
    )
    made = complete(plan(hybrid, GPU), small, prices=PRICES)
    assert made.recommended == "gpu-only"
    assert made.confidence is not None
    assert "2 people" in made.confidence.left_out.get("hybrid", "")


def test_a_reference_plan_that_could_not_be_built_stays_in_the_table_without_money() -> None:
    none = fleet("npu-only", {}, boxes=0, meets_slo=None, latency_ms=LatencyMs(p50=None, p95=None, p99=None, mean=None))
    made = complete(plan(CPU, none), TEAM, prices=PRICES)
    assert made.fleets[1] == none
    assert made.confidence is not None
    assert made.confidence.left_out == {"npu-only": "it could not be built"}


SEEN = Observed(
    times_sd={"cpu": 0.5},
    times_seen={"cpu": [1.54, 2.14, 0.9]},
    tail="p99",
    tail_seen={"Hybrid": 1.9, "OpenVINO alone": 5.3},
    disturbed="other programs took part of this machine while it was measured: 44% (Hybrid)",
)


def test_what_a_study_was_wrong_by_widens_its_plan_and_is_said_in_the_decision() -> None:
    promised = Limit(name="p99_ms", limit=200.0, value=150.0, met=True, evidence="simulated")
    cpu = msgspec.structs.replace(CPU, limits=[promised])
    quiet, seen = (complete(plan(cpu, observed=one), TEAM, prices=PRICES) for one in (None, SEEN))
    assert quiet.confidence is not None
    assert seen.confidence is not None
    assert quiet.confidence.varied["time of cpu"] == "measured: sd 3%"
    assert seen.confidence.varied["time of cpu"].startswith(
        "measured; in the server they took 1.54, 2.14, 0.90 x what was expected: sd 51%, t with 3 degrees of freedom"
    )
    assert "1.90, 5.30 x" in seen.confidence.varied["simulated latency"]
    assert (seen.confidence.survives or 0) < 0.8 < (quiet.confidence.survives or 0)
    assert "study again on a quiet machine: loadslice study" in [one.name for one in seen.confidence.experiments]
    assert quiet.decision is not None
    assert seen.decision == (
        f"{quiet.decision} That is as simulated, and not if P99 is 5.3 times what is simulated, as it was for "
        "OpenVINO alone. But other programs disturbed the study's runs: repeat it on a quiet machine before deciding."
    )


def test_a_fleet_far_from_its_limit_is_not_doubted() -> None:
    far = Limit(name="p99_ms", limit=200.0, value=20.0, met=True, evidence="simulated")
    made = plan(observed=SEEN)
    assert made.doubt(msgspec.structs.replace(CPU, limits=[far])) is None


def test_an_npu_that_nobody_asked_about_the_model_keeps_the_promise_only_if() -> None:
    npu = fleet("npu-only", {"npu": engine("npu", 1)})
    made = complete(plan(npu, CPU), TEAM, prices=PRICES)
    told = {one.name: made.doubt(one) for one in made.fleets}
    assert (told["npu-only"] or "").startswith("only if its NPU runs the operators, which is not known: ")
    assert told["cpu-only"] is None


def proof(**changes: Any) -> Proof:
    bare = Proof(
        cheapest_proven=False, cost_per_hour=None, lower_bound_per_hour=None, solved=1, solve_s=0.0, simulated=2,
        bounded=0, dominated=0, requests_simulated=1, seconds=0.0, assumes=[],
    )  # fmt: skip
    return msgspec.structs.replace(bare, **changes)


def test_what_is_proven_and_what_not_is_one_claim() -> None:
    assert proof(cheapest_proven=True, searched_out=True).claim.startswith("the cheapest mix, proven")
    assert proof(searched_out=True).claim == (
        "the smallest mix, proven; whether it is the cheapest is open, for a price is not known"
    )
    assert "the cheapest was not sought" in proof(searched_out=True, cost_per_hour=1.0).claim
    assert "a search stopped" in proof(cost_per_hour=1.0).claim


def test_a_proof_of_another_fleet_than_the_recommended_one_names_it() -> None:
    one = msgspec.structs.replace(CPU, cost_per_hour=1.0)
    two = msgspec.structs.replace(GPU, cost_per_hour=2.0)
    made = plan(one, two, proof=proof(cheapest_proven=True, cost_per_hour=1.0), recommended="gpu-only")
    assert made.claim is not None
    assert "that is cpu-only" in made.claim
    assert made.proof is not None
    assert msgspec.structs.replace(made, recommended="cpu-only").claim == made.proof.claim


def test_a_safer_fleet_for_little_more_money_is_in_the_sentence_that_everybody_reads() -> None:
    tight = fleet(
        "cpu-only", {"cpu": engine("cpu", 2)}, latency_ms=LatencyMs(p50=60.0, p95=100.0, p99=199.0, mean=70.0)
    )
    wide = fleet("3 x cpu", {"cpu": engine("cpu", 3)}, latency_ms=LatencyMs(p50=60.0, p95=90.0, p99=120.0, mean=70.0))
    made = complete(plan(tight, wide), TEAM, prices=PRICES)
    assert made.recommended == "cpu-only"
    assert made.decision is not None
    assert "Safer is 3 x cpu, which costs" in made.decision
