"""Signals of answers by hand."""

import math

import numpy as np
import pytest

from loadslice.spec.signals import ELEMENTS_MAX, read
from loadslice.spec.watch import Signal

LOGITS = np.array([[0.0, math.log(3), 0.0], [0.0, math.log(8), 0.0]], np.float32)


@pytest.mark.parametrize(
    ("take", "tensor", "value"),
    [
        ("mean", np.array([0.25, 0.75], np.float32), 0.5),
        ("min", np.array([[3, 4]], np.int64), 3.0),
        ("max", np.array([[3, 4]], np.int64), 4.0),
        ("rows", np.zeros((7, 4, 2), np.float32), 7.0),
        ("rows", np.zeros((0, 4), np.float32), 0.0),
        ("characters", np.array(["ab", "abcd"], object), 3.0),
        ("max_probability", LOGITS, (3 / 5 + 8 / 10) / 2),
        ("max_probability", np.array([[0.1, 0.9]], np.float32), 0.9),
        ("entropy", np.array([[0.5, 0.5]], np.float32), math.log(2)),
        ("class", LOGITS, 1.0),
        ("class", np.array([0.1, 0.2, 0.9], np.float32), 2.0),
        ("mean", np.zeros((0, 4), np.float32), None),
        ("mean", np.array([1.0, np.nan], np.float32), None),
        ("class", np.array([[1.0, np.inf]], np.float32), None),
        ("max_probability", np.array([[np.nan, 1.0]], np.float32), None),
        ("mean", np.array(["text"], object), None),
    ],
)
def test_a_signal_of_an_answer(take, tensor, value) -> None:
    (found,) = read([Signal(name="s", output="y", take=take)], {"y": tensor})
    assert found == (None if value is None else pytest.approx(value))


def test_an_answer_without_the_output_has_no_value() -> None:
    assert read([Signal(name="s", output="z", take="mean")], {"y": LOGITS}) == [None]


def test_a_large_output_is_read_at_evenly_spaced_rows() -> None:
    large = np.repeat(np.arange(64, dtype=np.float32)[:, None], ELEMENTS_MAX, axis=1)
    (found,) = read([Signal(name="s", output="y", take="max")], {"y": large})
    assert found == 0.0
    tall = np.repeat(np.arange(ELEMENTS_MAX * 4, dtype=np.float32)[:, None], 2, axis=1)
    (found,) = read([Signal(name="s", output="y", take="mean")], {"y": tall})
    assert found == pytest.approx(tall.mean(), rel=1e-3)
