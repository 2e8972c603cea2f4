import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from loadslice.app.cli import run
from loadslice.plan.fleet import specimen
from loadslice.spec import pipeline as pipelines
from loadslice.spec.files import encode_json


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    draws = np.random.default_rng(5)
    frame = pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / 150, 600))})
    frame.with_columns(pl.col("arrival_s") - pl.col("arrival_s").first()).write_parquet(folder / "traffic.parquet")
    stage = {"name": "classify", "variant": "classify", "engines": ["cpu", "npu"]}
    engines = {"cpu": {"backend": "twin"}, "npu": {"backend": "twin"}}
    document = {"version": 1, "pipeline": "small", "engines": engines, "stages": [stage], "deadline_ms": 1000}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    (folder / "latency.json").write_bytes(encode_json(specimen.latency()))
    (folder / "offers.yaml").write_text(
        "version: 1\ncurrency: EUR\n"
        "boxes: {server: {cores: 32, cards: 4, price_purchase: 4000, idle_w: 80}}\n"
        "engines:\n"
        "  cpu: {kind: cpu, box: server, cores: 8, price_purchase: 0, idle_w: 8, active_w: 60, count_max: 3}\n"
        "  npu: {kind: npu, box: server, cards: 1, price_purchase: 300, idle_w: 1, active_w: 8, count_max: 3}\n"
    )
    (folder / "budget.yaml").write_text(
        "slo: {p99_ms: 60}\npower: {tariff_per_kwh: 0.25, cooling_factor: 1.4}\nmoney: {currency: EUR}\n"
    )
    return folder


def arguments(files: Path, *more: str, **changed: Path) -> list[str]:
    named = {"pipeline": "pipeline.yaml", "budget": "budget.yaml", "offers": "offers.yaml", "profile": "latency.json"}
    given = [part for key, name in named.items() for part in (f"--{key}", str(changed.get(key, files / name)))]
    return ["plan", str(files / "traffic.parquet"), *given, "--jobs", "2", *more]


