"""Ranking finds a layer that the proxy puts last, by those that are like it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")

from loadslice.backends.base import open_backend
from loadslice.spec.pipeline import Engine
from loadslice.variants import layers, ort_tools
from loadslice.variants.prepare import prepare

FAR, NEAR = 11, 13


def write(path: Path) -> Path:
    """Sum of products: eleven of [8, 8] whose outliers hardly reach the output, thirteen of [16, 8] of which one does.

    The first of the thirteen has an outlier of its own; the last is clean, and its product counts a hundred times.
    """
    draw = np.random.default_rng(0)
    nodes, weights, sums = [], {}, []
    for index in range(FAR + NEAR):
        far = index < FAR
        name, width = (f"far{index}", 8) if far else (f"near{index - FAR}", 16)
        weights[f"{name}.w"] = draw.standard_normal((width, 8)).astype(np.float32)
        scale = np.ones(width, np.float32)
        scale[0] = 60.0 if far else 20.0 if name == "near0" else 1.0
        weights[f"{name}.scale"] = scale
        weights[f"{name}.gain"] = np.array([1e-4 if far else 100.0 if name == f"near{NEAR - 1}" else 1.0], np.float32)
        nodes += [
            helper.make_node("Mul", ["x8" if far else "x16", f"{name}.scale"], [f"{name}.in"], name=f"{name}.in"),
            helper.make_node("MatMul", [f"{name}.in", f"{name}.w"], [f"{name}.out"], name=name),
            helper.make_node("Tanh", [f"{name}.out"], [f"{name}.tanh"], name=f"{name}.tanh"),
            helper.make_node("Mul", [f"{name}.tanh", f"{name}.gain"], [f"{name}.part"], name=f"{name}.part"),
        ]
        sums.append(f"{name}.part")
    nodes.append(helper.make_node("Sum", sums, ["y"], name="y"))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "sums",
        [info("x8", TensorProto.FLOAT, ["n", 8]), info("x16", TensorProto.FLOAT, ["n", 16])],
        [info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_the_like_of_the_worst_are_tried_wherever_the_proxy_has_them(tmp_path: Path) -> None:
    prepared = prepare(write(tmp_path / "m.onnx"), tmp_path / "p.onnx")
    draw = np.random.default_rng(1)
    feeds = [
        {name: draw.standard_normal((4, width), dtype=np.float32) for name, width in (("x8", 8), ("x16", 16))}
        for _ in range(6)
    ]
    ranges = ort_tools.calibrate(prepared.path, feeds)
    plain = ort_tools.quantise(prepared.path, ranges, tmp_path / "q.onnx", only=prepared.heavy)
    ranked = layers.rank(
        prepared, plain, ranges, feeds,
        lambda path: open_backend("onnxruntime").load(path, Engine(backend="onnxruntime")),
    )  # fmt: skip
    by_proxy = sorted(ranked, key=lambda one: np.inf if one.proxy_db is None else one.proxy_db)
    worst = f"near{NEAR - 1}"
    assert [one.layer for one in by_proxy].index(worst) >= layers.TRIED_MIN
    assert ranked[0].layer == worst
