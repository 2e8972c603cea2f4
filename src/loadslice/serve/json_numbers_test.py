import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.serve import json_numbers, oip, oip_reply
from loadslice.serve.datatypes import NUMPY, name_of
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.serve.turns import at_once

LIMITS = Limits()
numbers = st.integers(0, 100) | st.floats(-1e3, 1e3, width=16) | st.booleans() | st.none() | st.just("1")
nested = st.recursive(numbers, lambda inner: st.lists(inner, max_size=3), max_leaves=12)
shapes = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_numbers, "PIECE_BYTES", 4)
    monkeypatch.setattr(json_numbers, "PIECE_ELEMENTS", 3)


def outcome(shape: list[int], data: object, datatype: str, indent: int | None) -> tuple[object, ...]:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    try:
        decoded = oip.decode(json.dumps({"inputs": [tensor]}, indent=indent).encode(), None, LIMITS).tensors["x"]
    except RefusalError as refusal:
        return (refusal.status,)
    return decoded.dtype, decoded.shape, decoded.tobytes()


@given(
    shapes, st.lists(nested, max_size=4), st.sampled_from(["FP32", "FP16", "INT8", "BOOL"]), st.sampled_from([None, 1])
)
@settings(deadline=None, max_examples=400)
def test_whatever_is_given_piece_by_piece_is_taken_or_refused_as_in_one_go(shape, data, datatype, indent) -> None:
    by_pieces = outcome(shape, data, datatype, indent)
    json_numbers.PIECE_BYTES = 1 << 20
    try:
        assert by_pieces == outcome(shape, data, datatype, indent)
    finally:
        json_numbers.PIECE_BYTES = 4


@given(shapes, st.sampled_from(["FP32", "FP16", "INT8", "BOOL", "UINT64"]), st.booleans())
@settings(deadline=None, max_examples=100)
def test_what_is_written_piece_by_piece_is_read_again(shape, datatype, flat) -> None:
    tensor = np.arange(np.prod(shape)).astype(NUMPY[datatype]).reshape(shape)
    assert name_of(tensor.dtype) == datatype
    raw = b"".join(at_once(json_numbers.write(tensor)))
    assert json.loads(raw) == tensor.ravel().tolist()
    data = msgspec.json.encode(tensor.tolist())
    read = at_once(json_numbers.read(memoryview(raw if flat else data), [tensor.size] if flat else shape, tensor.dtype))
    assert read.tobytes() == tensor.tobytes()


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ([2, 1], "[[],[1,2]]"),
        ([4], "[1,2,[3,4]]"),
        ([2, 2], "[[1,2],[3,4]],[5]"),
        ([3], "[1,2,3,4]"),
        ([4], "[1,2,3]"),
        ([0], "[1]"),
        ([2], "[1[,]2]"),
        ([2], '["[",1]'),
        ([1 << 30, 0], "[[],[],[],[]]"),
        ([2], "[1,,2]"),
        ([3], "[1,2,]"),
        ([2], "[1 2]"),
    ],
)
def test_a_text_of_another_shape_is_refused(shape: list[int], data: str) -> None:
    body = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":{shape},"data":{data}}}]}}'
    with pytest.raises(RefusalError) as refused:
        oip.decode(body.encode(), None, LIMITS)
    assert refused.value.status == 400


def test_others_have_their_turn_after_each_piece() -> None:
    data = list(range(1000))
    raw = json.dumps(data).encode()
    assert sum(1 for _ in json_numbers.read(memoryview(raw), [1000], np.dtype(np.int16))) > len(raw) / 10
    assert sum(1 for _ in json_numbers.write(np.array(data))) == 334
    body = json.dumps({"inputs": [{"name": "x", "datatype": "INT16", "shape": [1000], "data": data}]}).encode()
    assert sum(1 for _ in oip.decoding(body, None, LIMITS)) > len(raw) / 10
    assert oip_reply.is_long({"y": np.zeros(4)}, oip.Wanted())
    assert not oip_reply.is_long({"y": np.zeros(4)}, oip.Wanted(binary=True))


def test_text_is_taken_bit_by_bit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oip, "STRINGS_PER_TURN", 2)
    assert sum(1 for _ in oip.strings(5, (b"\1\0\0\0x" * 5), "x")) == 2


def test_a_reply_in_pieces_is_the_same_reply() -> None:
    texts = np.array(["é", b"b", '"data":?', 4], object)
    tensors = {"y": np.arange(10.0), "few": np.zeros(2), '"data":?': texts, "none": np.zeros((0, 3))}
    for wanted in (oip.Wanted(), oip.Wanted({'"data":?': False, "few": True, "y": False})):
        written = at_once(oip_reply.long_json(tensors, wanted))
        assert len(written) == 2
        head, parts, size = oip_reply.Outputs("m").encode("id", tensors, wanted, written)
        whole = oip_reply.Outputs("m").encode("id", tensors, wanted)
        assert (b"".join(oip_reply.with_pieces(head, written)), parts, size) == whole


def test_text_that_json_does_not_hold_is_refused_in_pieces_too() -> None:
    with pytest.raises(RefusalError, match="output 'y' is not UTF-8"):
        at_once(oip_reply.long_json({"y": np.array([b"\xff"] * 4, object)}, oip.Wanted()))
