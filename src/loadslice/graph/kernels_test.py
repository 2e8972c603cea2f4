"""Kernels of the runtime against the nodes they stand for: by construction, and by ONNX Runtime itself."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.cuts import Flow, flow
from loadslice.graph.kernels import Kernel, groups, kernels, midmean, top_level
from loadslice.graph.measure import KernelRun, Optimise, profile
from loadslice.graph.shapes import infer
from loadslice.graph.timing import measure_nodes
from loadslice.spec.device import Device, Figure, Peak

F = TensorProto.FLOAT


def network() -> onnx.ModelProto:
    """Two convolutions with a batch normalisation and a Relu each, a view, and a Gelu spelt out in five nodes."""
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(rng.standard_normal((16, 16, 3, 3)).astype(np.float32), name) for name in ("w1", "w2")
    ]
    stored += [numpy_helper.from_array(np.ones(16, np.float32), name) for name in ("scale", "shift", "mean", "spread")]
    stored += [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("r", 2**0.5), ("one", 1), ("h", 0.5))]
    nodes, last = [], "x"
    for number in (1, 2):
        made = [f"conv{number}", f"bn{number}", f"relu{number}"]
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [made[0]], pads=[1, 1, 1, 1], name=made[0]))
        statistics = ["scale", "shift", "mean", "spread"]
        nodes.append(helper.make_node("BatchNormalization", [made[0], *statistics], [made[1]], name=made[1]))
        nodes.append(helper.make_node("Relu", [made[1]], [made[2]], name=made[2]))
        last = made[2]
    nodes.append(helper.make_node("Identity", [last], ["same"], name="same"))
    for op, names in (("Div", "same r d"), ("Erf", "d e"), ("Add", "e one a"), ("Mul", "same a m"), ("Mul", "m h y")):
        *inputs, output = names.split()
        nodes.append(helper.make_node(op, inputs, [output], name=output))
    inputs = [helper.make_tensor_value_info("x", F, [1, 16, 32, 32])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", F, [1, 16, 32, 32])], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FEEDS = {"x": np.ones((1, 16, 32, 32), np.float32)}


def ran(optimise: Optimise) -> tuple[Flow, list[Kernel]]:
    pytest.importorskip("onnxruntime")
    model = network()
    found = profile(Path("m"), model, FEEDS, optimise=optimise, threads=1, warmup=1, runs=4)
    return flow(infer(model, {})), kernels(found)


def kernel(op: str, reads: str, makes: str, name: str = "", time_us: float = 1.0) -> Kernel:
    return Kernel(name or makes, op, time_us, tuple(reads.split()), tuple(makes.split()))


def test_without_optimisation_every_kernel_is_one_node_of_the_file() -> None:
    graph, found = ran("none")
    assert [group.ops for group in sorted(groups(graph, found), key=lambda each: each.ops)] == [
        (index,) for index in range(len(graph.ops))
    ]


def test_every_node_is_covered_once_when_the_runtime_fuses() -> None:
    graph, found = ran("all")
    covered = [op for group in groups(graph, found) for op in group.ops]
    assert len(found) < len(graph.ops)
    assert sorted(covered) == list(range(len(graph.ops)))


def test_a_fused_convolution_covers_its_normalisation_and_activation() -> None:
    graph, found = ran("all")
    by_node = {graph.keys[op]: group for group in groups(graph, found) for op in group.ops}
    for number in (1, 2):
        group = by_node[f"conv{number}"]
        assert {graph.keys[op] for op in group.ops} >= {f"conv{number}", f"bn{number}", f"relu{number}"}
        assert "Conv" in {each.op for each in group.kernels}
    assert by_node["d"] is by_node["e"] is by_node["m"]
    assert by_node["conv1"] is not by_node["conv2"]


def test_a_change_of_layout_is_counted_with_the_kernel_that_reads_it() -> None:
    graph = flow(infer(network(), {}))
    found = [
        kernel("ReorderInput", "x", "blocked", time_us=3),
        kernel("Conv", "blocked", "blocked_relu", name="relu1_nchwc", time_us=10),
        kernel("ReorderOutput", "blocked_relu", "relu1", time_us=2),
    ]
    (group,) = groups(graph, found)
    assert [graph.keys[op] for op in group.ops] == ["conv1", "bn1", "relu1"]
    assert group.time_us == 15


def test_a_kernel_that_nothing_is_known_of_covers_nothing() -> None:
    graph = flow(infer(network(), {}))
    (group,) = groups(graph, [kernel("Strange", "q", "p")])
    assert group.ops == ()


def test_what_runs_inside_control_flow_is_in_its_nodes_time() -> None:
    events = [("If", 0, 100), ("Conv", 10, 30), ("Relu", 50, 10), ("Add", 100, 5)]
    run = [KernelRun(op, op, begin, length, None, None) for op, begin, length in events]
    assert [each.op for each in top_level(run)] == ["If", "Add"]


def test_an_if_is_one_kernel_with_what_its_branch_took() -> None:
    pytest.importorskip("onnxruntime")
    out = [onnx.ValueInfoProto(name="b")]
    branch = helper.make_graph([helper.make_node("Exp", ["x"], ["b"], name="inside")], "branch", [], out)
    nodes = [
        helper.make_node("If", ["c"], ["p"], then_branch=branch, else_branch=branch, name="choice"),
        helper.make_node("Neg", ["p"], ["y"], name="after"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", F, [1, 65_536]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", F, [1, 65_536])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": np.ones((1, 65_536), np.float32), "c": np.array(True)}
    found = profile(Path("m"), model, feeds, optimise="none", threads=1, warmup=1, runs=4)
    assert sorted({each.op for each in found.runs[0]}) == ["Exp", "If", "Neg"]
    timed = kernels(found)
    assert [each.op for each in timed] == ["If", "Neg"]
    inside = midmean([each.dur_us for run in found.runs for each in run if each.op == "Exp"])
    assert timed[0].time_us >= inside > 0


def test_the_midmean_is_deaf_to_outliers_and_finer_than_a_tick() -> None:
    assert midmean([1, 1, 2, 1, 2, 2, 1, 9000]) == 1.5
    assert midmean([7]) == 7


def test_node_times_add_up_to_what_the_kernels_took() -> None:
    pytest.importorskip("onnxruntime")
    peak = Peak(value=1e11, source="a test", basis="stated", dense=True)
    bandwidth = Figure(value=1e10, source="a test", basis="stated")
    device = Device(
        name="d", title="a test's", kind="cpu", peak_ops_per_s={"fp32": peak}, bandwidth_bytes_per_s=bandwidth
    )
    model = network()
    body = infer(model, {})
    measured, times = measure_nodes(
        Path("m"), model, body, FEEDS, device, optimise="all", threads=1, runs=4, inputs="ones"
    )
    assert times.basis == "measured"
    assert set(times.nodes_ms) == set(flow(body).keys)
    assert sum(ms or 0 for ms in times.nodes_ms.values()) == pytest.approx(measured.kernels_ms)
    assert sum(measured.ops_ms.values()) == pytest.approx(measured.kernels_ms)
    assert next(iter(measured.ops_ms)) == "Conv"
    fused = next(group for group in measured.groups if "conv1" in group.nodes)
    convolution = 2 * 16 * 32 * 32 * 16 * 9
    assert fused.flops is not None
    assert fused.flops > convolution
    assert fused.bound == "compute"
    assert times.nodes_ms["conv1"] == pytest.approx(fused.time_ms, rel=0.5)
