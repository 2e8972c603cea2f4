"""The command on a small transformer: its figures, its files, and every bad input in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.app.cli import run
from loadslice.app.slice_problem import open_model
from loadslice.graph.specimen import transformer
from loadslice.profiles.calibration import shipped
from loadslice.spec.files import decode_json, sha256_file, write_bytes
from loadslice.spec.slices import SlicePlan

pytest.importorskip("scipy")

SHAPES = ["--shape", "ids=2x12", "--shape", "mask=2x12"]
CATALOGUE = ["--devices", "gpu0=nvidia-l4,npu0=huawei-ascend-310p-atlas-300i-pro"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "transformer.onnx"
    document = transformer()
    for index, node in enumerate(document.graph.node):
        node.name = f"{node.op_type}_{index}"
    write_bytes(path, document.SerializeToString())
    return path


@pytest.fixture
def times(model: Path, tmp_path: Path) -> Path:
    """The accelerator is ten times faster at products, and cannot do Softmax or LayerNormalization."""
    opened = open_model(model, {"ids": [2, 12], "mask": [2, 12]})
    cpu: dict[str, float | None] = {}
    npu: dict[str, float | None] = {}
    for key, step in zip(opened.graph.keys, opened.graph.ops, strict=True):
        product = step.node.op_type == "MatMul"
        cpu[key] = 1.0 if product else 0.01
        npu[key] = None if step.node.op_type in {"Softmax", "LayerNormalization"} else 0.1 if product else 0.01
    link = {"bytes_per_s": 1e9, "sync_us": 20.0, "basis": "measured"}
    document = {
        "model_sha256": opened.sha256,
        "shapes": {"ids": [2, 12], "mask": [2, 12]},
        "devices": {
            "cpu0": {"basis": "measured", "source": "one thread", "nodes_ms": cpu},
            "npu0": {"basis": "measured", "source": "vendor profiler", "nodes_ms": npu, "link": link},
        },
    }
    path = tmp_path / "times.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def plan_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["slice", *arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def rows(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in plan["assignments"]}


def test_measured_times_are_used_and_every_way_is_compared(
    model: Path, times: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of([str(model), "--devices", "cpu0,npu0", "--times", str(times), *SHAPES], capsys)
    found = rows(plan)
    assert list(found) == ["cpu0 only", "npu0 only", "priority", "fastest", "legal cuts", "minimum cut"]
    assert plan["devices"]["npu0"]["basis"] == "measured"
    assert plan["devices"]["npu0"]["source"] == "vendor profiler"
    assert found["cpu0 only"]["latency_ms"] == pytest.approx(24 * 1.0 + 31 * 0.01)
    assert found["npu0 only"]["latency_ms"] is None
    assert "cannot run 6 of 55" in found["npu0 only"]["reason"]
    best = found[plan["chosen"]]["latency_ms"]
    assert best == found["minimum cut"]["latency_ms"]
    assert found["minimum cut"]["gap_pct"] == 0
    for row in found.values():
        if row["latency_ms"] is not None:
            assert row["latency_ms"] >= best
            assert row["latency_ms"] == pytest.approx(row["compute_ms"] + row["copy_ms"] + row["sync_ms"])
            assert row["cuts"] == row["slices"] - 1
    greedy = found["priority"]
    assert plan["fragmentation_ms"] == pytest.approx(greedy["copy_ms"] + greedy["sync_ms"])
    assert plan["greedy_excess_pct"] == pytest.approx(100 * (greedy["latency_ms"] / best - 1))


def test_slices_add_up_to_the_chosen_assignment(model: Path, times: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of([str(model), "--devices", "cpu0,npu0", "--times", str(times), *SHAPES], capsys)
    chosen = rows(plan)[plan["chosen"]]
    assert len(plan["slices"]) == chosen["slices"] > 3
    assert sum(part["ops"] for part in plan["slices"]) == plan["ops"] == 55
    parts = sum(part["compute_ms"] + part["transfer_in_ms"] + part["transfer_out_ms"] for part in plan["slices"])
    assert parts == pytest.approx(chosen["latency_ms"])
    there = {"ids", "mask"}
    for part in plan["slices"]:
        assert set(part["from"]) <= there
        there |= set(part["to"])
    assert "h3" in there
    assert [a["engine"] != b["engine"] for a, b in zip(plan["slices"], plan["slices"][1:], strict=False)]


def test_kept_slices_are_models_that_answer_what_the_whole_answers(
    model: Path, times: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "out"
    arguments = [str(model), "--devices", "cpu0,npu0", "--times", str(times), *SHAPES, "--out", str(out)]
    assert run(["slice", *arguments]) == 0
    assert "outputs bit for bit equal to the whole model's" in capsys.readouterr().out
    plan = decode_json(out / "slices.json", SlicePlan)
    assert plan.stitched is not None
    assert plan.stitched.bit_equal
    assert plan.stamp is not None
    assert plan.stamp.inputs["times"] == sha256_file(times)
    for part in plan.slices:
        assert part.model is not None
        loaded = onnx.load(out / part.model)
        onnx.checker.check_model(loaded)
        assert [info.name for info in loaded.graph.input] == part.from_
        assert [info.name for info in loaded.graph.output] == part.to
        assert part.sha256 == sha256_file(out / part.model)


def test_without_times_the_roofline_is_used_and_says_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of([str(model), *CATALOGUE, *SHAPES], capsys)
    assert plan["devices"]["gpu0"]["basis"] == "modelled"
    assert plan["devices"]["gpu0"]["source"].startswith("calibrated roofline of nvidia-l4 at fp32, launches ")
    assert {device["link"]["basis"] for device in plan["devices"].values()} == {"assumed"}
    assert plan["chosen"] in {"gpu0 only", "npu0 only", "legal cuts", "minimum cut"}
    assert [note for note in plan["notes"] if not note.startswith("not sure: ")] == [
        "huawei-ascend-310p-atlas-300i-pro is modelled at fp16: the model (fp32) would be converted first."
    ]
    assert plan["legal_cuts"] >= 8
    assert len(plan["slices"]) == 1


def test_modelled_operators_are_launched_and_their_error_reaches_the_choice(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of([str(model), "--devices", "gpu0=nvidia-l4,gpu1=nvidia-t4", *SHAPES], capsys)
    launch_ms = shipped().kinds["gpu"].fit.launch_ms
    found = rows(plan)
    # The views among its operators run no kernel.
    assert found["gpu1 only"]["compute_ms"] > 0.5 * plan["ops"] * launch_ms
    for device in plan["devices"].values():
        low, high = device["times_95"]
        assert 0 < low < 0.6
        assert high > 1.6
        assert "families" in device["error"]["why"]
        assert device["fitted_on"]
    assert any(note.startswith("not sure: were times on gpu") for note in plan["notes"])
    assert run(["slice", str(model), "--devices", "gpu0=nvidia-l4,gpu1=nvidia-t4", *SHAPES]) == 0
    assert "95 times of 100: fp16 kernels" in capsys.readouterr().out


def test_throughput_prints_its_proven_gap(model: Path, times: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ortools")
    arguments = [str(model), "--devices", "cpu0,npu0", "--times", str(times), *SHAPES, "--objective", "throughput"]
    plan = plan_of([*arguments, "--seconds", "5", "--gap", "0"], capsys)
    found = rows(plan)
    assert found[plan["chosen"]]["bottleneck_ms"] == min(r["bottleneck_ms"] or 1e9 for r in found.values())
    assert 0 <= found["pipeline"]["gap_pct"] < 5
    assert run(["slice", *arguments, "--gap", "5"]) == 0
    printed = capsys.readouterr().out
    assert "pipeline: " in printed
    assert "proven" in printed


def test_three_devices_are_placed_with_a_bound(model: Path, times: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = "cpu0,npu0,gpu0=nvidia-l4"
    plan = plan_of([str(model), "--devices", listed, "--times", str(times), *SHAPES, "--link", "gpu0=1:1000"], capsys)
    found = rows(plan)
    assert "minimum cut" not in found
    assert found["legal cuts"]["gap_pct"] < 5
    assert found["any operator"]["gap_pct"] < 5
    assert found["any operator"]["latency_ms"] <= found["legal cuts"]["latency_ms"]
    assert plan["devices"]["gpu0"]["link"] == {
        "bytes_per_s": 1e9,
        "sync_us": 1000,
        "basis": "stated",
        "source": "--link",
    }


def test_two_banks_share_the_products(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    banks = [
        "--devices",
        "npu0=huawei-ascend-310p-atlas-300i-pro,npu1=huawei-ascend-310p-atlas-300i-pro",
        "--link",
        "npu0=host",
        "--link",
        "npu1=host",
    ]
    arguments = [str(model), *banks, *SHAPES, "--share", "channel", "--tile", "8", "--out", str(tmp_path / "out")]
    plan = plan_of(arguments, capsys)
    assert len(plan["splits"]) == 18
    for split in plan["splits"]:
        assert split["op"] == "MatMul"
        assert split["split_ms"] == pytest.approx(split["alone_ms"] / 2, rel=0.01, abs=2e-6)
        assert split["first_units"] == split["units"] // 2
    assert plan["shared"]["max_rel_diff"] < 1e-6
    found = rows(plan)
    saved = sum(split["alone_ms"] - split["split_ms"] for split in plan["splits"])
    assert found["sharing"]["latency_ms"] == pytest.approx(found["npu0 only"]["latency_ms"] - saved)
    assert found["sharing"]["devices"]["npu0+npu1"]["ops"] == 18
    assert found["sharing"]["bottleneck_ms"] is None
    shared = onnx.load(tmp_path / "out" / "shared.onnx")
    assert [node.op_type for node in shared.graph.node].count("Concat") == 18


def test_an_operator_type_can_be_taken_from_a_device(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of([str(model), *CATALOGUE, *SHAPES, "--unsupported", "gpu0=Softmax,Range"], capsys)
    assert rows(plan)["gpu0 only"]["reason"] == "gpu0 cannot run 4 of 55 operators"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", "gpu0=nvidia-l5,npu0=huawei-ascend-310p-atlas-300i-pro", *SHAPES], "near it: nvidia-l4"),
        (["--devices", "nope9,npu0=huawei-ascend-310p-atlas-300i-pro", *SHAPES], "Write nope9=DEVICE"),
        (["--devices", "gpu0=nvidia-l4", *SHAPES], "names 1 devices"),
        (["--devices", "a=nvidia-l4,a=nvidia-t4", *SHAPES], "'a' twice"),
        (["--devices", "a=,b", *SHAPES], "not of the form NAME"),
        (["--devices", "gpu0=nvidia-l4,npu0=intel-npu-3720", *SHAPES], "has no bandwidth"),
        ([*CATALOGUE], "--shape ids=NxN"),
        ([*CATALOGUE, "--shape", "ids=2x12"], "--shape mask=NxN"),
        ([*CATALOGUE, *SHAPES, "--unsupported", "gpu0=Softmax", "--unsupported", "npu0=Softmax"], "Softmax"),
        ([*CATALOGUE, *SHAPES, "--unsupported", "tpu0=Softmax"], "'tpu0' is not one of --devices"),
        ([*CATALOGUE, *SHAPES, "--unsupported", "gpu0"], "NAME=OP,OP"),
        ([*CATALOGUE, *SHAPES, "--link", "gpu0=fast"], "NAME=GB/S:US"),
        ([*CATALOGUE, *SHAPES, "--link", "gpu0=0:1"], "is not a bandwidth"),
        ([*CATALOGUE, *SHAPES, "--link", "gpu0=1:nan"], "is not a time"),
        ([*CATALOGUE, *SHAPES, "--times", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_two(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["slice", str(model), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert words in printed.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda document: document["devices"]["npu0"]["nodes_ms"].pop("MatMul_10"), "'MatMul_10' (MatMul)"),
        (lambda document: document["devices"]["npu0"]["nodes_ms"].update(MatMul_10=-1.0), "'MatMul_10'"),
        (lambda document: document["devices"]["cpu0"]["nodes_ms"].update(Softmax_16=None), "Softmax_16"),
        (lambda document: document["shapes"].update(ids=[1, 12]), "1x12"),
        (lambda document: document.update(model_sha256="0" * 64), "sha256"),
        (lambda document: document.update(devices={}), "devices: empty"),
        (lambda document: document["devices"]["npu0"].update(link={"bytes_per_s": 0}), "link"),
        (lambda document: document.update(extra=1), "extra"),
    ],
)
def test_a_times_file_that_does_not_fit_is_refused_by_name(
    model: Path, times: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    document = json.loads(times.read_text(encoding="utf-8"))
    change(document)
    times.write_text(json.dumps(document), encoding="utf-8")
    assert run(["slice", str(model), "--devices", "cpu0,npu0", "--times", str(times), *SHAPES]) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    assert words in printed


def relu_model(path: Path, names: list[str], outputs: list[str]) -> Path:
    nodes = [helper.make_node("Relu", ["x"], [name]) for name in names]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", *outputs)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:])), path)
    return path


def test_a_model_of_one_operator_has_no_legal_cut_and_parallel_branches_need_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    single = relu_model(tmp_path / "one.onnx", ["y"], ["y"])
    assert run(["slice", str(single), *CATALOGUE]) == 2
    assert "has no legal cut: 1 operators" in capsys.readouterr().err
    apart = relu_model(tmp_path / "two.onnx", ["y", "z"], ["y", "z"])
    three = ["--devices", "a=nvidia-l4,b=nvidia-t4,c=huawei-ascend-310p-atlas-300i-pro"]
    for devices in (CATALOGUE, three):
        assert rows(plan_of([str(apart), *devices], capsys)).keys().isdisjoint({"legal cuts"})


def test_a_tensor_of_unknown_size_stays_or_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"], name="find"),
        helper.make_node("Cast", ["where"], ["y"], name="cast", to=TensorProto.FLOAT),
    ]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "found"]),
    ]
    path = tmp_path / "where.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:])), path)
    document: dict[str, Any] = {
        "model_sha256": sha256_file(path),
        "shapes": {"x": [4, 4]},
        "devices": {
            name: {"basis": "measured", "source": "clock", "nodes_ms": {"find": 1.0, "cast": 1.0}}
            for name in ("cpu0", "npu0")
        },
    }
    document["devices"]["npu0"]["nodes_ms"]["find"] = 0.1
    times = tmp_path / "times.json"
    times.write_text(json.dumps(document), encoding="utf-8")
    arguments = [str(path), "--devices", "cpu0,npu0", "--times", str(times)]
    plan = plan_of(arguments, capsys)
    assert plan["chosen"] == "cpu0 only"
    assert "size is not known" in rows(plan)["npu0 only"]["reason"]
    document["devices"]["cpu0"]["nodes_ms"]["find"] = None
    times.write_text(json.dumps(document), encoding="utf-8")
    assert run(["slice", *arguments]) == 2
    assert "tensor 'y' would have to move" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.sparse", None)
    assert run(["slice", str(model), *CATALOGUE, *SHAPES]) == 2
    assert "pip install -e '.[plan]'" in capsys.readouterr().err


def test_drawn_inputs_do_not_change_the_plan(model: Path, times: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(model), "--devices", "cpu0,npu0", "--times", str(times), *SHAPES]
    first = plan_of(arguments, capsys)
    second = plan_of([*arguments, "--seed", "7"], capsys)
    assert first["slices"] == second["slices"]
    assert np.isfinite(first["greedy_excess_pct"])


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (helper.make_node("RandomNormal", [], ["h"], shape=[2, 4]), "the model has no input"),
        (helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT), "input 'x' holds no numbers"),
    ],
)
def test_slices_that_no_request_could_ask_for_come_without_a_pipeline(
    first: onnx.NodeProto, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    texts = [helper.make_tensor_value_info(name, TensorProto.STRING, [2, 4]) for name in first.input]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    graph = helper.make_graph([first, helper.make_node("Relu", ["h"], ["y"])], "g", texts, [y])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    host = {"bytes_per_s": None, "sync_us": 0.0, "basis": "host"}
    nodes_ms = {"h": 1.0, "y": 1.0}
    times = {
        "model_sha256": sha256_file(path),
        "shapes": {name: [2, 4] for name in first.input},
        "devices": {
            name: {"basis": "measured", "source": "s", "nodes_ms": nodes_ms, "link": host} for name in ("a", "b")
        },
    }
    (tmp_path / "times.json").write_text(json.dumps(times), encoding="utf-8")
    asked = [str(path), "--devices", "a,b", "--times", str(tmp_path / "times.json"), "--out", str(tmp_path / "out")]
    plan = plan_of(asked, capsys)
    assert [note for note in plan["notes"] if words in note]
    assert plan["slices"][0]["model"] is not None
    assert not (tmp_path / "out" / "pipeline.yaml").exists()


@pytest.mark.parametrize("side", [2**24, 2**40])
def test_operators_that_no_machine_ends_are_refused_in_one_line(
    side: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nanoseconds of the larger are beyond 64 bits; those of the smaller would count as "cannot run"."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [side, side]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    path = tmp_path / "vast.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:])), path)
    slow = tmp_path / "slow.yaml"
    rate = "value: 1.0e+9, basis: stated, source: s"
    rates = f"peak_ops_per_s: {{fp32: {{{rate}, dense: true}}}}\nbandwidth_bytes_per_s: {{{rate}}}\n"
    slow.write_text(f"name: slow\ntitle: t\nkind: cpu\n{rates}", encoding="utf-8")
    assert run(["slice", str(path), "--devices", f"a={slow},b=nvidia-l4"]) == 2
    assert "more than the 10000 s of any real one" in capsys.readouterr().err
