import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadslice.spec import (
    access,
    budget,
    coverage,
    device,
    evaluation,
    kinds,
    language,
    latency,
    offers,
    pipeline,
    portrait,
    prices,
    rollout,
    variant,
    watch,
)
from loadslice.spec.errors import InputError

TYPES: dict[str, Any] = {
    one.__name__: one
    for one in (
        language.Language, pipeline.Pipeline, offers.Offers, budget.Budget, prices.Prices, access.Tokens,
        evaluation.Evaluation, watch.WatchPlan, rollout.RolloutPlan, device.Device, coverage.OperatorTable,
        portrait.Portrait, latency.LatencyTable, variant.Manifest,
    )
}  # fmt: skip


def test_keys_tell_each_kind_from_every_other() -> None:
    assert [one.type_name for one in kinds.KINDS] == list(TYPES)
    for one in kinds.KINDS:
        fitting = [
            name for name, kind in TYPES.items() if one.keys <= {field.name for field in msgspec.structs.fields(kind)}
        ]
        assert fitting == [one.type_name]


BUDGET = "slo: {latency_ms: {p95: 100}}\n"
PIPELINE = "version: 1\npipeline: x\nengines: {}\nstages: []\n"


@pytest.mark.parametrize(
    ("load", "text", "said"),
    [
        (pipeline.load, BUDGET, "this is a budget; a pipeline is wanted here."),
        (watch.load_plan, BUDGET, "this is a budget; a watch plan is wanted here."),
        (access.load, PIPELINE, "this is a pipeline; a tokens file is wanted here."),
        (budget.load, PIPELINE, "this is a pipeline; a budget is wanted here."),
        (latency.load, '{"stamp": {"schema": "drills/1"}}', "this is a document of the schema drills/1; a profile"),
        (pipeline.load, b"\x08\x08\x12\x07pytorch\x1a", "this is an ONNX model; a pipeline is wanted here."),
        (latency.load, b"PAR1\x15\x04", "this is a Parquet file; a profile (latency.json) is wanted here."),
        (pipeline.load, PIPELINE.replace("1", "2"), "version: wants 1, not 2"),
        (pipeline.load, PIPELINE + "nonsense: 1\n", "unknown key 'nonsense'"),
    ],
)
def test_a_file_in_the_wrong_place_is_told_for_what_it_is(
    load: Any, text: str | bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}: {said}")


def test_a_large_model_is_told_for_a_model_and_not_for_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch" + bytes(2 << 20))
    with pytest.raises(InputError, match="this is an ONNX model"):
        pipeline.load(path)


def test_all_values_that_a_key_takes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("version: 1\npipeline: x\nengines: {a: {backend: x, isolation: nonsense}}\nstages: []\n")
    with pytest.raises(InputError, match=r"engines\.a\.isolation: wants one of '.*, not 'nonsense'"):
        pipeline.load(path)


def test_a_document_that_is_not_there_names_the_command_that_makes_one(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    said = f"{path}: no such file. `loadslice profile PIPELINE --out {tmp_path}` makes one."
    with pytest.raises(InputError, match=re.escape(said)):
        latency.load(path)
    with pytest.raises(InputError, match="cannot be read, no such file"):
        budget.load(tmp_path / "budget.yaml")
