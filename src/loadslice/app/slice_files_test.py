"""Any assignment, however scattered, becomes slices that answer what the whole answers."""

import numpy as np
import pytest

from loadslice.app.slice_problem import Opened
from loadslice.graph.cuts import flow, legal_cuts
from loadslice.graph.load import load
from loadslice.graph.shapes import infer
from loadslice.graph.slicing import slice_model
from loadslice.graph.slicing_test import REAL, real
from loadslice.graph.specimen import transformer
from loadslice.graph.stitch import check_stitched
from loadslice.plan.placement.problem import Int64, Link, Problem, Tensor, runs

pytest.importorskip("onnxruntime")


def problem_of(opened: Opened) -> Problem:
    tensors = tuple(Tensor(edge.maker, edge.readers, edge.nbytes) for edge in opened.graph.edges)
    return Problem(np.ones((len(opened.graph.ops), 3), np.int64), tensors, (Link(), Link(), Link()))


def opened(reference: str) -> Opened:
    if reference == "transformer":
        path, model, shapes = None, transformer(), {"ids": [2, 9], "mask": [2, 9]}
    else:
        path, shapes = real(reference), REAL[reference]
        model = load(path, weights=True)
    body = infer(model, shapes)
    graph = flow(body)
    return Opened(path, "", model, body, infer(model, {}), graph, legal_cuts(graph), shapes)  # type: ignore[arg-type]


def stitches(whole: Opened, device: Int64, seed: int) -> bool:
    parts = [
        slice_model(whole.model, whole.body, whole.as_filed, whole.graph, ops, f"part{k}")
        for k, (_, ops) in enumerate(runs(problem_of(whole), device))
    ]
    assert len(parts) > 3
    return check_stitched(whole.model, whole.body, parts, runs=1, seed=seed).bit_equal


def test_random_assignments_of_a_transformer_are_equal_to_the_whole() -> None:
    whole = opened("transformer")
    rng = np.random.default_rng(0)
    for seed in range(20):
        assert stitches(whole, rng.integers(0, 3, len(whole.graph.ops)), seed)


@pytest.mark.parametrize("reference", REAL)
def test_scattered_assignments_of_a_real_model_are_equal_to_the_whole(reference: str) -> None:
    whole = opened(reference)
    rng = np.random.default_rng(1)
    for seed in range(2):
        runs_of_ops = np.repeat(rng.integers(0, 3, len(whole.graph.ops) // 12 + 1), 12)[: len(whole.graph.ops)]
        assert stitches(whole, runs_of_ops, seed)
