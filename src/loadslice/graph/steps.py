"""What a walk over a graph leaves: its nodes in order, with what is known of the tensors around each."""

from dataclasses import dataclass, field

import onnx
from onnx import helper

from loadslice.graph.values import Value

Env = dict[str, Value]


@dataclass(slots=True)
class Step:
    """One node with what is known of the tensors around it."""

    node: onnx.NodeProto
    scope: str
    opset: int
    inputs: list[Value | None]
    outputs: list[Value]
    bodies: list["Body"] = field(default_factory=list)
    trouble: str | None = None
    """Why output shapes are unknown, when they are."""

    @property
    def name(self) -> str:
        """The node's name, or its first output's."""
        return self.node.name or next((name for name in self.node.output if name), self.node.op_type)

    @property
    def attributes(self) -> dict[str, object]:
        """Attribute values, subgraphs and tensors excluded."""
        return attribute_values(self.node)

    @property
    def folded(self) -> bool:
        """A runtime does this at load: nothing it reads depends on the model's inputs."""
        return bool(self.outputs) and all(out.constant for out in self.outputs)


@dataclass(slots=True)
class Body:
    """A graph that has been walked."""

    graph: onnx.GraphProto
    steps: list[Step]
    env: Env
    times: int | None = 1
    """Executions per execution of the node that holds it; ``None``: known only at run time."""
    alternative: bool = False
    """A branch of an If whose condition is known only at run time."""


def attribute_values(node: onnx.NodeProto) -> dict[str, object]:
    """Attribute name to value; bytes decoded; subgraphs and tensors left out."""
    values: dict[str, object] = {}
    for attribute in node.attribute:
        if attribute.type in {
            onnx.AttributeProto.INT,
            onnx.AttributeProto.INTS,
            onnx.AttributeProto.FLOAT,
            onnx.AttributeProto.FLOATS,
        }:
            value = helper.get_attribute_value(attribute)
            values[attribute.name] = list(value) if attribute.type >= onnx.AttributeProto.FLOATS else value
        elif attribute.type == onnx.AttributeProto.STRING:
            values[attribute.name] = attribute.s.decode("utf-8", "replace")
    return values
