"""Coverage by tables, on blocks of known answers; what a compiler says, mapped back to the nodes it was given."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.graph import devices, ops
from loadslice.graph.coverage import by_compiler, by_table
from loadslice.graph.coverage_compare import disagreements, remedies
from loadslice.graph.coverage_stage import stage
from loadslice.graph.rewrites.rewrites_test import quantised, transformer_block
from loadslice.graph.shapes import infer
from loadslice.spec.coverage import Coverage, FactSet, OperatorRule, OperatorTable
from loadslice.spec.errors import InputError
from loadslice.spec.toolchain import CompiledNode, CompilerReport

TABLE = """
target: my-npu
title: "A board of ours"
facts:
  - source: "our lab, run 12"
    version: "firmware 3.1"
    basis: measured
    rules:
      - {place: host, ops: [Erf], reason: "no such instruction"}
      - {place: device, ops: [MatMul, Add, Mul], rank_max: 3}
"""


def table(*rules: OperatorRule, fused: dict[str, str] | None = None) -> OperatorTable:
    facts = FactSet(source="s", version="1", basis="measured", rules=list(rules), fused=fused or {})
    return OperatorTable(target="t", title="t", facts=[facts])


def everything_but_erf() -> OperatorTable:
    block = {node.op_type for node in transformer_block().graph.node} - {"Erf"}
    return table(
        OperatorRule(ops=sorted(block | {"Gelu", "LayerNormalization"}), place="device"),
        OperatorRule(ops=["Erf"], place="host", reason="no such instruction"),
    )


def covered(model: onnx.ModelProto, one: OperatorTable) -> Coverage:
    return by_table(infer(model, {}), one)


def host(coverage: Coverage) -> list[str]:
    return [node.op for node in coverage.nodes if node.on == "host"]


def test_every_shipped_fact_has_source_and_version_and_stays_small() -> None:
    shipped = ops.tables()
    assert {"qnn-htp", "rknn-rk3588", "ethos-u55", "ethos-u85", "openvino-npu"} <= set(shipped)
    for one in shipped.values():
        assert all(facts.source and facts.version for facts in one.facts)
    folder = Path(ops.__file__).parent
    assert sum(path.stat().st_size for path in folder.glob("*.yaml")) < 64 * 1024


def test_tables_name_devices_that_the_catalogue_has() -> None:
    known = set(devices.catalogue())
    named = {name for one in ops.tables().values() for name in one.devices if not name.startswith("ethos-")}
    assert named <= known
    assert ops.of_device("rockchip-rk3588-npu") is not None
    assert ops.of_device("nvidia-l4") is None


def test_one_operator_on_the_host_cuts_the_block_in_two() -> None:
    """5 of the tensors' copies are of 8 x 64 floats (hidden twice, argument, erf) and 8 x 16 (the residual, twice)."""
    result = covered(transformer_block(), everything_but_erf())
    assert host(result) == ["Erf"]
    assert result.unknown_nodes == 0
    assert (result.segments, result.cuts) == (2, 6)
    assert result.transfer_bytes == 4 * (4 * 8 * 64 + 2 * 8 * 16)
    assert result.supported_nodes_share == pytest.approx(42 / 43)
    assert result.supported_flops_share is not None
    assert 0.95 < result.supported_flops_share < 1


def test_a_fused_pattern_runs_whole() -> None:
    rules = everything_but_erf().facts[0].rules
    result = covered(transformer_block(), table(*rules, fused={"erf-gelu": "Gelu"}))
    assert (host(result), result.segments, result.cuts, result.transfer_bytes) == ([], 1, 0, 0)


def test_quantisation_breaks_the_fusion_and_a_unit_stays_together() -> None:
    rules = everything_but_erf().facts[0].rules
    result = covered(quantised(transformer_block(13)), table(*rules, fused={"erf-gelu": "Gelu"}))
    assert host(result) == ["QuantizeLinear", "DequantizeLinear", "Erf", "QuantizeLinear", "DequantizeLinear"]
    edge = [node for node in result.nodes if node.reason == "it converts an input or output of the model"]
    assert [node.node for node in edge] == ["x_Q", "y_DQ"]
    assert result.segments == 2


def test_a_quantised_tensor_crosses_as_bytes() -> None:
    result = covered(quantised(transformer_block(13)), everything_but_erf())
    inner = {transfer.tensor: transfer.bytes for transfer in result.transfers}
    assert inner["argument_q"] == 8 * 64
    assert inner["first_q"] == 8 * 16


def test_what_no_fact_names_is_unknown_and_so_is_the_border() -> None:
    result = covered(transformer_block(), table(OperatorRule(ops=["MatMul"], place="device")))
    assert result.unknown_nodes == 43 - 8
    assert result.supported_nodes_share == pytest.approx(8 / 43)
    assert (result.segments, result.cuts, result.transfer_bytes) == (None, None, None)


def test_an_open_shape_keeps_a_node_on_the_host() -> None:
    """Up to the Reshape that fixes the shape again."""
    model = transformer_block()
    del model.graph.value_info[:]
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "steps"
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "steps"
    result = covered(model, table(OperatorRule(ops=["ReduceMean"], place="device")))
    means = [node for node in result.nodes if node.op == "ReduceMean"]
    assert [node.on for node in means] == ["host", "host", "device", "device"]
    assert means[0].reason == "the shape of one of its tensors is open"


def test_rank_type_and_attributes_bound_a_fact() -> None:
    reduce = [OperatorRule(ops=["ReduceMean"], place="device", attributes={"keepdims": [0]})]
    narrow = [OperatorRule(ops=["Add"], place="device", rank_max=2), OperatorRule(ops=["Mul"], place="device")]
    halves = [OperatorRule(ops=["MatMul"], place="device", dtypes=["float16"])]
    result = covered(transformer_block(), table(*reduce, *narrow, *halves))
    assert {node.op for node in result.nodes if node.on == "device"} == {"Mul"}


