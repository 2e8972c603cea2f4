"""What branches, loops and scans cost, and the shapes inside them against ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.inspect import inspect
from loadslice.graph.inspect_test import Build, builder, flops, ints, tensor, weights
from loadslice.graph.load import load
from loadslice.graph.measure import observe
from loadslice.graph.shapes import infer


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return builder(tmp_path)


def branches(then_weights: int) -> onnx.NodeProto:
    """Both branches multiply `x` by weights of their own: 2 x n and 2 x 1."""
    made = []
    for name, width in (("then", then_weights), ("else", 1)):
        out = tensor(f"{name}_y", None)
        node = helper.make_node("MatMul", ["x", f"{name}_w"], [out.name])
        made.append(helper.make_graph([node], name, [], [out], [weights(f"{name}_w", 2, width)]))
    return helper.make_node("If", ["c"], ["y"], then_branch=made[0], else_branch=made[1], name="choice")


def test_a_branch_decided_at_run_time_costs_its_dearer_side(build: Build) -> None:
    path = build([branches(5)], [tensor("x", [3, 2]), tensor("c", [], TensorProto.BOOL)], [])
    result = inspect(path, None, [])
    assert result.parameters == 2 * 5 + 2
    assert result.macs == 3 * 2 * 5
    assert "then_branch" in result.notes[0]
    assert {node.scope: node.times for node in result.nodes_cost if node.op == "MatMul"} == {
        "choice/then_branch": 1,
        "choice/else_branch": 0,
    }


def test_a_branch_decided_by_a_constant_costs_that_branch(build: Build) -> None:
    condition = numpy_helper.from_array(np.array(False), "c")
    result = inspect(build([branches(5)], [tensor("x", [3, 2])], [condition]), None, [])
    assert result.macs == 3 * 2
    assert not result.notes
    assert result.weight_bytes == 4 * (2 * 5 + 2 * 1) + 1
    assert result.compulsory_bytes == 4 * (3 * 2 + 3 * 1 + 2 * 1) + 1


def test_a_branch_decided_by_an_inputs_content_costs_that_branch(build: Build) -> None:
    path = build([branches(5)], [tensor("x", [3, 2]), tensor("c", [], TensorProto.BOOL)], [])
    for taken, width in ((True, 5), (False, 1)):
        result = inspect(path, None, [], {"c": np.array(taken)})
        assert result.macs == 3 * 2 * width
        assert not result.notes


def loop(trips: TensorProto | None) -> list[onnx.NodeProto]:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("MatMul", ["v", "w"], ["v_next"]),
            helper.make_node("Relu", ["v_next"], ["row"]),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("v", None)],
        [tensor("go_on", [], TensorProto.BOOL), tensor("v_next", None), tensor("row", None)],
        [weights("w", 4, 4)],
    )
    return [helper.make_node("Loop", ["trips" if trips is None else trips.name, "", "x"], ["last", "rows"], body=body)]


def test_a_loop_of_known_length_costs_its_rounds(build: Build) -> None:
    result = inspect(
        build(loop(ints("n", 7)), [tensor("x", [3, 4])], [numpy_helper.from_array(np.array(7), "n")]), None, []
    )
    assert result.macs == 7 * 3 * 4 * 4
    assert result.parameters == 16 + 1
    assert result.nodes_cost[0].output_shapes == [[3, 4], [7, 3, 4]]


def test_a_loop_of_unknown_length_has_no_cost(build: Build) -> None:
    inputs = [tensor("x", [3, 4]), tensor("trips", [], TensorProto.INT64)]
    result = inspect(build(loop(None), inputs, []), None, [])
    assert not result.complete
    assert "rounds" in result.unknown_ops[0].reason


def test_a_scan_runs_once_per_slice(build: Build) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "slice"], ["next"]), helper.make_node("Identity", ["next"], ["out"])],
        "body",
        [tensor("sum", None), tensor("slice", None)],
        [tensor("next", None), tensor("out", None)],
    )
    node = helper.make_node("Scan", ["zero", "x"], ["total", "sums"], body=body, num_scan_inputs=1)
    result = inspect(build([node], [tensor("x", [9, 4])], [weights("zero", 4)]), None, [])
    assert flops(result, "Add") == 9 * 4
    assert result.nodes_cost[0].output_shapes == [[4], [9, 4]]


def test_shapes_in_control_flow_agree_with_onnx_runtime(build: Build) -> None:
    pytest.importorskip("onnxruntime")
    hidden = 4
    nodes = [
        helper.make_node("LSTM", ["x", "lw", "lr"], ["h"], hidden_size=hidden),
        helper.make_node("Shape", ["h"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["steps"]),
        helper.make_node("Concat", ["steps", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["h", "target"], ["flat"]),
        helper.make_node("If", ["c"], ["picked"], then_branch=_unary("Relu"), else_branch=_unary("Exp")),
        helper.make_node("Loop", ["n", "", "picked"], ["last", "rows"], body=loop(None)[0].attribute[0].g),
    ]
    stored = [weights("lw", 1, 4 * hidden, 3), weights("lr", 1, 4 * hidden, hidden), ints("zero", 0), ints("one", 1)]
    stored += [ints("rest", -1), numpy_helper.from_array(np.array(2), "n")]
    path = build(nodes, [tensor("x", ["t", 1, 3]), tensor("c", [], TensorProto.BOOL)], stored)
    shapes = {"x": [6, 1, 3]}
    observed = observe(path, shapes)
    env = infer(load(path), shapes).env
    assert {name: env[name].shape for name in observed} == observed
    assert observed["rows"] == (2, 6, 4)


def _unary(op: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op, ["flat"], [op])], op, [], [tensor(op, None)])
