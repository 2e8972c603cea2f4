"""Shared operators measured on this machine's own engines."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.app.cli import run
from loadslice.app.slice_share import _both_ns
from loadslice.graph.split import split_node
from loadslice.profiles.banks import curve, shares
from loadslice.spec.pipeline import Engine
from loadslice.spec.slices import BankSplit

pytest.importorskip("scipy")
pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

WIDE, ROWS = 256, 64


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A product large enough to be shared, and an activation after it."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((WIDE, WIDE)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
            helper.make_node("Relu", ["product"], ["y"], name="relu"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, WIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, WIDE])],
        [numpy_helper.from_array(weight, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("by", ["channel", "batch"])
def test_a_curve_has_both_wholes_and_divisions_of_whole_tiles(model: Path, by: str) -> None:
    units = WIDE if by == "channel" else ROWS
    document = onnx.load(model)
    document.graph.node.pop()
    document.graph.output[0].name = "product"
    engine = Engine(backend="onnxruntime")
    parts = shares(units, 16)
    points = curve(document, "product", by, units, parts, (engine, engine))  # type: ignore[arg-type]
    assert [point.first_units for point in points] == [0, units // 4, units // 2, 3 * units // 4, units]
    assert (points[0].first_ms, points[-1].second_ms) == (None, None)
    for point in points[1:-1]:
        assert point.first_ms is not None
        assert point.second_ms is not None
        assert point.together_ms > 0
        assert min(point.sync_ms, point.join_ms, point.slower_by) >= 0
    assert split_node(document, "product", units // 2, by)  # type: ignore[arg-type]


def test_measured_splits_replace_modelled_ones_and_say_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["slice", "m.onnx", "--devices", "a=local,b=local", "--share", "channel", "--measure"]
    assert run([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    dropped = [note for note in plan["notes"] if note.startswith("product: measured, sharing does not pay")]
    assert len(plan["splits"]) + len(dropped) == 1
    for split in plan["splits"]:
        assert split["basis"] == "measured"
        assert split["split_ms"] < split["alone_ms"]
        assert len(split["curve"]) == 5
    told = next(note for note in plan["notes"] if note.startswith("of 1 operators measured"))
    assert f"sharing pays for {len(plan['splits'])}: " in told


@pytest.mark.parametrize(
    ("units", "tile", "parts"), [(64, 16, [16, 32, 48]), (20, 16, [16]), (16, 16, []), (5, 1, [1, 2, 4])]
)
def test_divisions_are_whole_tiles_and_leave_something_to_both(units: int, tile: int, parts: list[int]) -> None:
    assert shares(units, tile) == parts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "a=local,b=nvidia-l4", "--share", "channel", "--measure"], "b=nvidia-l4 is not here"),
        (["--devices", "a=local,b=local", "--measure"], "add --share channel"),
    ],
)
def test_measuring_what_is_not_here_is_refused(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(["slice", "m.onnx", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("basis", "expected_ns"), [("measured", 600), ("modelled", 3_000_000)])
def test_what_sharing_leaves_is_a_share_of_the_plans_own_times(basis: str, expected_ns: int) -> None:
    """A machine that was slow while it was measured must not make the other operators look quick."""
    split = BankSplit(
        node="n", op="Conv", by="channel", units=32, first_units=16, tile=16, devices=["a", "b"], split_ms=3.0,
        alone_ms=5.0, basis=basis,  # type: ignore[arg-type]
    )  # fmt: skip
    assert _both_ns(split, np.array([1000, 2000])) == expected_ns
