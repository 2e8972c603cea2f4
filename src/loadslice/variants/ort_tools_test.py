"""What ONNX Runtime's tools make of small models."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")

from loadslice.backends.base import open_backend
from loadslice.spec.pipeline import Engine
from loadslice.variants import ort_tools

WIDTH = 32


def save(path: Path, nodes: list[onnx.NodeProto], stored: dict[str, np.ndarray]) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])],
        [numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name) for name, value in stored.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def run(path: Path, x: np.ndarray) -> np.ndarray:
    session = open_backend("onnxruntime").load(path, Engine(backend="onnxruntime", threads=1))
    try:
        return session.run({"x": x})["y"]
    finally:
        session.close()


@pytest.fixture
def gelu(tmp_path: Path) -> Path:
    """A product, a bias and a GELU whose argument of Erf is multiplied, which ONNX Runtime's fuser does not know."""
    draw = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["p"], "p"),
        node("Add", ["p", "b"], ["h"], "h"),
        node("Mul", ["half_root", "h"], ["r"], "r"),
        node("Erf", ["r"], ["e"], "e"),
        node("Add", ["e", "one"], ["e1"], "e1"),
        node("Mul", ["h", "e1"], ["g2"], "g2"),
        node("Mul", ["g2", "half"], ["y"], "y"),
    ]
    stored = {
        "w": draw.standard_normal((WIDTH, WIDTH)), "b": draw.standard_normal(WIDTH),
        "half_root": np.array(0.5**0.5), "one": np.array(1.0), "half": np.array(0.5),
    }  # fmt: skip
    return save(tmp_path / "gelu.onnx", nodes, stored)


def test_what_a_transformer_is_made_of_becomes_single_operators(gelu: Path, tmp_path: Path) -> None:
    fused = ort_tools.fuse_transformer(gelu, tmp_path / "fused.onnx")
    assert [node.op_type for node in onnx.load(fused).graph.node] == ["MatMul", "BiasGelu"]
    x = np.random.default_rng(1).standard_normal((3, WIDTH), dtype=np.float32)
    np.testing.assert_allclose(run(fused, x), run(gelu, x), rtol=1e-5, atol=1e-5)


def test_a_model_with_nothing_to_fuse_is_none(tmp_path: Path) -> None:
    plain = save(tmp_path / "plain.onnx", [helper.make_node("Relu", ["x"], ["y"], "y")], {})
    with pytest.raises(ValueError, match="recognises nothing"):
        ort_tools.fuse_transformer(plain, tmp_path / "fused.onnx")


@pytest.mark.parametrize(("in_8_bits", "bits"), [([], [4, 4]), (["second"], [4, 8])])
def test_the_layers_named_get_8_bits_and_the_others_4(tmp_path: Path, in_8_bits: list[str], bits: list[int]) -> None:
    draw = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "v"], ["y"], "second"),
    ]
    weights = {name: draw.standard_normal((WIDTH, WIDTH)) for name in ("w", "v")}
    model = save(tmp_path / "two.onnx", nodes, weights)
    made = ort_tools.quantise_blocks(
        model, tmp_path / "out.onnx", bits=4, block=16, symmetric=False, in_8_bits=in_8_bits
    )
    found = [
        next(attribute.i for attribute in node.attribute if attribute.name == "bits")
        for node in onnx.load(made).graph.node
    ]
    assert found == bits
    x = draw.standard_normal((2, WIDTH), dtype=np.float32)
    error = np.abs(run(made, x) - run(model, x)).max() / np.abs(run(model, x)).max()
    assert error < 0.3
