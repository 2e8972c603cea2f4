import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app.twin_sheets import COMPILE_MS_PER_NODE
from loadslice.app.twins import resolved
from loadslice.backends.base import open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Pipeline, Stage, load
from loadslice.spec.twin import TwinEngine, TwinSheet, plain

PEAK, BANDWIDTH = 1e12, 1e9
DEVICE: dict[str, Any] = {
    "name": "arm-ethos-u65-512",  # ours stands for it, so that its operator table is found
    "title": "A board",
    "kind": "npu",
    "peak_ops_per_s": {"int8": {"value": PEAK, "source": "test", "basis": "stated", "dense": True}},
    "bandwidth_bytes_per_s": {"value": BANDWIDTH, "source": "test", "basis": "stated"},
    "memory_bytes": {"value": 4e6, "source": "test", "basis": "stated"},
    "tdp_w": {"value": 5.0, "source": "test", "basis": "stated"},
    "idle_w": {"value": 1.0, "source": "test", "basis": "stated"},
}


def model(folder: Path, op: str = "Relu", rows: int | str = "rows", side: int | str = 8, weight_bytes: int = 0) -> Path:
    """x -> op -> y, [rows, 3, side, side]."""
    shape = [rows, 3, side, side]
    stored = [numpy_helper.from_array(np.ones(weight_bytes // 4, np.float32), "unused")] if weight_bytes else []
    nodes = [helper.make_node(op, ["x"], ["y"], name="only")]
    if stored:
        nodes = [helper.make_node("Relu", ["unused"], ["used"]), helper.make_node("Relu", ["x"], ["y"], name="only")]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "one", values[:1], values[1:], stored)
    path = folder / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def device(folder: Path, **changed: object) -> str:
    (folder / "board.yaml").write_text(yaml.safe_dump({**DEVICE, **changed}))
    return "board.yaml"


def pipeline(folder: Path, engine: dict[str, object], stage: dict[str, object] | None = None) -> Pipeline:
    text = {
        "version": 1,
        "pipeline": "p",
        "engines": {"npu": {"backend": "twin", "precision": "int8", **engine}},
        "stages": [{"name": "s", "model": "one.onnx", "engine": "npu", **(stage or {})}],
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(text))
    return load(path)


FIXED: dict[str, object] = {
    "buckets": [[3, 8, 8]],
    "accept": {"npu": {"shape": [4, 3, 8, 8]}},
    "batch": {"npu": {"size": 4, "pad_to": [4]}},
}


def sheet(folder: Path, engine: dict[str, object], stage: dict[str, object] | None = None) -> TwinSheet:
    found = resolved(pipeline(folder, engine, stage), folder).engines["npu"]
    assert isinstance(found, TwinEngine)
    (only,) = found.sheets.values()
    return only


def test_time_and_energy_are_those_of_the_roofline_and_the_power_curve(tmp_path: Path) -> None:
    model(tmp_path)
    made = sheet(tmp_path, {"device": device(tmp_path)}, FIXED)
    (only,) = made.times
    elements = 4 * 3 * 8 * 8
    ms = 1e3 * 2 * elements / BANDWIDTH  # one byte read and one written per element, and far more time than work
    assert (only.rows, only.shape) == (4, (3, 8, 8))
    assert only.ms == pytest.approx(ms)
    used = elements / (PEAK * ms / 1e3)
    assert only.energy_j == pytest.approx((1.0 + 4.0 * used) * ms / 1e3)
    assert (made.times_basis, made.compile_ms) == ("modelled", COMPILE_MS_PER_NODE)
    assert made.times_source == "roofline at int8: peak by test; bandwidth by test"


def test_power_that_the_pipeline_states_takes_the_place_of_the_curve(tmp_path: Path) -> None:
    model(tmp_path)
    (only,) = sheet(tmp_path, {"device": device(tmp_path), "active_w": 2.0}, FIXED).times
    assert only.energy_j == pytest.approx(2.0 * only.ms / 1e3)


def test_energy_is_unknown_where_nobody_states_power(tmp_path: Path) -> None:
    model(tmp_path)
    (only,) = sheet(tmp_path, {"device": device(tmp_path, tdp_w=None)}, FIXED).times
    assert only.energy_j is None


def test_an_operator_off_the_device_is_refused_with_the_tables_source(tmp_path: Path) -> None:
    model(tmp_path, op="Floor")
    found = resolved(pipeline(tmp_path, {"device": device(tmp_path)}, FIXED), tmp_path)
    message = r"does not run 'only' \(Floor: its TFLite operator is not in the compiler's list\), by ethos-u-vela"
    with pytest.raises(InputError, match=message):
        open_backend("twin").load(tmp_path / "one.onnx", found.engines["npu"])


def test_an_operator_that_no_source_knows_is_not_taken_for_supported(tmp_path: Path) -> None:
    model(tmp_path, op="Softplus")
    assert [node.op for node in sheet(tmp_path, {"device": device(tmp_path)}, FIXED).unsupported] == ["Softplus"]
    free = sheet(tmp_path, {"device": device(tmp_path), "options": {"assume_supported": True}}, FIXED)
    assert (free.unsupported, free.operators) == ([], "not checked: options.assume_supported")


def test_an_npu_of_unknown_operators_is_refused_and_told_how_to_give_them(tmp_path: Path) -> None:
    model(tmp_path)
    with pytest.raises(InputError, match=r"engines\.npu\.device: no operator table is known for 'board'"):
        resolved(pipeline(tmp_path, {"device": device(tmp_path, name="board")}, FIXED), tmp_path)


def test_open_shapes_are_refused_with_what_to_write(tmp_path: Path) -> None:
    model(tmp_path, side="side")
    with pytest.raises(
        InputError, match=r"leaves sides open \(rowsx3xsidexside\).*Give stage 's' `buckets: \[\[\.\.\.\]\]`"
    ):
        resolved(pipeline(tmp_path, {"device": device(tmp_path)}), tmp_path)


def test_a_model_without_an_input_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path)
    whole = onnx.load(path)
    whole.graph.node[0].CopyFrom(helper.make_node("RandomNormal", [], ["y"], shape=[4, 3, 8, 8]))
    del whole.graph.input[:]
    onnx.save(whole, path)
    with pytest.raises(InputError, match=r"one\.onnx: has no input"):
        sheet(tmp_path, {"device": device(tmp_path)}, FIXED)


def test_a_model_beyond_the_devices_memory_is_refused(tmp_path: Path) -> None:
    model(tmp_path, weight_bytes=20_000_000)
    found = resolved(pipeline(tmp_path, {"device": device(tmp_path)}, FIXED), tmp_path)
    with pytest.raises(InputError, match=r"needs .* MB at int8, device 'arm-ethos-u65-512' has 4\.0 MB"):
        open_backend("twin").load(tmp_path / "one.onnx", found.engines["npu"])


def test_models_that_fit_only_one_at_a_time_are_refused_together(tmp_path: Path) -> None:
    model(tmp_path, weight_bytes=6_000_000).rename(tmp_path / "two.onnx")
    model(tmp_path, weight_bytes=12_000_000)
    given = pipeline(tmp_path, {"device": device(tmp_path)}, FIXED)
    more = Stage(name="t", model="two.onnx", engine="npu", buckets=[[3, 8, 8]], accept=given.stages[0].accept)
    both = Pipeline(version=1, pipeline="p", engines=given.engines, stages=[*given.stages, more])
    resolved(given, tmp_path)
    with pytest.raises(InputError, match=r"engines\.npu: its 2 models need 4\.5 MB together, .* has 4\.0 MB"):
        resolved(both, tmp_path)


@pytest.mark.parametrize(
    ("changed", "precision", "lacks"),
    [
        ({"bandwidth_bytes_per_s": None}, "int8", "bandwidth_bytes_per_s"),
        ({}, "fp16", r"peak_ops_per_s\.fp16"),
    ],
)
def test_without_a_time_it_says_what_is_missing_and_how_to_give_one(
    tmp_path: Path, changed: dict[str, object], precision: str, lacks: str
) -> None:
    model(tmp_path)
    engine: dict[str, object] = {"device": device(tmp_path, **changed), "precision": precision}
    with pytest.raises(InputError, match=rf"no time is known .* its {lacks}\. Give options: {{times: TABLE\.json}}"):
        resolved(pipeline(tmp_path, engine, FIXED), tmp_path)


def times(folder: Path, **changed: object) -> str:
    entry = {
        "variant": "s",
        "engine": "npu",
        "batch": 4,
        "latency_ms": {"mean": 7.0, "family": "constant"},
        "energy_j": 0.02,
        "basis": "measured",
        "source": "a friend's board",
        **changed,
    }
    (folder / "times.json").write_text(json.dumps({"entries": [entry]}))
    return "times.json"


def test_a_latency_table_is_believed_before_the_roofline(tmp_path: Path) -> None:
    model(tmp_path)
    made = sheet(tmp_path, {"device": device(tmp_path), "options": {"times": times(tmp_path)}}, FIXED)
    (only,) = made.times
    assert (only.rows, only.shape, only.ms, only.energy_j) == (4, (3, 8, 8), 7.0, 0.02)
    assert (made.times_basis, made.times_source) == ("measured", "times.json: a friend's board")


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"variant": "t"}, "has no time for 's' on 'npu'"), ({"batch": 2}, "has no time for 4 rows of 3x8x8")],
)
def test_a_latency_table_that_lacks_the_batch_is_refused(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    model(tmp_path)
    engine: dict[str, object] = {"device": device(tmp_path), "options": {"times": times(tmp_path, **changed)}}
    with pytest.raises(InputError, match=message):
        resolved(pipeline(tmp_path, engine, FIXED), tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tiems": "a"}, r"options\.tiems: not known to a twin; there are times, operators"),
        ({"compile_s": -1}, r"options\.compile_s: -1 is not seconds, from 0 to 3600"),
        ({"assume_supported": "yes"}, r"options\.assume_supported: 'yes' is not true or false"),
    ],
)
def test_options_that_a_twin_does_not_have_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    model(tmp_path)
    with pytest.raises(InputError, match=message):
        resolved(pipeline(tmp_path, {"device": device(tmp_path), "options": options}, FIXED), tmp_path)


