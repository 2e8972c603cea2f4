import numpy as np
import pytest
from onnx import TensorProto, helper

from loadslice.graph.values import Value, evaluate, tensor_type


@pytest.mark.parametrize("opset", [11, 12])
def test_a_dimension_added_by_an_attribute_is_followed(opset: int) -> None:
    """Exporters below opset 13 build the targets of a Reshape this way."""
    node = helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0])
    known = Value(tensor_type(TensorProto.INT64, ()), np.array(40))
    (result,) = evaluate(node, opset, [known], [Value(tensor_type(TensorProto.INT64, (1,)))])
    assert result.data is not None
    assert result.data.tolist() == [40]
