import numpy as np
import pytest

from loadslice.serve import grpc_tensors, oip
from loadslice.serve.grpc_messages import messages
from loadslice.serve.grpc_plan import Outputs, varint
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError

LIMITS = Limits(inputs_max=4, text_elements_max=100, json_elements_max=100)


def asked(*inputs, raw=(), outputs=()):
    made = messages().classes["ModelInferRequest"](model_name="m")
    for name, datatype, shape, contents in inputs:
        tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
        for field, values in contents.items():
            getattr(tensor.contents, field).extend(values)
    made.raw_input_contents.extend(raw)
    for name in outputs:
        made.outputs.add(name=name)
    return made


CONTENTS = [
    ("BOOL", "bool_contents", [True, False], np.bool_),
    ("INT8", "int_contents", [-128, 127], np.int8),
    ("INT16", "int_contents", [-5, 5], np.int16),
    ("INT32", "int_contents", [-5, 5], np.int32),
    ("INT64", "int64_contents", [-5, 2**60], np.int64),
    ("UINT8", "uint_contents", [0, 255], np.uint8),
    ("UINT16", "uint_contents", [0, 65535], np.uint16),
    ("UINT32", "uint_contents", [0, 2**32 - 1], np.uint32),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], np.uint64),
    ("FP32", "fp32_contents", [1.5, -2.0], np.float32),
    ("FP64", "fp64_contents", [1.5, -2.0], np.float64),
    ("BYTES", "bytes_contents", [b"a", b""], np.object_),
]


@pytest.mark.parametrize(("datatype", "field", "values", "dtype"), CONTENTS)
def test_typed_contents_become_tensors(datatype, field, values, dtype) -> None:
    tensor = grpc_tensors.decode(asked(("x", datatype, [2, 1], {field: values})), LIMITS).tensors["x"]
    assert tensor.dtype == dtype
    assert tensor.tolist() == [[value] for value in values]


@pytest.mark.parametrize(("datatype", "field", "values", "dtype"), [*CONTENTS[:-1], ("FP16", "", [1, 2], np.float16)])
def test_raw_contents_become_the_same_tensors(datatype, field, values, dtype) -> None:
    raw = np.array(values, dtype)
    made = asked(("x", datatype, [2, 1], {}), raw=[raw.tobytes()])
    np.testing.assert_array_equal(grpc_tensors.decode(made, LIMITS).tensors["x"], raw.reshape(2, 1))


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (asked(), "0 tensors"),
        (asked(*[(str(n), "FP32", [1], {"fp32_contents": [0]}) for n in range(5)]), "5 tensors"),
        (asked(("x", "FP32", [1], {}), raw=[b"", b""]), "2 for 1 inputs"),
        (asked(("x", "FP32", [1], {"fp32_contents": [1]}), raw=[b"0000"]), "not both"),
        (asked(("x", "FP8", [1], {})), "datatype 'FP8'"),
        (asked(("x", "FP16", [1], {})), "no typed contents"),
        (asked(("x", "FP32", [], {})), "0 dimensions"),
        (asked(("x", "FP32", [1] * 17, {})), "17 dimensions"),
        (asked(("x", "FP32", [-1], {})), "negative"),
        (asked(("x", "FP32", [2**62, 2**62], {}), raw=[b""]), "larger than any"),
        (asked(("x", "FP32", [0, 2**62], {}), raw=[b""]), "larger than any"),
        (asked(("x", "FP32", [2], {}), raw=[b"0000"]), "asks for 8 bytes, 4 are given"),
        (asked(("x", "FP32", [2], {"fp32_contents": [1]})), "fp32_contents has 1"),
        (asked(("x", "FP32", [2], {"fp64_contents": [1, 2]})), "fp32_contents has 0"),
        (asked(("x", "INT8", [1], {"int_contents": [128]})), "does not fit INT8"),
        (asked(("x", "UINT8", [1], {"uint_contents": [256]})), "does not fit UINT8"),
        (asked(("x", "BOOL", [1], {}), raw=[b"\2"]), "must be 0 or 1"),
        (asked(("x", "BYTES", [101], {}), raw=[b""]), "more than 100 BYTES"),
        (asked(("x", "BYTES", [1], {}), raw=[b"\5\0\0\0abc"]), "says 5 bytes, 3 are left"),
        (asked(("x", "BYTES", [1], {}), raw=[b"\1\0\0\0abc"]), "2 bytes follow"),
        (asked(("x", "BYTES", [2], {}), raw=[b"\4\0\0\0abcd"]), "says 0 bytes"),
        (asked(("x", "FP32", [101], {"fp32_contents": [0] * 101})), "more than 100 elements"),
        (asked(("x", "FP32", [1], {"fp32_contents": [0]}), ("x", "FP32", [1], {"fp32_contents": [0]})), "given twice"),
        (asked(("x" * 300, "FP32", [1], {"fp32_contents": [0]})), "longer than 256"),
        (asked(("x", "FP32", [1], {"fp32_contents": [0]}), outputs=["y", "y"]), "given twice"),
        (asked(("x", "FP32", [1], {"fp32_contents": [0]}), outputs=["a", "b", "c", "d", "e"]), "5 are more than 4"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(request_, says: str) -> None:
    with pytest.raises(RefusalError, match="element 1" if says == "says 0 bytes" else says) as caught:
        grpc_tensors.decode(request_, LIMITS)
    assert caught.value.status == 400


def test_a_reply_is_the_same_message_the_second_time_and_with_an_id() -> None:
    kind = messages().classes["ModelInferResponse"]
    outputs = Outputs(kind, "m", "1")
    for identity in ("", "a", "b" * 200, ""):
        for values in (np.arange(4, dtype=np.float32).reshape(2, 2), np.zeros((0, 2), np.int8)):
            made = kind.FromString(outputs.encode(identity, {"y": values}, oip.Wanted(binary=True)))
            assert (made.model_name, made.model_version, made.id) == ("m", "1", identity)
            (output,) = made.outputs
            assert list(output.shape) == list(values.shape)
            assert list(made.raw_output_contents) == [values.tobytes()]


@pytest.mark.parametrize("number", [0, 127, 128, 300, 2**21, 2**35])
def test_varints_are_those_of_protobuf(number: int) -> None:
    from google.protobuf.internal.encoder import _VarintBytes

    assert varint(number) == _VarintBytes(number)
