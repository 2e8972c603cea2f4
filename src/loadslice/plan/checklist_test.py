import msgspec
import pytest

from loadslice.plan.checklist import STEPS, checklist
from loadslice.plan.decision.facts import Fact, Facts, NpuMatch
from loadslice.plan.money.specimen import BUDGET, PRICES, engine, fleet
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.plan_money import YearCost
from loadslice.spec.variant import MetricFigure, Scheme, Squeeze, Variant

FACTS = Facts(budget=BUDGET)
CPU = fleet("cpu-only", {"cpu": engine("cpu", 2)})
GPU = fleet("gpu-only", {"gpu": engine("gpu", 1)})


def variant(bits: int, *, shipped: bool) -> Variant:
    return Variant(
        name=f"m-int{bits}",
        target="cpu-int8" if bits == 8 else "cpu-int4",
        path=None,
        sha256=None,
        engine=None,
        scheme=Scheme(weight_bits=bits, activation_bits=8, tool="t"),
        speedup_vs_untuned=3.0,
        metric=MetricFigure(name="top1", source=0.9, variant=0.89 if shipped else 0.5),
        sqnr_db=None,
        shipped=shipped,
        why="",
    )


def squeeze(*variants: Variant) -> Squeeze:
    empty = {field.name: None for field in msgspec.structs.fields(Squeeze) if field.required}
    return Squeeze(**(empty | {"model": "m.onnx", "floor": "top1>=0.88", "variants": list(variants)}))


def table(basis: str, *engines: str) -> LatencyTable:
    times = Milliseconds(p50=4.0)
    return LatencyTable(
        entries=[
            Entry(variant=stage, engine=name, batch=1, latency_ms=times, basis=basis)  # type: ignore[arg-type]
            for name in engines
            for stage in ("detect", "read")
        ]
    )


def state(made, step: int) -> tuple[str, str]:
    assert [item.step for item in made] == list(STEPS)
    return made[step - 1].state, made[step - 1].evidence


def test_with_nothing_measured_every_step_is_open_and_names_the_next_command() -> None:
    made = checklist([], FACTS)
    assert [item.state for item in made] == ["open", "open", "open", "not needed", "open"]
    assert "loadslice squeeze" in made[0].evidence
    assert "loadslice inspect" in made[2].evidence


def test_a_shipped_int8_variant_is_done_and_int4_is_told_beside_it() -> None:
    only8 = state(checklist([], FACTS, squeezes=[squeeze(variant(8, shipped=True))]), 1)
    assert only8 == (
        "done",
        "m.onnx: INT8 holds: top1 0.89 against 0.9, 3 times as fast; INT4 not tried; floor top1>=0.88",
    )
    both = state(checklist([], FACTS, squeezes=[squeeze(variant(8, shipped=True), variant(4, shipped=False))]), 1)
    assert both[0] == "done"
    assert "INT4 misses the floor: top1 0.5" in both[1]


def test_a_loss_that_is_too_large_is_failed_for_one_model_of_two() -> None:
    made = checklist([], FACTS, squeezes=[squeeze(variant(8, shipped=True)), squeeze(variant(8, shipped=False))])
    assert state(made, 1)[0] == "failed"


def test_the_processor_is_done_on_measured_times_only_and_failed_where_it_breaks_the_promise() -> None:
    assert state(checklist([CPU], FACTS, latency=table("measured", "cpu")), 2) == (
        "done",
        "2 x cpu: 20 requests/s, P50 40 ms, P99 120 ms on measured times; it keeps the promise",
    )
    late = msgspec.structs.replace(CPU, meets_slo=False)
    assert state(checklist([late], FACTS, latency=table("measured", "cpu")), 2)[0] == "failed"
    assert state(checklist([CPU], FACTS, latency=table("modelled", "cpu")), 2)[0] == "open"


def test_an_engine_whose_times_have_another_name_is_found_by_it() -> None:
    made = checklist([CPU], FACTS, latency=table("modelled", "ov"), runs_by={"cpu": "ov"})
    assert state(made, 2)[0] == "open"


@pytest.mark.parametrize(
    ("share", "fits", "wanted"), [(1.0, "onchip", "done"), (0.9, "device", "failed"), (1.0, "no", "failed")]
)
def test_the_npu_step_follows_operator_match_and_fit_and_tells_the_hours(share: float, fits, wanted: str) -> None:
    match = Fact(NpuMatch("rk3588", share, 0, fits), "rk3588 runs it", "modelled")
    made = checklist([], Facts(budget=BUDGET, npu=match), prices=PRICES)
    assert state(made, 3) == (wanted, "rk3588 runs it; 120 h of adaptation")
    unknown = checklist([], Facts(budget=BUDGET, npu=match))
    assert "not stated" in state(unknown, 3)[1]


def test_no_npu_is_needed_where_the_budget_allows_none() -> None:
    allowed = Facts(budget=msgspec.structs.replace(BUDGET, devices=["nvidia-l4"]))
    assert state(checklist([], allowed), 3)[0] == "not needed"


def test_a_borrowed_gpu_is_done_with_utilisation_batch_one_and_watts_and_failed_when_idle() -> None:
    measured = table("measured", "gpu")
    assert state(checklist([GPU], FACTS, latency=measured, box_w={"gpu": 340.0}), 4) == (
        "done",
        "50% used, batch 1 takes 8 ms over 2 stages, its box draws 340 W at full load",
    )
    idle = fleet("gpu-only", {"gpu": engine("gpu", 1, utilisation=0.2)})
    failed = state(checklist([idle], FACTS, latency=measured, box_w={"gpu": 340.0}), 4)
    assert failed[0] == "failed"
    assert "optimise what is there instead" in failed[1]
    assert state(checklist([GPU], FACTS, latency=measured), 4)[0] == "open"
    assert state(checklist([GPU], FACTS, latency=table("modelled", "gpu"), box_w={"gpu": 1.0}), 4)[0] == "open"
    assert state(checklist([GPU], FACTS, box_w={"gpu": 1.0}), 4)[1].startswith("no time at batch 1")


def test_ownership_is_done_when_every_fleet_that_keeps_the_promise_has_a_price() -> None:
    parts = {"depreciation": None, "power": None, "cooling": None, "space": None, "migration": None, "upkeep": None}
    known = YearCost(years=3, total=12_000.0, purchase=None, **parts)
    unknown = YearCost(years=3, total=None, purchase=None, missing=["the price of gpu"], **parts)
    made = checklist([msgspec.structs.replace(CPU, tco=[known])], FACTS)
    assert state(made, 5) == ("done", "over three years: cpu-only 12,000")
    open_ = checklist([msgspec.structs.replace(CPU, tco=[known]), msgspec.structs.replace(GPU, tco=[unknown])], FACTS)
    assert state(open_, 5) == ("open", "prices are missing: gpu-only: the price of gpu")
    assert state(checklist([msgspec.structs.replace(CPU, meets_slo=False)], FACTS), 5)[0] == "failed"
