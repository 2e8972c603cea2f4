"""What an engine's process says fits into a message, whatever a runtime or a model makes of it."""

import pytest

from loadslice.backends.isolated import worker
from loadslice.backends.isolated.messages import (
    MESSAGE_BYTES_MAX,
    Failed,
    Loaded,
    Placed,
    Ran,
    Refused,
    Told,
    answer_decoder,
    ran_decoder,
)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Failed("input", "x" * 10**6), "xxx"),
        (Refused("y" * 10**6), "yyy"),
        (Ran([Placed("name" * 50, "<f4", [1], 0, 4)] * 1000, 1, 0), "tensors take"),
        (Loaded([Told("name" * 50, "<f4", [1])] * 1000, []), "tensors take"),
    ],
)
def test_an_answer_that_no_message_holds_is_said_in_short(answer: Failed | Refused | Ran | Loaded, words: str) -> None:
    said = worker._said(answer)
    assert len(said) <= MESSAGE_BYTES_MAX
    decoder = ran_decoder if isinstance(answer, Failed | Ran) else answer_decoder
    told = decoder.decode(said)
    assert isinstance(told, Failed | Refused)
    assert words in told.text
