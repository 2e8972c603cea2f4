"""An engine whose runtime computes what cannot be true says so, of the rows that it is true of."""

from collections.abc import Sequence as Rows
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadslice.backends.language import messages as m
from loadslice.backends.language.base import Float32s, StepRow
from loadslice.backends.language.checks import UNTRUE_STEPS_MAX, fault_of_shape, fault_of_step, untrue_rows
from loadslice.backends.language.worker import Engine, Sequence

VOCABULARY = 7
GREEDY = m.Sampling()
WARM = m.Sampling(temperature=1.0, top_p=0.9, logprobs=2)


class Runtime:
    """Gives the rows that it is told to."""

    vocabulary = VOCABULARY
    layout = SimpleNamespace(block=4)

    def __init__(self) -> None:
        self.logits: Float32s = np.zeros((0, VOCABULARY), np.float32)
        self.lengths: dict[int, int] = {}

    def length(self, sequence: int) -> int:
        return self.lengths.get(sequence, 0)

    def step(self, rows: Rows[StepRow]) -> Float32s:
        for row in rows:
            self.lengths[row.sequence] = self.length(row.sequence) + len(row.tokens)
        return self.logits


def engine(sampling: m.Sampling = GREEDY, count: int = 2) -> tuple[Any, Runtime]:
    """An engine with sequences of three tokens each."""
    made: Any = Engine.__new__(Engine)
    runtime = Runtime()
    made._session, made._untrue_steps = runtime, 0
    made._cache = SimpleNamespace(keep=lambda *_: None)
    made._sequences = {row: Sequence(10 + row, [1, 2, 3], 3, sampling, []) for row in range(count)}
    return made, runtime


def rows(*values: float | list[float]) -> Float32s:
    return np.array([np.arange(VOCABULARY) * value if isinstance(value, float) else value for value in values], "f4")


STEP = m.Step(5, ((0, 3, True), (1, 3, True)))


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([1.0, np.nan, 0, 0, 0, 0, 0], "NaN or infinity"),
        ([1.0, np.inf, 0, 0, 0, 0, 0], "NaN or infinity"),
        ([-np.inf] * VOCABULARY, "NaN or infinity"),
        ([0.0] * VOCABULARY, "computed nothing"),
        ([3.5] * VOCABULARY, "computed nothing"),
    ],
)
def test_a_row_that_cannot_be_true_is_lost_alone(sampling: m.Sampling, wrong: list[float], why: str) -> None:
    made, runtime = engine(sampling)
    runtime.logits = rows(wrong, 1.0)
    said = made.obey(STEP)
    assert isinstance(said, m.Stepped)
    assert [one.row for one in said.drawn] == [1]
    assert [row for row, _ in said.lost] == [0]
    assert why in said.lost[0][1]
    assert len(made._sequences[0].tokens) == 3, "nothing was drawn for it"


def test_an_engine_of_which_nothing_is_true_any_more_says_so() -> None:
    made, runtime = engine()
    for number in range(UNTRUE_STEPS_MAX):
        runtime.lengths.clear()
        runtime.logits = np.zeros((2, VOCABULARY), np.float32)
        said = made.obey(STEP)
        assert isinstance(said, m.Broken if number == UNTRUE_STEPS_MAX - 1 else m.Stepped)
    assert said.what == "step"
    assert said.reason == "the engine computed nothing, 3 steps in a row"


@pytest.mark.parametrize("shape", [(1, VOCABULARY), (2, VOCABULARY + 1), (3, VOCABULARY), (2 * VOCABULARY,)])
def test_numbers_of_another_shape_are_no_answer(shape: tuple[int, ...]) -> None:
    made, runtime = engine()
    runtime.logits = np.ones(shape, np.float32)
    said = made.obey(STEP)
    assert isinstance(said, m.Broken)
    assert "numbers for 2 rows of 7" in said.reason


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (((0, 3, True), (0, 3, True)), "twice"),
        (((0, 3, True), (4, 3, True)), "sequence 4 is not here"),
        (((0, 4, True),), "KV of 0 of its 3 tokens; 4 cannot be next"),
        (((0, 0, True),), "0 cannot be next"),
    ],
)
def test_a_step_that_cannot_be_computed_is_refused_before_it_is(
    asked: tuple[tuple[int, int, bool], ...], why: str
) -> None:
    made, runtime = engine()
    said = made.obey(m.Step(6, asked))
    assert isinstance(said, m.Broken)
    assert why in said.reason
    assert runtime.lengths == {}, "nothing was computed"


def test_a_step_that_is_told_twice_is_refused() -> None:
    made, runtime = engine()
    runtime.logits = rows(1.0, 2.0)
    assert isinstance(made.obey(STEP), m.Stepped)
    said = made.obey(STEP)
    assert isinstance(said, m.Broken)
    assert "has KV of 3 of its 4 tokens; 3 cannot be next" in said.reason


def test_what_is_right_has_no_fault() -> None:
    logits = rows(1.0, -1.0, [5, 5, 5, 5, 5, 5, 4.9])
    assert untrue_rows(logits, logits.argmax(axis=1)) == {}
    assert fault_of_shape(logits, 3, VOCABULARY) == ""
    assert fault_of_shape(np.zeros((0, VOCABULARY), np.float32), 0, VOCABULARY) == ""
    assert untrue_rows(np.zeros((0, VOCABULARY), np.float32), np.zeros(0, np.int64)) == {}
    assert fault_of_step(((0, 2, False), (1, 3, True)), {0: (1, 3), 1: (2, 3)}) == ""
