"""The memory plan against hand counts, and against the bytes ONNX Runtime really held."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.inputs import fix_inputs
from loadslice.graph.load import load
from loadslice.graph.measure import Optimise, profile
from loadslice.graph.memory import ALIASES, IN_PLACE, plan
from loadslice.graph.shapes import infer
from loadslice.spec.files import resolve_model
from loadslice.spec.inspection import MemoryPlan

F = TensorProto.FLOAT
SIDE = 1024
BYTES = 4 * SIDE


def chain(nodes: list[onnx.NodeProto], stored: list[TensorProto] | None = None) -> onnx.ModelProto:
    """A model of one input `x` of `SIDE` floats; its output is the last node's."""
    inputs = [helper.make_tensor_value_info("x", F, [1, SIDE])]
    output = onnx.ValueInfoProto(name=nodes[-1].output[0])
    output.type.tensor_type.elem_type = F
    graph = helper.make_graph(nodes, "g", inputs, [output], stored or [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def planned(model: onnx.ModelProto) -> MemoryPlan:
    result = plan(infer(model, {}), ["x"])
    assert result is not None
    return result


def held(model: onnx.ModelProto, optimise: Optimise = "none") -> int | None:
    feeds = {"x": np.zeros((1, SIDE), np.float32)}
    return profile(Path("m"), model, feeds, optimise=optimise, threads=1, warmup=1, runs=1).arena_bytes


def node(op: str, *names: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(names[:-1]), [names[-1]], name=f"node_{names[-1]}", **attributes)


def test_an_activation_function_overwrites_what_nobody_else_reads() -> None:
    alone = chain([node("Neg", "x", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")])
    shared = chain([node("Neg", "x", "a"), node("Relu", "a", "b"), node("Add", "a", "b", "y")])
    assert planned(alone).arena_bytes == 2 * BYTES
    assert planned(shared).arena_bytes == 3 * BYTES
    assert planned(alone).unshared_bytes == 4 * BYTES


def test_the_callers_input_is_never_overwritten() -> None:
    model = chain([node("Relu", "x", "a"), node("Neg", "a", "y")])
    assert planned(model).peak_bytes == 3 * BYTES


def test_a_buffer_taken_over_later_is_held_in_between() -> None:
    """`a` is done after `b`, and `d` takes its buffer over: it is still there at `c`, where nobody reads it."""
    pytest.importorskip("onnxruntime")
    stored = [numpy_helper.from_array(np.array([bound], np.int64), name) for name, bound in (("s", 0), ("e", SIDE))]
    stored.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    nodes = [node("Neg", "x", "a"), node("Concat", "a", "a", "b", axis=1), node("Concat", "b", "b", "c", axis=1)]
    nodes += [node("Slice", "c", "s", "e", "axis", "d"), node("Neg", "d", "y")]
    model = chain(nodes, stored)
    result = planned(model)
    assert (result.arena_bytes, result.at) == ((1 + 2 + 4) * BYTES, "node_c")
    assert held(model) == result.arena_bytes


def test_the_plan_names_the_node_and_the_tensors_of_its_peak() -> None:
    result = planned(chain([node("Concat", "x", "x", "wide", axis=1), node("ReduceMax", "wide", "y")]))
    assert result.at == "node_y"
    assert [(one.name, one.bytes) for one in result.tensors] == [("wide", 2 * BYTES), ("y", 4)]


@pytest.mark.parametrize("op", sorted(IN_PLACE | ALIASES | {"Neg", "Abs", "Sqrt", "Exp", "Erf", "Floor", "Not"}))
def test_the_runtime_works_in_place_exactly_where_the_table_says(op: str) -> None:
    pytest.importorskip("onnxruntime")
    extra = {"Reshape": [-1], "Unsqueeze": [0]}.get(op)
    stored = [numpy_helper.from_array(np.array(extra, np.int64), "extra")] if extra else []
    attributes = {"to": F} if op == "Cast" else {}
    first = node("Cast", "x", "a", to=TensorProto.BOOL) if op == "Not" else node("Neg", "x", "a")
    names = ["a", *(["extra"] if extra else []), "b"]
    model = chain([first, node(op, *names, **attributes), node("ReduceMax", "c", "y")], stored)
    model.graph.node.insert(2, node("Cast", "b", "c", to=F) if op == "Not" else node("Neg", "b", "c"))
    assert held(model) == planned(model).arena_bytes


def test_hard_swish_takes_the_memory_of_the_two_nodes_it_runs_as() -> None:
    pytest.importorskip("onnxruntime")
    model = chain([node("Neg", "x", "a"), node("HardSwish", "a", "b"), node("Neg", "b", "y")])
    assert held(model) == planned(model).arena_bytes == 3 * BYTES


OPS = ("Neg", "Relu", "Tanh", "Add", "Mul", "Identity", "Concat", "Softmax", "HardSwish", "Reshape", "Split")


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=14))
def test_any_small_graph_holds_what_is_planned(drawn: list[tuple[str, int, int]]) -> None:
    """Operators at random on what is there already, in the runtime's order, with several outputs of the model."""
    pytest.importorskip("onnxruntime")
    there = {SIDE: ["x"]}
    nodes = []
    for number, (op, first, second) in enumerate(drawn):
        size = sorted(there)[first % len(there)]
        names = there[size]
        made = f"t{number}"
        inputs = [names[first % len(names)]]
        if op in {"Add", "Mul", "Concat"}:
            inputs.append(names[second % len(names)])
        if op == "Reshape":
            inputs.append("flat")
        if op == "Split":
            nodes.append(node(op, *inputs, made, axis=1))
            nodes[-1].output.append(f"{made}b")
            there.setdefault(size // 2, []).extend([made, f"{made}b"])
            continue
        nodes.append(node(op, *inputs, made, **({"axis": 1} if op == "Concat" else {})))
        there.setdefault(size * 2 if op == "Concat" else size, []).append(made)
    model = chain(nodes, [numpy_helper.from_array(np.array([1, -1], np.int64), "flat")])
    read = {name for each in nodes for name in each.input}
    for name in [name for each in nodes[:-1] for name in each.output if name not in read]:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    result = planned(model)
    assert held(model, "fold") == result.arena_bytes


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("ch_PP-OCRv4_det_infer", [1, 3, 640, 640]),
        ("ch_PP-OCRv4_rec_infer", [1, 3, 48, 320]),
        ("ch_ppocr_mobile_v2.0_cls_infer", [1, 3, 48, 192]),
    ],
)
def test_the_ocr_models_hold_exactly_what_is_planned(name: str, shape: list[int]) -> None:
    pytest.importorskip("onnxruntime")
    if importlib.util.find_spec("rapidocr_onnxruntime") is None:
        pytest.skip("the OCR models come with rapidocr-onnxruntime (extra 'example')")
    path = resolve_model(f"package:rapidocr_onnxruntime/models/{name}.onnx", Path())
    model = load(path, weights=True)
    fix_inputs(model, {"x": shape})
    result = plan(infer(model, {"x": shape}), ["x"])
    feeds = {"x": np.zeros(shape, np.float32)}
    ran = profile(path, model, feeds, optimise="fold", threads=1, warmup=0, runs=1)
    assert result is not None
    assert ran.arena_bytes == result.arena_bytes
