import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.app.cli import run
from loadslice.profiles.calibration import shipped

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


def test_a_check_asks_for_the_shape_of_an_input_of_any_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the run would be of a single number, and no shape would be as inferred."""
    pytest.importorskip("onnxruntime")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos[:1], infos[1:])
    path = tmp_path / "any.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert run(["inspect", str(path), "--check"]) == 2
    assert "input 'x' has no fixed shape. Give one with --shape x=" in capsys.readouterr().err
    assert run(["inspect", str(path), "--shape", "x=2x3", "--check"]) == 0


def test_text_names_the_convention_and_the_device(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(model), "--shape", "x=3x64", "--device", "hailo-8", "--device", "nvidia-t4"]) == 0
    printed = capsys.readouterr().out
    assert "2 x 1.54 kMAC" in printed
    assert "modelled, not measured" in printed
    assert "operator support: unknown" in printed


def test_a_call_on_a_device_takes_its_launches_its_driver_and_states_its_error(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["inspect", str(model), "--shape", "x=3x64", "--device", "nvidia-l4"]
    assert run([*arguments, "--json"]) == 0
    fit = json.loads(capsys.readouterr().out)["devices"]["nvidia-l4"]
    made, known = fit["estimate"], shipped().kinds["gpu"].fit
    assert made["parts_ms"]["launch"] == pytest.approx(known.launch_ms)
    assert made["parts_ms"]["fixed"] == pytest.approx(known.fixed_ms)
    assert made["time_ms"] == pytest.approx(sum(made["parts_ms"].values()), rel=1e-3)
    assert any("ultralytics" in source for source in made["sources"])
    assert made["time_ms"] > 100 * fit["time_ms_modelled"]
    assert made["low_ms"] < 0.5 * made["time_ms"] < 2 * made["time_ms"] < made["high_ms"]
    assert run(arguments) == 0
    printed = capsys.readouterr().out
    assert "which no run reaches" in printed
    assert "a call takes about " in printed
    assert "95 times of 100 between" in printed


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


def test_measured_times_plan_the_slices(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    two = onnx.load(model)
    two.graph.node.append(helper.make_node("Relu", ["y"], ["z"], name="half_wave"))
    two.graph.output[0].name = "z"
    onnx.save(two, model)
    measure = ["inspect", str(model), "--shape", "x=3x64", "--measure", "--runs", "4", "--out", str(tmp_path / "out")]
    assert run([*measure, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    times = json.loads((tmp_path / "out" / "op-times.json").read_text(encoding="utf-8"))
    assert set(times["devices"]["cpu0"]["nodes_ms"]) == {"product", "half_wave"}
    assert sum(len(group["nodes"]) for group in document["measured"]["groups"]) == 2
    assert document["devices"]["local"]["nodes"][0]["bound"] in {"compute", "memory"}
    asked = ["slice", str(model), "--shape", "x=3x64", "--devices", "cpu0,gpu0=nvidia-t4"]
    assert run([*asked, "--times", str(tmp_path / "out" / "op-times.json"), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["devices"]["cpu0"]["basis"] == "measured"


def test_measuring_wants_every_shape(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(model), "--measure"]) == 2
    assert "Give a shape for x with --shape" in capsys.readouterr().err


def test_recorded_shapes_choose_the_buckets(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = [{"x": [rows, 64]} for rows in [1] * 60 + [32] * 39 + [500]]
    recorded = tmp_path / "shapes.jsonl"
    recorded.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert run(["inspect", str(model), "--traffic", str(recorded), "--json"]) == 0
    traffic = json.loads(capsys.readouterr().out)["traffic"]
    (used,) = traffic["sizes"]
    assert (used["input"], used["axis"], used["symbol"]) == ("x", 0, "n")
    assert used["chosen"] == {"buckets": [1, 32], "padding_share": 0}
    assert (traffic["shapes"], traffic["outside_share"]) == (2, 0.01)


def test_a_traces_column_stands_for_a_symbol(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"arrival_s": float(index), "items": 1 + index % 4} for index in range(40)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert run(["inspect", str(model), "--traffic", str(trace), "--dim", "n=items"]) == 0
    printed = capsys.readouterr().out
    assert "x[0] (n), column items: 1 to 4, p50 2, p99 4, 4 distinct" in printed
    assert "* 1 2 4: 10.0% padding" in printed
    assert "3 static shapes; 0.00% of the requests outside" in printed


@pytest.mark.parametrize(
    ("line", "dims", "words"),
    [
        ('{"x": [0, 64]}', [], "request 1: x[0] is 0"),
        ('{"x": "wide"}', [], "line 1"),
        ('{"z": [1, 64]}', [], "no size for any open dimension of the model (x[0])"),
        ('{"arrival_s": 0.0}', [], "Add --dim n=tokens_in"),
        ('{"arrival_s": 0.0}', ["--dim", "n=items"], "has no `items` for any request"),
        ('{"arrival_s": 0.0, "items": 1}', ["--dim", "m=items"], "no such open dimension; the model has n"),
        ('{"arrival_s": 0.0}', ["--dim", "n=rows"], "with a column of items"),
    ],
)
def test_traffic_that_says_nothing_of_the_model_is_refused(
    model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, dims: list[str], words: str
) -> None:
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text(line + "\n", encoding="utf-8")
    assert run(["inspect", str(model), "--traffic", str(recorded), *dims]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_a_sample_gives_shapes_and_is_checked(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.ones((5, 64), np.float32))
    np.savez(tmp_path / "other.npz", y=np.ones((5, 64), np.float32))
    np.savez(tmp_path / "wide.npz", x=np.ones((5, 64), np.float64))
    assert run(["inspect", str(model), "--sample", str(tmp_path / "good.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops"] == 2 * 5 * 64 * 8
    for name, words in (("other", "has no array 'x'"), ("wide", "'x' is float64, the model wants float32")):
        assert run(["inspect", str(model), "--sample", str(tmp_path / f"{name}.npz")]) == 2
        assert words in capsys.readouterr().err
