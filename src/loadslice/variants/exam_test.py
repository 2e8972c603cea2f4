"""Whether a candidate may go before the judges."""

import numpy as np
import pytest

from loadslice.variants.exam import Exam, Marks
from loadslice.variants.recorded import Recorded


def exam(count: int, metric: str = "top1") -> Exam:
    inputs = Recorded([str(i) for i in range(count)], [{"x": np.ones((1, 1))}] * count, np.ones(count), None)
    return Exam(metric, inputs, [{"y": np.array([[0.1, 0.9]])}] * count, None, None)


@pytest.mark.parametrize(
    ("count", "metric", "mark", "near"),
    [
        (20, "top1", 0.95, True),  # one of twenty
        (20, "top1", 0.90, False),
        (400, "top1", 0.9949, False),  # one of 400 is less than the floor lets it lose
        (20, "cosine", 0.95, False),  # no count of answers
    ],
)
def test_one_answer_of_few_is_no_reason_to_keep_a_candidate_from_the_judges(
    count: int, metric: str, mark: float, near: bool
) -> None:
    found = exam(count, metric)
    assert not found.passes(Marks(mark, 20.0, 0.99))
    assert found.nearly_passes(Marks(mark, 20.0, 0.99)) is near
