"""What of a model depends on its inputs, and what a runtime does at load."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.inspect import inspect
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


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("GatherND", ["x", "places"], {"batch_dims": -100}),
        ("Split", ["x"], {"num_outputs": 2**31}),
        ("Split", ["x"], {"num_outputs": 0}),
    ],
)
def test_a_number_that_onnx_reads_past_its_memory_by_is_told_and_not_passed_on(
    op: str, inputs: list[str], attributes: dict[str, int]
) -> None:
    """In a process of its own each of these ended it, or took its memory."""
    x, y = helper.make_tensor_value_info("x", F, [2, 3]), helper.make_tensor_value_info("y", F, None)
    stored = [numpy_helper.from_array(np.array([[0]]), "places")]
    node = helper.make_node(op, inputs, ["y"], **attributes)
    graph = helper.make_graph([node], "g", [x], [y], stored)
    (step,) = infer(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), {}).steps
    assert step.outputs[0].shape in {None, (2, 3)}


def test_joins_along_no_axis_and_bodies_that_do_not_fit_have_no_size(tmp_path: Path) -> None:
    """The checker lets both pass."""
    infos = [helper.make_tensor_value_info(name, F, [1, "n", 4]) for name in ("past", "x", "present")]
    join = helper.make_node("Concat", ["past", "x"], ["present"], axis=-100)
    body = helper.make_graph(
        [helper.make_node("Relu", ["step"], ["out"])],
        "body",
        [helper.make_tensor_value_info(name, F, [4]) for name in ("step", "more")],
        [helper.make_tensor_value_info("out", F, [4])],
    )
    scan = helper.make_node("Scan", ["table"], ["rows"], body=body, num_scan_inputs=1)
    table, rows = (helper.make_tensor_value_info(name, F, [3, 4]) for name in ("table", "rows"))
    graph = helper.make_graph([join, scan], "g", [*infos[:2], table], [infos[2], rows])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    result = inspect(path, {"past": [1, 2, 4], "x": [1, 1, 4]}, [])
    assert result.kv_cache is None
    assert result.peak_activation_bytes is None