def test_a_plan_ends_in_a_document_and_a_pipeline_that_simulates_as_it_is(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments(files, "--json", "--out", str(tmp_path))) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["recommended"] is not None
    assert [fleet["name"] for fleet in plan["fleets"]][:4] == ["cpu-only", "gpu-only", "npu-only", "hybrid"]
    assert plan["proof"]["cheapest_proven"]
    assert plan == json.loads((tmp_path / "plan.json").read_text())
    pipelines.load(tmp_path / "pipeline.yaml")
    trace = str(files / "traffic.parquet")
    pair = ["--pipeline", str(tmp_path / "pipeline.yaml"), "--profile", str(tmp_path / "latency.json")]
    assert run(["simulate", trace, *pair, "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    fleet = next(fleet for fleet in plan["fleets"] if fleet["name"] == plan["recommended"])
    assert simulated["latency_ms"]["p99"] == pytest.approx(fleet["latency_ms"]["p99"])
    assert run(arguments(files, "--json", "--out", str(tmp_path))) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["recommended"] == plan["recommended"]


def test_a_budget_nothing_meets_is_exit_3_with_the_nearest_and_what_binds(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "budget.yaml").write_text("slo: {p99_ms: 2}\nmoney: {currency: EUR}\n")
    assert run(arguments(files, budget=tmp_path / "budget.yaml")) == 3
    text = capsys.readouterr().out
    assert "binds: p99_ms" in text


def test_neither_a_pipeline_nor_a_model_is_one_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traffic, budget = str(files / "traffic.parquet"), str(files / "budget.yaml")
    assert run(["plan", traffic, "--budget", budget]) == 2
    assert capsys.readouterr().err == "loadslice: give --pipeline FILE, or --model FILE (once or several times).\n"


def test_a_wrong_piece_of_evidence_is_refused_before_anything_is_simulated(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = str(files / "budget.yaml")
    assert run(arguments(files, "--out", str(tmp_path / "out"), "--inspection", wrong)) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"loadslice: {wrong}")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("currency: EUR", "currency: USD"), "USD"),
        (("active_w: 60", "active_w: 60000"), "neither kilowatts nor milliwatts"),
        (("box: server, cores", "box: rack, cores"), "'rack' is not a box here"),
        (("idle_w: 8,", "idle_w: 80,"), "above active_w"),
    ],
)
def test_offers_that_cannot_be_meant_are_refused(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], says: str
) -> None:
    offers = tmp_path / "offers.yaml"
    offers.write_text((files / "offers.yaml").read_text().replace(*change))
    assert run(arguments(files, offers=offers)) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_device_without_the_precision_is_named_and_left_out(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = files / "hailo.yaml"
    text = (files / "offers.yaml").read_text()
    changed.write_text(text.replace("kind: npu, box", "kind: npu, device: hailo-8, precision: fp32, box"))
    assert run(arguments(files, "--json", offers=changed)) == 0
    plan = json.loads(capsys.readouterr().out)
    assert any("states no fp32 rate" in warning for warning in plan["warnings"])
    fleet = next(fleet for fleet in plan["fleets"] if fleet["name"] == plan["recommended"])
    assert list(fleet["engines"]) == ["cpu"]


MODELS = Path(__file__).resolve().parents[4] / "examples" / "inspection"


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    names = ["head", "backbone.int8"]
    times_s = np.cumsum(np.random.default_rng(0).exponential(1 / 40, 120))
    frame = pl.DataFrame({"arrival_s": times_s - times_s[0], "source": [names[i % 2] for i in range(120)]})
    frame.write_parquet(tmp_path / "two.parquet")
    (tmp_path / "budget.yaml").write_text("slo: {p99_ms: 500}\nmoney: {currency: EUR}\n")
    return ["plan", str(tmp_path / "two.parquet"), "--budget", str(tmp_path / "budget.yaml"), "--jobs", "1", "--json"]


def test_a_model_without_a_profile_is_planned_on_modelled_times_with_their_error(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    model = ["--model", str(MODELS / "head.onnx"), "--device", "nvidia-l4", "--out", str(out)]
    assert run([*asked, *model]) == 0
    plan = json.loads(capsys.readouterr().out)
    fleet = next(fleet for fleet in plan["fleets"] if fleet["name"] == plan["recommended"])
    assert fleet["basis"] == "modelled"
    low, high = fleet["interval_95"]["latency_ms.p99"]
    assert low < high
    assert plan["pipelines"] == ["pipeline.yaml"]
    assert pipelines.load(out / "pipeline.yaml").stages[0].model is not None


def test_several_models_on_one_fleet_have_a_pipeline_each(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    models = [part for name in ("head", "backbone.int8") for part in ("--model", str(MODELS / f"{name}.onnx"))]
    assert run([*asked, *models, "--out", str(out)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["pipelines"] == ["pipeline.head.yaml", "pipeline.backbone.int8.yaml"]
    assert any("do not know each other's queues" in warning for warning in plan["warnings"])
    for name in plan["pipelines"]:
        loaded = pipelines.load(out / name)
        assert (out / str(loaded.stages[0].model)).is_file()
        pair = ["--pipeline", str(out / name), "--profile", str(out / "latency.json"), "--json"]
        assert run(["simulate", str(tmp_path / "two.parquet"), *pair]) == 0
        assert json.loads(capsys.readouterr().out)["outcomes"]["completed"] == 120


@pytest.mark.parametrize("arrival_s", [[0.0], [0.0] * 50])
def test_traffic_of_one_instant_has_a_plan(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrival_s: list[float]
) -> None:
    pl.DataFrame({"arrival_s": arrival_s}).write_parquet(tmp_path / "t.parquet")
    (tmp_path / "budget.yaml").write_text("slo: {p99_ms: 900}\nmoney: {currency: EUR}\n")
    given = arguments(files, "--json", budget=tmp_path / "budget.yaml")
    given[1] = str(tmp_path / "t.parquet")
    assert run(given) == 0
    plan = json.loads(capsys.readouterr().out)
    fleet = next(fleet for fleet in plan["fleets"] if fleet["name"] == plan["recommended"])
    assert sum(engine["count"] for engine in fleet["engines"].values()) == 1
