import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.graph.values import Value, element_bits, evaluate, tensor_type


@pytest.mark.parametrize("opset", [11, 12])
def test_a_dimension_added_by_an_attribute_is_followed(opset: int) -> None:
    """Exporters below opset 13 build the targets of a Reshape this way."""
    node = helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0])
    known = Value(tensor_type(TensorProto.INT64, ()), np.array(40))
    (result,) = evaluate(node, opset, [known], [Value(tensor_type(TensorProto.INT64, (1,)))])
    assert result.data is not None
    assert result.data.tolist() == [40]


@pytest.mark.parametrize(("name", "number"), TensorProto.DataType.items())
def test_every_type_of_the_standard_has_a_width(name: str, number: int) -> None:
    """A type without one would have weights of no bytes; onnx knows how many a tensor's packed values take."""
    if name in {"UNDEFINED", "STRING"}:
        assert element_bits(number) == 0
        return
    stored = helper.make_tensor("w", number, [64], np.zeros(64, helper.tensor_dtype_to_np_dtype(number)))
    packed = numpy_helper.from_array(numpy_helper.to_array(stored))
    assert element_bits(number) * 64 == len(packed.raw_data) * 8
