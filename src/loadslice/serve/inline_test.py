from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.serve.clock import Clock
from loadslice.serve.inline import UNLIMITED, inline_rows
from loadslice.serve.stages import close_stages, load_stages
from loadslice.serve.warm import warm_models
from loadslice.spec.pipeline import Pipeline, check

PIPELINE = """
version: 1
pipeline: p
engines: {{e: {{backend: onnxruntime{engine}}}}}
stages: [{{name: s, model: m.onnx, engine: e, batch: {{e: {{size: 4}}}}}}]
"""


def model(path: Path, repeats: int) -> None:
    """Squares matrices: one repeat is a microsecond, thousands are not."""
    nodes = [
        helper.make_node("MatMul", [f"t{index}" if index else "x", "w"], [f"t{index + 1}"]) for index in range(repeats)
    ]
    nodes.append(helper.make_node("Identity", [f"t{repeats}"], ["y"]))
    side = 8 if repeats == 1 else 256
    weights = helper.make_tensor("w", TensorProto.FLOAT, [side, side], [0.01] * side * side)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", side]) for name in "xy"]
    graph = helper.make_graph(nodes, "m", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.mark.parametrize(
    ("engine", "repeats", "rows"),
    [
        ("", 1, {0: 4}),
        ("", 400, {}),
        (", threads: 2", 1, {}),
        (", max_inflight: 2", 1, {}),
        (", isolation: thread", 1, {}),
        (", isolation: inline", 400, {0: UNLIMITED}),
    ],
    ids=["tiny", "slow", "threads of its own", "two at once", "thread", "inline"],
)
def test_what_is_over_before_it_could_be_handed_over_runs_where_it_is(tmp_path, engine, repeats, rows) -> None:
    model(tmp_path / "m.onnx", repeats)
    served = check(msgspec.yaml.decode(PIPELINE.format(engine=engine), type=Pipeline), "p")
    stages = load_stages(served, tmp_path, Clock())
    try:
        warm_models(served, stages)
        assert inline_rows(served, stages) == rows
    finally:
        close_stages(stages)
