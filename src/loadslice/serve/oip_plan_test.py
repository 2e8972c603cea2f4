import json

import numpy as np
import pytest

from loadslice.serve import oip
from loadslice.serve.limits import Limits
from loadslice.serve.oip_plan import JSON_BYTES_MAX, PLANS_MAX, Plans, tensors_of

LIMITS = Limits()


def body(*tensors: tuple[str, str, np.ndarray], padding: int = 0, **more: object) -> tuple[bytes, bytes]:
    """JSON part and whole body."""
    inputs = [
        {
            "name": name,
            "datatype": datatype,
            "shape": list(rows.shape),
            "parameters": {"binary_data_size": rows.nbytes},
        }
        for name, datatype, rows in tensors
    ]
    head = json.dumps({"inputs": inputs, **more}).encode() + b" " * padding
    return head, head + b"".join(rows.tobytes() for _, _, rows in tensors)


def kept(head: bytes, whole: bytes) -> Plans:
    plans = Plans()
    decoded = oip.decode(whole, str(len(head)), LIMITS)
    plans.keep(head, decoded, decoded.tensors, 3)
    return plans


@pytest.mark.parametrize("padding", range(8))
def test_a_plan_gives_what_decoding_gives_wherever_the_tensors_stand(padding) -> None:
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    marks = np.array([[1], [2]], np.int32)
    head, whole = body(("x", "FP64", rows), ("m", "INT32", marks), padding=padding)
    plan = kept(head, whole).find(head)
    assert plan is not None
    assert (plan.bucket, plan.binary_bytes) == (3, rows.nbytes + marks.nbytes)
    _, other = body(("x", "FP64", rows * 7), ("m", "INT32", marks * 7), padding=padding)
    for given in (other, memoryview(bytearray(other))):
        found = tensors_of(plan, given, len(head))
        again = oip.decode(given, str(len(head)), LIMITS).tensors
        assert list(found) == list(again)
        for name, tensor in found.items():
            assert tensor.flags.aligned
            np.testing.assert_array_equal(tensor, again[name])


def test_what_must_be_looked_at_each_time_is_not_kept() -> None:
    rows = np.ones((1, 2), np.float32)
    for head, whole in (
        body(("x", "FP32", rows), id="mine"),
        body(("x", "BOOL", np.ones((1, 2), bool))),
        body(("x", "FP32", rows), padding=JSON_BYTES_MAX),
    ):
        assert kept(head, whole).find(head) is None


def test_plans_are_bounded() -> None:
    plans = Plans()
    rows = np.ones((1, 2), np.float32)
    for number in range(PLANS_MAX + 1):
        head, whole = body((f"x{number}", "FP32", rows))
        decoded = oip.decode(whole, str(len(head)), LIMITS)
        plans.keep(head, decoded, decoded.tensors, 0)
    assert len(plans._known) == 1
