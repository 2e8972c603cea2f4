import msgspec
import pytest

from loadslice.plan.decision.facts import best_npu, gather
from loadslice.spec.budget import Budget, ModelLife, Slo
from loadslice.spec.inspection import DeviceFit, Inspection, Unsupported

BUDGET = Budget(slo=Slo(p95_ms=300.0))


def inspection(parameters: int | None = 1000, **devices: DeviceFit) -> Inspection:
    empty = {field.name: None for field in msgspec.structs.fields(Inspection) if field.required}
    return Inspection(
        **(empty | {"parameters": parameters, "devices": {k.replace("_", "-"): v for k, v in devices.items()}})
    )


def fit(share: float | None, fits: str | None = "onchip", fallen: int = 0) -> DeviceFit:
    gone = [Unsupported(node=f"n{index}", op="Resize", reason="none", source="table") for index in range(fallen)]
    return DeviceFit(
        supported_flops_share=share, unsupported=gone, bound=None, fits=fits, precision="int8", source="vendor's table"
    )


def test_parameters_counted_in_the_file_go_before_those_of_the_budget() -> None:
    stated = msgspec.structs.replace(BUDGET, model=ModelLife(parameters=3e9))
    counted = gather(stated, inspections=[inspection(2_000_000)]).parameters
    assert counted is not None
    assert (counted.value, counted.basis) == (2e6, "measured")
    told = gather(stated).parameters
    assert told is not None
    assert (told.value, told.basis) == (3e9, "stated")
    assert "3 billion" in told.evidence
    assert gather(BUDGET).parameters is None


def test_the_npu_that_matches_best_is_taken_by_its_worst_model() -> None:
    models = [
        inspection(a_npu=fit(1.0), b_npu=fit(0.99)),
        inspection(a_npu=fit(0.5, fallen=3), b_npu=fit(0.98, "device")),
    ]
    found = best_npu(models, ["a-npu", "b-npu"])
    assert found is not None
    assert (found.value.device, found.value.supported_flops_share, found.value.fits) == ("b-npu", 0.98, "device")
    assert "vendor's table" in found.evidence


def test_an_npu_that_nobody_could_ask_about_is_unknown_and_not_a_match() -> None:
    assert best_npu([inspection(a_npu=fit(None))], ["a-npu"]) is None
    assert best_npu([inspection(a_npu=fit(1.0)), inspection()], ["a-npu"]) is None
    assert best_npu([], ["a-npu"]) is None


def test_one_model_of_unknown_fit_makes_the_fit_of_all_unknown() -> None:
    found = best_npu([inspection(a_npu=fit(1.0)), inspection(a_npu=fit(1.0, None))], ["a-npu"])
    assert found is not None
    assert found.value.fits is None
    assert "unknown whether it fits" in found.evidence


def test_stated_rates_rows_and_watts_become_facts_with_their_words() -> None:
    facts = gather(BUDGET, rate_per_s=12.0, rows=2.0, utilisation=0.3, box_w={"gpu": 260.0})
    assert facts.rate_per_s is not None
    assert facts.rate_per_s.value == pytest.approx(12.0)
    assert facts.gpu_box_w is not None
    assert "260 W" in facts.gpu_box_w.evidence
    assert facts.cpu_box_w is None
    assert facts.utilisation is not None
    assert "30% busy" in facts.utilisation.evidence
