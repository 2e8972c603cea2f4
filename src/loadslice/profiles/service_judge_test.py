"""A service's answers when requests run together, and what is left out when they do not bear it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nncf", reason="the extra 'squeeze' is not installed")
pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")

from loadslice.backends.base import TensorInfo
from loadslice.profiles import service
from loadslice.profiles.chain import Step
from loadslice.profiles.service_judge import answers
from loadslice.profiles.service_pipeline import Tuned
from loadslice.spec.pipeline import Stage
from loadslice.spec.work import Sample, Tensor, Work


class DynamicScale:
    """Rounds its input to 4 bits of the batch's largest value, as dynamic quantisation takes its scale."""

    def __init__(self) -> None:
        self.inputs = self.outputs = [TensorInfo("x", np.dtype(np.float32), (None, None))]
        self.seen: list[tuple[int, ...]] = []

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        (x,) = feeds.values()
        self.seen.append(x.shape)
        step = max(float(np.abs(x).max()), 1e-9) / 7
        return {"y": np.round(x / step) * step}


def stage(**changes: Any) -> Stage:
    return Stage(name="look", model="m.onnx", engine="cpu", **changes)


def samples(*rows: list[list[float]]) -> list[Sample]:
    tensors = [np.array(one, np.float32).reshape(len(one), len(one[0]) if one else 2) for one in rows]
    return [Sample(f"s{i}", "x", b"", tensors={"x": one}) for i, one in enumerate(tensors)]


def test_rows_of_several_requests_share_a_scale_and_each_gets_its_own_back() -> None:
    session = DynamicScale()
    step = Step(stage(carry=["x"]), None, {"cpu": session})  # type: ignore[dict-item]
    asked = samples([[0.01, 0.0]], [[0.0, 1.0], [1.0, 0.0]])
    alone = answers(asked, [step], {})
    together = answers(asked, [step], {"look": 4})
    assert session.seen == [(1, 2), (2, 2), (3, 2)]
    assert alone[0].tensors["y"][0, 0] == pytest.approx(0.01)
    assert together[0].tensors["y"][0, 0] == 0.0, "rounded away beside a larger row"
    assert [work.items for work in together] == [1, 2]
    assert together[1].tensors["y"].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert together[1].tensors["x"].tolist() == [[0.0, 1.0], [1.0, 0.0]], "carried"


def test_requests_without_rows_go_their_own_way_and_batches_end_at_their_size() -> None:
    session = DynamicScale()
    step = Step(stage(buckets=[[2], [4]]), None, {"cpu": session})  # type: ignore[dict-item]
    asked = samples([[1.0, 0.0]], [], [[1.0, 0.0, 0.0]], [[1.0, 0.0]], [[1.0, 0.0]])
    found = answers(asked, [step], {"look": 2})
    assert session.seen == [(2, 2), (1, 2), (1, 4)], "by bucket, two rows at most"
    assert [work.items for work in found] == [1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("bears", "batch", "buckets"),
    [({"buckets", "batches"}, 8, [[4]]), ({"buckets"}, 1, [[4]]), (set(), 1, [])],
)
def test_batches_and_then_buckets_go_where_answers_do_not_bear_them(
    monkeypatch: pytest.MonkeyPatch, bears: set[str], batch: int, buckets: list[list[int]]
) -> None:
    def mark(_order: Any, tuned: Mapping[str, Tuned], _judge: Any) -> float:
        (one,) = tuned.values()
        used = {name for name, on in (("buckets", bool(one.buckets)), ("batches", one.batch > 1)) if on}
        return float(used <= bears)

    monkeypatch.setattr(service, "_run", mark)
    option: Any = SimpleNamespace(name="int8-dynamic-onnxruntime")
    tuned = {"look": Tuned(option, [[4]], "traffic", {}, 8, {})}
    order: Any = SimpleNamespace(tell=lambda text: None)
    judges: Any = SimpleNamespace(choosing=SimpleNamespace(name="cosine", floor=0.99), trials=[])
    found = service._as_served(order, tuned, judges)["look"]
    assert (found.batch, found.buckets) == (batch, buckets)
    assert [(trial.buckets, trial.rows["look"]) for trial in judges.trials] == [(True, 8), (True, 1)][
        : 1 if batch > 1 else 2
    ]


def test_text_answers_survive_company() -> None:
    class Reads(DynamicScale):
        def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
            (x,) = feeds.values()
            return {"text": np.array([str(int(row[0])) for row in x], object)}

    step = Step(stage(), None, {"cpu": Reads()})  # type: ignore[dict-item]
    found = answers(samples([[1.0]], [[2.0], [3.0]]), [step], {"look": 16})
    assert [work.tensors["text"].tolist() for work in found] == [["1"], ["2", "3"]]
    assert isinstance(found[0], Work)
