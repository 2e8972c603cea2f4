from pathlib import Path

import msgspec
import polars as pl
import pytest

from loadslice.app import plan_evidence
from loadslice.graph.inspect import inspect
from loadslice.plan.decision.facts import gather
from loadslice.plan.decision.tree import decide
from loadslice.spec.budget import Budget, Slo
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json
from loadslice.spec.inspection import DeviceFit, Inspection
from loadslice.spec.pipeline import load as load_pipeline


def test_npus_are_told_from_other_devices_by_the_catalogue_or_by_who_was_asked() -> None:
    empty = {field.name: None for field in msgspec.structs.fields(Inspection) if field.required}
    devices = {
        "rockchip-rk3588-npu": DeviceFit(bound=None, fits="onchip", precision="int8", supported_flops_share=1.0),
        "nvidia-l4": DeviceFit(bound=None, fits="device", precision="fp16"),
        "qnn-htp:soc_model=60": DeviceFit(bound=None, fits=None, precision=None, source="the vendor's compiler"),
        "local": DeviceFit(bound=None, fits="device", precision="fp32"),
    }
    made = Inspection(**(empty | {"devices": devices}))
    assert plan_evidence._npus([made]) == ["rockchip-rk3588-npu", "qnn-htp:soc_model=60"]


def test_a_file_of_another_kind_is_one_line_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "squeeze.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"squeeze\.json: '.*' is missing"):
        plan_evidence.read(None, [], [path])


def test_rows_of_a_request_are_those_that_99_of_100_do_not_exceed() -> None:
    frame = pl.DataFrame({"arrival_s": [float(i) for i in range(200)], "items": [1] * 197 + [9, 9, 9]})
    assert plan_evidence.rows_p99(frame) == 9
    assert plan_evidence.rows_p99(frame.drop("items")) is None


def test_a_study_s_inspections_of_all_its_models_are_one_file(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[3] / "examples" / "inspection"
    made = [inspect(folder / "head.onnx", {}, []), inspect(folder / "backbone.int8.onnx", {}, [])]
    path = tmp_path / "inspections.json"
    path.write_bytes(encode_json(made))
    assert plan_evidence.read(None, [path], []).inspections == made


def test_a_plan_counts_the_parameters_of_its_pipeline_s_own_models() -> None:
    folder = Path(__file__).resolve().parents[3] / "examples" / "inspection"
    pipeline = load_pipeline(folder / "pipeline.cpu.yaml")
    made = plan_evidence.of_models(pipeline, folder)
    assert {Path(one.model).name for one in made} == {"backbone.int8.onnx", "head.onnx"}
    facts = gather(Budget(slo=Slo(p95_ms=400.0)), inspections=made, rate_per_s=7.0)
    assert facts.parameters is not None
    decision = decide(facts)
    light = next(step for step in decision.path if step.question == "Is the model small and the traffic light?")
    assert (light.answer, decision.kind) == ("yes", "cpu")
    assert plan_evidence.of_models(pipeline, folder / "nowhere") == []
