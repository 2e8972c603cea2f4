"""The proof itself: what it must not let pass, and the models it can run."""

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.rewrites.proof import prove
from loadslice.spec.errors import InputError

F = TensorProto.FLOAT


def plus(number: float, side: list[int] | None = None, op: str = "Relu") -> onnx.ModelProto:
    """0 x plus a number, behind an operator."""
    nodes = [
        helper.make_node("Mul", ["x", "nought"], ["none"]),
        helper.make_node("Add", ["none", "number"], ["sum"]),
        helper.make_node(op, ["sum"], ["y"]),
    ]
    stored = [numpy_helper.from_array(np.float32(v), n) for n, v in (("nought", 0.0), ("number", number))]
    infos = [helper.make_tensor_value_info(name, F, [4] if side is None else side) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("before", "after", "relative"),
    [
        (1.0, math.nan, math.inf),
        (math.nan, 1.0, math.inf),
        (0.0, 1.0, math.inf),
        (1.0, math.inf, math.inf),
        (0.0, 0.0, None),
        (math.inf, math.inf, None),
        (2.0, 3.0, 0.5),
    ],
)
def test_a_difference_that_no_number_tells_is_one_all_the_same(
    before: float, after: float, relative: float | None
) -> None:
    pytest.importorskip("onnxruntime")
    assert prove(plus(before), plus(after), {}, seed=0).relative == relative


def test_a_model_of_single_numbers_is_run() -> None:
    pytest.importorskip("onnxruntime")
    assert prove(plus(1.0, []), plus(1.0, []), {}, seed=0).relative == 0.0


def test_the_parts_of_a_sequence_are_compared() -> None:
    pytest.importorskip("onnxruntime")

    def parts(number: float) -> onnx.ModelProto:
        model = plus(number)
        model.graph.node.append(helper.make_node("SplitToSequence", ["y"], ["s"], axis=0))
        del model.graph.output[:]
        model.graph.output.append(helper.make_tensor_sequence_value_info("s", F, None))
        return model

    assert prove(parts(2.0), parts(3.0), {}, seed=0).relative == 0.5


def test_an_input_that_is_no_tensor_is_named() -> None:
    pytest.importorskip("onnxruntime")
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    infos = [helper.make_tensor_sequence_value_info("s", F, [2]), helper.make_tensor_value_info("y", F, None)]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(InputError, match="'s' is no tensor"):
        prove(model, model, {}, seed=0)