def test_a_user_table_is_read_and_its_source_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE, encoding="utf-8")
    result = covered(transformer_block(), ops.read(path))
    erf = next(node for node in result.nodes if node.op == "Erf")
    assert (erf.on, erf.reason, erf.source) == (
        "host",
        "no such instruction",
        "our lab, run 12, firmware 3.1 (measured)",
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"firmware 3.1"', '""', "needs its source and the version"),
        ('"our lab, run 12"', '" "', "needs its source and the version"),
        ("basis: measured", "basis: guessed", "basis"),
        ("ops: [Erf]", "ops: []", "no operators"),
        ("place: host", "place: maybe", "place"),
        ("rules:", "fused: {fast-thing: X}\n    rules:", "no pattern 'fast-thing'"),
        ("rank_max: 3", "rank_min: 5, rank_max: 3", "rank_min is above"),
        ("target: my-npu", "target: my/npu", "must be letters"),
    ],
)
def test_a_table_that_vouches_for_nothing_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TABLE.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=words):
        ops.read(path)


def test_names_given_twice_or_not_at_all_become_names_of_their_own() -> None:
    model = transformer_block()
    model.graph.node[0].name = ""
    model.graph.node[1].name = model.graph.node[2].name = "same"
    _, names = stage(model, {})
    assert len(set(names)) == len(names) == 43
    assert names[:3] == ["n1_mean", "same_1", "same_2"]


def report(*nodes: CompiledNode) -> CompilerReport:
    return CompilerReport(toolchain="c", version="1", target="t", options={}, seconds=0.1, nodes=list(nodes))


def test_a_compiler_wins_and_its_difference_is_listed() -> None:
    staged, names = stage(transformer_block(), {})
    said = [CompiledNode(name=name, on="device", segment=0) for name in names if name != "weights_node"]
    said.append(CompiledNode(name="weights_node", on="host", reason="axis"))
    body = infer(staged, {})
    compiled = by_compiler(body, report(*said), names)
    differ = disagreements(by_table(body, everything_but_erf()), compiled)
    assert [(one.node, one.table, one.compiler) for one in differ] == [
        ("weights_node", "device", "host"),
        ("erf_node", "host", "device"),
    ]
    assert host(compiled) == ["Softmax"]


def test_a_node_that_vanished_is_where_its_neighbour_is() -> None:
    """The normalisation's scale went into the node before it, and so did the shift after that."""
    staged, names = stage(transformer_block(), {})
    gone = {"n1_scaled_node", "n1_node"}
    said = [CompiledNode(name=name, on="device", segment=0) for name in names if name not in gone]
    compiled = by_compiler(infer(staged, {}), report(*said), names)
    assert compiled.unknown_nodes == 0
    assert compiled.segments == 1
    merged = [node for node in compiled.nodes if node.node in gone]
    assert all(node.on == "device" and node.reason and "merged" in node.reason for node in merged)


def test_nodes_of_the_compiler_itself_are_counted_and_named() -> None:
    staged, names = stage(transformer_block(), {})
    said = [CompiledNode(name=name, on="device", segment=0) for name in names]
    said.append(CompiledNode(name="layout_fix", on="host", op="Reshape"))
    notes = by_compiler(infer(staged, {}), report(*said), names).notes
    assert notes == ["nodes added by the compiler itself: 1, on the host 1 (layout_fix)"]


def test_the_rewrite_that_removes_the_fallback_is_found_with_what_it_saves() -> None:
    pytest.importorskip("onnxruntime")
    model = quantised(transformer_block(13))
    one = everything_but_erf()
    before = covered(model, one)
    found = remedies(model, before, {}, lambda after: covered(after, one))
    best = found[0]
    assert best.rewrite == "lift-opset-20+fuse-gelu"
    assert best.removes == ["argument_DQ", "erf_node", "erf_Q"]
    assert (best.segments, before.segments) == (1, 2)
    assert best.saves_transfer_bytes is not None
    assert best.saves_transfer_bytes > 0
    assert best.max_abs_diff is not None


def test_a_rewrite_into_an_operator_nobody_knows_is_no_remedy() -> None:
    rules = everything_but_erf().facts[0].rules
    known = [op for op in rules[0].ops if op not in {"Gelu", "LayerNormalization", "Pow"}]
    one = table(OperatorRule(ops=known, place="device"), OperatorRule(ops=["Pow", "Erf"], place="host"))
    model = transformer_block()
    assert remedies(model, covered(model, one), {}, lambda after: covered(after, one)) == []


def test_a_hard_sigmoid_as_a_clip_is_offered_where_only_that_is_known() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("HardSigmoid", ["x"], ["y"], "gate")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    one = table(
        OperatorRule(ops=["Mul", "Add", "Clip"], place="device"), OperatorRule(ops=["HardSigmoid"], place="host")
    )
    (best,) = remedies(model, covered(model, one), {}, lambda after: covered(after, one))
    assert (best.rewrite, best.removes) == ("hard-sigmoid-to-clip", ["gate"])


def test_a_fully_covered_model_needs_no_remedy() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    one = table(OperatorRule(ops=["Relu"], place="device"))
    assert remedies(model, covered(model, one), {}, lambda after: covered(after, one)) == []


def test_an_operator_of_another_domain_is_unknown() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], domain="acme.fast")], "g", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("acme.fast", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    result = covered(model, table(OperatorRule(ops=["Relu"], place="device")))
    assert result.nodes[0].reason is not None
    assert "acme.fast::Relu" in result.nodes[0].reason
