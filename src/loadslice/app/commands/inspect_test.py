import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.app.cli import run

CONTRACT = {
    "model", "sha256", "opset", "nodes", "parameters", "weight_bytes", "flops", "bytes_moved",
    "intensity_flop_per_byte", "peak_activation_bytes", "dynamic_inputs", "ops", "devices",
}  # fmt: skip
DEVICE_CONTRACT = {
    "supported_nodes_share", "supported_flops_share", "unsupported", "segments", "cuts", "transfer_bytes", "bound",
    "fits", "source",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(np.ones((64, 8), np.float32), "w")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_json_has_the_keys_of_the_contract(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = run(["inspect", str(model), "--shape", "x=3x64", "--device", "nvidia-l4", "--json", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    document = json.loads(printed)
    assert code == 0
    assert document.keys() >= CONTRACT
    assert document["devices"]["nvidia-l4"].keys() >= DEVICE_CONTRACT
    assert document["devices"]["nvidia-l4"]["unsupported"] is None
    assert document["flops"] == 2 * 3 * 64 * 8
    assert (tmp_path / "inspection.json").read_text(encoding="utf-8") == printed


def test_text_without_shapes_says_which_to_give(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(model)]) == 0
    assert "--shape x=Nx64" in capsys.readouterr().out


def test_inferred_shapes_are_checked_against_a_run(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert run(["inspect", str(model), "--shape", "x=3x64", "--check"]) == 0
    assert "shapes       2 of 2 as in one run of onnxruntime" in capsys.readouterr().out


def test_text_names_the_convention_and_the_device(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(model), "--shape", "x=3x64", "--device", "hailo-8", "--device", "nvidia-t4"]) == 0
    printed = capsys.readouterr().out
    assert "2 x 1.54 kMAC" in printed
    assert "modelled, not measured" in printed
    assert "operator support: unknown" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "x3x64"], "is not of the form"),
        (["--shape", "x=3xa"], "is not of the form"),
        (["--shape", "x=-3x64"], "is not of the form"),
        (["--shape", "x=3x64", "--shape", "x=4x64"], "twice"),
        (["--shape", "x=3x65"], "fixed at 64"),
        (["--device", "nvidia-l5"], "nvidia-l4"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["inspect", str(model), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert words in printed.err


def test_a_model_that_is_none_is_exit_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").write_text("not a model", encoding="utf-8")
    assert run(["inspect", str(tmp_path / "m.onnx")]) == 2
    assert run(["inspect", "package:no_such_package/m.onnx"]) == 2
    assert run(["inspect", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
