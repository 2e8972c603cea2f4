"""Answers in company: a scale taken over the batch changes what a row answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from loadslice.backends.base import EngineError, TensorInfo
from loadslice.spec.work import Tensor
from loadslice.variants.exam import Exam
from loadslice.variants.metrics import Floor
from loadslice.variants.recorded import Recorded
from loadslice.variants.together import judge_together, takes_rows


class DynamicScale:
    """Rounds its input to 4 bits of the batch's largest value, as dynamic quantisation takes its scale."""

    def __init__(self, rows: int | None = None) -> None:
        self.inputs = self.outputs = [TensorInfo("x", np.dtype(np.float32), (rows, None))]
        self.seen: list[int] = []

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        (x,) = feeds.values()
        self.seen.append(len(x))
        step = max(float(np.abs(x).max()), 1e-9) / 7
        return {"y": np.round(x / step) * step}

    def describe(self) -> dict[str, Any]:
        return {"precision": "int8"}

    def close(self) -> None:
        pass


def exam(values: list[list[float]], labels: list[Any] | None = None, given: Floor | None = None) -> Exam:
    feeds = [{"x": np.array([one], np.float32)} for one in values]
    inputs = Recorded([str(i) for i in range(len(values))], feeds, np.ones(len(values)), labels)
    return Exam("cosine" if labels is None else "top1", inputs, [{"y": one["x"]} for one in feeds], given, None)


def test_a_row_that_is_right_alone_is_wrong_beside_a_larger_one() -> None:
    asked = exam([[0.01, 0.0], [0.0, 1.0], [0.01, 0.0], [0.0, 1.0]])
    session = DynamicScale()
    assert asked.passes(asked.marks([session.run(one) for one in asked.inputs.feeds]))
    found = judge_together(session, asked, 2)
    assert found is not None
    part, marks = found
    assert len(part) == 4
    assert not part.passes(marks), "the small row is rounded away"


def test_inputs_without_company_of_their_shape_are_left_out_and_labels_go_along() -> None:
    asked = exam([[1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0], [0.2, 1.0]], labels=[0, 2, 1, 0])
    session = DynamicScale()
    found = judge_together(session, asked, 16)
    assert found is not None
    part, marks = found
    assert session.seen == [3]
    assert part.inputs.names == ["0", "2", "3"]
    assert marks.metric == part.source_mark == pytest.approx(2 / 3)
    assert part.floor.least == pytest.approx(2 / 3 - 0.005), "half a point below the source on these inputs"
    assert judge_together(session, exam([[1.0], [1.0, 2.0]]), 16) is None


def test_a_batch_is_as_large_as_asked_for_and_no_larger() -> None:
    session = DynamicScale()
    assert judge_together(session, exam([[1.0]] * 10), 4) is not None
    assert session.seen == [4, 4, 2]


def test_models_of_one_row_are_not_batched() -> None:
    feeds = {"x": np.ones((1, 2), np.float32)}
    assert takes_rows(DynamicScale(), feeds)
    assert not takes_rows(DynamicScale(rows=1), feeds)

    class Refuses(DynamicScale):
        def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
            raise EngineError("no")

    class Joins(DynamicScale):
        def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
            return {"y": np.zeros((1, 2))}

    assert not takes_rows(Refuses(), feeds)
    assert not takes_rows(Joins(), feeds)
