"""What stands for the traffic when times are taken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadslice.spec.variant import CpuOffer
from loadslice.variants.bench import Workbench
from loadslice.variants.exam import Exam
from loadslice.variants.prepare import Prepared
from loadslice.variants.recorded import Recorded

OFFER = CpuOffer(int8=None, bf16=None, fp16=None, numa_nodes=None, cores_usable=1)


def bench(sizes: list[int], counts: list[float]) -> Workbench:
    feeds: list[Any] = [{"x": np.ones((1, size), np.float32)} for size in sizes]
    inputs = Recorded([str(size) for size in sizes], feeds, np.array(counts), None)
    exam = Exam("cosine", inputs, [{"y": one["x"]} for one in feeds], None, None)
    prepared = Prepared(Path("m.onnx"), [], {}, 0.0, False, [])
    return Workbench(Path("m.onnx"), prepared, Path(), inputs, exam, exam, OFFER, lambda text: None, [])


@pytest.mark.parametrize(
    ("sizes", "counts", "panel"),
    [
        ([50, 10, 30, 20, 40, 60, 70, 80, 90, 100], [1.0] * 10, [10, 50, 90]),
        ([1, 2, 3], [98.0, 1.0, 1.0], [1]),  # nearly all requests are small
        ([1, 2, 3], [1.0, 1.0, 98.0], [3]),
        ([7, 7], [1.0, 1.0], [7]),
        ([5], [1.0], [5]),
    ],
)
def test_times_are_taken_on_what_traffic_brings(sizes: list[int], counts: list[float], panel: list[int]) -> None:
    assert [one["x"].shape[1] for one in bench(sizes, counts).panel()] == panel