def test_a_twin_without_a_device_and_one_of_an_unknown_device_are_refused(tmp_path: Path) -> None:
    model(tmp_path)
    with pytest.raises(InputError, match="a twin stands for a device"):
        resolved(pipeline(tmp_path, {}), tmp_path)
    with pytest.raises(InputError, match="'rk3588-npu' is not in the catalogue; near it: rockchip-rk3588-npu"):
        resolved(pipeline(tmp_path, {"device": "rk3588-npu"}), tmp_path)


def test_a_model_of_a_fixed_batch_needs_nothing_said(tmp_path: Path) -> None:
    model(tmp_path, rows=2)
    made = sheet(tmp_path, {"device": device(tmp_path)})
    assert [(known.rows, known.shape) for known in made.times] == [(2, (3, 8, 8))]
    assert made.static_shapes


def test_dilating_what_is_not_emulated_is_refused(tmp_path: Path) -> None:
    model(tmp_path)
    real = pipeline(tmp_path, {"backend": "onnxruntime"})
    assert resolved(real, tmp_path) == real
    with pytest.raises(InputError, match="no engine of this pipeline is emulated"):
        resolved(real, tmp_path, 20.0)


def test_what_is_written_down_is_what_the_user_wrote(tmp_path: Path) -> None:
    model(tmp_path)
    given = pipeline(tmp_path, {"device": device(tmp_path)}, FIXED)
    kept = plain(resolved(given, tmp_path, 20.0))
    assert all(type(engine) is Engine for engine in kept.engines.values())
    assert kept.stages == given.stages
