"""What an engine says of a step is believed only when it answers for exactly what was asked."""

import pytest

from loadslice.backends.language import messages as m
from loadslice.serve.language.stepped import fault_of

ASKED = ((0, 5, True), (1, 5, True), (2, 5, False))


def drawn(*rows: int, token: int = 3) -> m.Stepped:
    return m.Stepped(1, tuple(m.Drawn(row, 0, token) for row in rows), 0, 0)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (drawn(0, 0), "twice"),
        (drawn(0, 1, 1), "twice"),
        (m.Stepped(1, (m.Drawn(0, 0, 3),), 0, 0, late=(0,)), "twice"),
        (drawn(0), "1 of 2 sequences, and for 0 others"),
        (drawn(), "0 of 2"),
        (drawn(0, 1, 2), "and for 1 others"),
        (drawn(0, 9), "1 of 2 sequences, and for 1 others"),
        (drawn(0, 1, token=10), "token 10 is not among the 10"),
        (drawn(0, 1, token=-1), "token -1"),
    ],
)
def test_what_is_no_answer_is_known_for_it(said: m.Stepped, why: str) -> None:
    assert why in fault_of(said, ASKED, 10)


@pytest.mark.parametrize(
    "said",
    [drawn(1, 0), m.Stepped(1, (m.Drawn(0, 0, 9),), 0, 0, late=(1,)), m.Stepped(1, (), 0, 0, (0,), ((1, "why"),))],
)
def test_each_sequence_once_is_an_answer(said: m.Stepped) -> None:
    assert fault_of(said, ASKED, 10) == ""
