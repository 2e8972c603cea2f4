"""What of a model depends on its inputs, and what a runtime does at load."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.shapes import infer

F = TensorProto.FLOAT


def with_listed_weight(ir_version: int) -> onnx.ModelProto:
    """`x + (-b)`, with the stored `b` among the inputs."""
    nodes = [helper.make_node("Neg", ["b"], ["minus"]), helper.make_node("Add", ["x", "minus"], ["y"])]
    x, b, y = (helper.make_tensor_value_info(name, F, [4]) for name in "xby")
    stored = numpy_helper.from_array(np.arange(4, dtype=np.float32), "b")
    graph = helper.make_graph(nodes, "g", [x, b], [y], [stored])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=ir_version)


@pytest.mark.parametrize(("ir_version", "folded"), [(3, True), (4, False), (8, False)])
def test_work_on_a_default_that_a_caller_may_replace_is_done_in_every_run(ir_version: int, folded: bool) -> None:
    """Until IR 3 a file had to list its weights among the inputs; ONNX Runtime folds none that is listed since."""
    minus, _ = infer(with_listed_weight(ir_version), {}).steps
    assert minus.folded is folded
    assert minus.outputs[0].data is not None
    assert minus.outputs[0].data.tolist() == [0, -1, -2, -3]


def test_a_scan_of_opset_8_runs_for_every_row_of_its_batch() -> None:
    """Of two rows and three steps each; ONNX Runtime agrees on the shapes."""
    add = helper.make_node("Add", ["state", "step"], ["sum"])
    relu = helper.make_node("Relu", ["sum"], ["out"])
    parts = {name: helper.make_tensor_value_info(name, F, [4]) for name in ("state", "step", "sum", "out")}
    body = helper.make_graph([add, relu], "body", [parts["state"], parts["step"]], [parts["sum"], parts["out"]])
    scan = helper.make_node("Scan", ["", "first", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    first, last = (helper.make_tensor_value_info(name, F, [2, 4]) for name in ("first", "last"))
    x, y = (helper.make_tensor_value_info(name, F, [2, 3, 4]) for name in "xy")
    graph = helper.make_graph([scan], "g", [first, x], [last, y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    del graph.output[:]
    (step,) = infer(model, {}).steps
    assert [value.shape for value in step.outputs] == [(2, 4), (2, 3, 4)]
    assert step.bodies[0].times == 6


@pytest.mark.parametrize(("opset", "kind"), [(7, F), (9, F), (10, TensorProto.BOOL), (13, TensorProto.BOOL)])
def test_a_mask_that_nobody_reads_leaves_no_size_unknown(opset: int, kind: int) -> None:
    """AlexNet, SqueezeNet and GoogLeNet of the model zoo have one."""
    node = helper.make_node("Dropout", ["x"], ["y", "mask"])
    infos = [helper.make_tensor_value_info(name, F, [2, 3]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)
    mask = infer(model, {}).env["mask"]
    assert (mask.shape, mask.elem_type) == ((2, 3), kind)


def test_a_side_of_0_of_an_input_is_open_as_the_user_is_told() -> None:
    """Taken as it stands, the whole model would cost nothing, and say so."""
    infos = [helper.make_tensor_value_info(name, F, [0, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert infer(model, {}).env["x"].shape == (None, 4)
    assert infer(model, {"x": [3, 4]}).env["y"].shape == (3, 4)
