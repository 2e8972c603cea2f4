import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.serve import oip, oip_reply
from loadslice.serve.datatypes import NUMPY
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.spec.work import StageError

LIMITS = Limits(json_elements_max=1000, text_elements_max=100, rank_max=4, inputs_max=4)

arrays = st.sampled_from(sorted(NUMPY)).flatmap(
    lambda name: st.tuples(st.just(name), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.randoms())
)


def made(datatype: str, shape: list[int], draw) -> np.ndarray:
    """Random values that the type holds exactly."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        values = np.empty(count, object)
        values[:] = ["".join(draw.choices("aé漢\0\n", k=draw.randint(0, 5))) for _ in range(count)]
        return values.reshape(shape)
    if datatype == "BOOL":
        return np.array([draw.random() < 0.5 for _ in range(count)], bool).reshape(shape)
    return np.array([draw.randint(0, 100) for _ in range(count)], NUMPY[datatype]).reshape(shape)


@given(arrays, st.booleans())
@settings(deadline=None, max_examples=300)
def test_what_was_encoded_is_decoded_in_every_type_and_form(case, binary) -> None:
    datatype, shape, draw = case
    tensor = made(datatype, shape, draw)
    reply = oip_reply.encode("m", "id", {"t": tensor}, oip.Wanted(binary=binary))
    length = len(reply.body) if reply.header_length is None else reply.header_length
    outputs = json.loads(reply.body[:length])["outputs"]
    head = json.dumps({"inputs": outputs}).encode()
    decoded = oip.decode(head + reply.body[length:], str(len(head)), LIMITS).tensors["t"]
    assert decoded.shape == tensor.shape
    if datatype == "BYTES":
        texts = [value.decode() if isinstance(value, bytes) else value for value in decoded.ravel()]
        assert texts == tensor.ravel().tolist()
    else:
        assert decoded.dtype == NUMPY[datatype]
        assert decoded.tobytes() == tensor.tobytes()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y", ""]) | json_values,
        "datatype": st.sampled_from([*NUMPY, "BF16"]) | json_values,
        "shape": st.lists(st.integers(-2, 6) | st.integers(), max_size=5) | json_values,
        "data": st.lists(st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3) | st.booleans(), max_size=9)
        | json_values,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-3, 40) | json_values})
        | json_values,
    },
)
documents = st.fixed_dictionaries(
    {"inputs": st.lists(tensors, max_size=3) | json_values},
    optional={
        "id": json_values,
        "parameters": json_values,
        "outputs": st.lists(st.fixed_dictionaries({"name": st.sampled_from("xy")}), max_size=3) | json_values,
    },
)
headers = st.none() | st.integers(-5, 300).map(str) | st.text(max_size=4)


def decodes_or_refuses(body: bytes, header: str | None) -> None:
    refusals = []
    try:
        tensors = oip.decode(body, header, LIMITS).tensors
    except RefusalError as refusal:
        refusals.append((refusal.status, bool(refusal.text)))
    else:
        assert tensors
        assert all(tensor.ndim >= 1 for tensor in tensors.values())
    assert refusals in ([], [(400, True)])


@given(documents, st.binary(max_size=40), headers, st.booleans())
@settings(deadline=None, max_examples=1500)
def test_whatever_a_client_sends_is_decoded_or_its_own_fault(document, tail, header, honest) -> None:
    head = json.dumps(document).encode()
    decodes_or_refuses(head + tail, str(len(head)) if honest else header)


@given(st.binary(max_size=200), headers)
@settings(deadline=None, max_examples=500)
def test_bytes_that_mean_nothing_are_refused(body, header) -> None:
    decodes_or_refuses(body, header)


def test_binary_tensors_are_views_of_the_body() -> None:
    given_tensor = {"name": "x", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}}
    head = json.dumps({"inputs": [given_tensor]}).encode()
    head += b" " * (-len(head) % 8)
    body = head + np.arange(4, dtype=np.float32).tobytes()
    tensor = oip.decode(body, str(len(head)), LIMITS).tensors["x"]
    assert not tensor.flags.owndata
    assert tensor.flags.aligned


def test_a_tensor_that_would_stand_unaligned_is_moved() -> None:
    given_tensor = {"name": "x", "datatype": "FP64", "shape": [2], "parameters": {"binary_data_size": 16}}
    for padding in range(8):
        head = json.dumps({"inputs": [given_tensor]}).encode() + b" " * padding
        tensor = oip.decode(head + np.array([1.0, 2.0]).tobytes(), str(len(head)), LIMITS).tensors["x"]
        assert tensor.flags.aligned
        assert tensor.tolist() == [1.0, 2.0]


def test_a_small_body_cannot_ask_for_a_large_tensor() -> None:
    for shape in ([2**39], [1, 2**39], [2**20, 2**19]):
        for parameters in ({}, {"binary_data_size": 4}):
            tensor = {"name": "x", "datatype": "UINT8", "shape": shape, "parameters": parameters}
            head = json.dumps({"inputs": [tensor if parameters else tensor | {"data": [1]}]}).encode()
            with pytest.raises(RefusalError):
                oip.decode(head + b"abcd" * bool(parameters), str(len(head)), LIMITS)


def test_an_output_nobody_has_is_the_clients_fault() -> None:
    with pytest.raises(RefusalError, match="'w' is not an output of 'm'"):
        oip_reply.encode("m", None, {"z": np.zeros(1)}, oip.Wanted({"w": False}))


def test_values_without_a_json_form_are_null() -> None:
    reply = oip_reply.encode("m", None, {"z": np.array([np.nan, np.inf, 1], np.float32)}, oip.Wanted())
    assert json.loads(reply.body)["outputs"][0]["data"] == [None, None, 1.0]


@pytest.mark.parametrize("dtype", [np.complex64, "datetime64[s]"])
def test_a_type_without_a_name_is_our_fault(dtype) -> None:
    with pytest.raises(RefusalError) as refused:
        oip_reply.encode("m", None, {"z": np.zeros(1, dtype)}, oip.Wanted())
    assert refused.value.status == 500


def test_the_number_of_elements_is_bounded_in_every_form() -> None:
    many = {"name": "x", "datatype": "BYTES", "shape": [101]}
    packed = many | {"parameters": {"binary_data_size": 404}}
    head = json.dumps({"inputs": [packed]}).encode()
    with pytest.raises(RefusalError, match="more than 100 BYTES elements"):
        oip.decode(head + bytes(404), str(len(head)), LIMITS)
    with pytest.raises(RefusalError, match="more than 100 BYTES elements"):
        oip.decode(json.dumps({"inputs": [many | {"data": [""] * 101}]}).encode(), None, LIMITS)
    for datatype, count, said in (("BYTES", 5000, "the data has more"), ("INT8", 1001, "the data has 1001")):
        hidden = {"name": "x", "datatype": datatype, "shape": [1], "data": ["" if datatype == "BYTES" else 0] * count}
        with pytest.raises(RefusalError, match=said):
            oip.decode(json.dumps({"inputs": [hidden]}).encode(), None, LIMITS)


@pytest.mark.parametrize(
    "tensor",
    [
        np.zeros(1, "datetime64[s]"),
        np.zeros(1, np.complex64),
        np.zeros(1, np.clongdouble),
        np.array(["a", "\ud800"], object),
        np.array(["\ud800"]),
    ],
)
def test_outputs_without_a_form_on_the_wire_are_the_stages_fault(tensor) -> None:
    oip_reply.check_outputs({"text": np.array(["é", b"\xff", 1], object), "number": np.zeros(1)})
    with pytest.raises(StageError, match="output 'z' is"):
        oip_reply.check_outputs({"z": tensor})


def test_as_json_no_more_is_given_than_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oip_reply, "JSON_ELEMENTS_MAX", 3)
    tensors = {"y": np.zeros(4, np.float32)}
    with pytest.raises(RefusalError, match="'y' has 4 elements, 3 is the most") as refused:
        oip_reply.encode("m", None, tensors, oip.Wanted())
    assert refused.value.status == 400
    assert oip_reply.encode("m", None, tensors, oip.Wanted(binary=True)).body.endswith(bytes(16))


def test_a_long_name_is_refused_and_not_sent_back() -> None:
    long = {"name": "n" * 100_000, "datatype": "INT8", "shape": [1], "data": [1]}
    with pytest.raises(RefusalError, match="longer than 256") as refused:
        oip.decode(json.dumps({"inputs": [long]}).encode(), None, LIMITS)
    assert len(refused.value.text) < 256
