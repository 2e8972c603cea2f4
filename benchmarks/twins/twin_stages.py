"""Stages that wait instead of work, for times drawn once from known distributions.

Each example input has its own number of rows, and each number of rows its own time at each stage, so that a latency
table tells them apart: a simulator that is right in everything else meets the very times that the live stages take.
"""

import time

import numpy as np
import numpy.typing as npt

from loadslice.spec.work import RawInput, Sample, Work

INPUTS = 40
PREPARE_MS = 10.0
DETECT_MS, RECOGNISE_MS = (90.0, 0.5), (130.0, 0.7)
"""Mean and coefficient of variation of lognormal times."""


def samples() -> list[Sample]:
    """40 inputs; the body is the number of rows that the first stage makes of it."""
    return [Sample(f"page-{rows:02d}", "text/plain", str(rows).encode()) for rows in range(1, INPUTS + 1)]


def assign(tokens_in: npt.NDArray[np.number]) -> list[str]:
    """The input for each request: by the rank of its prompt's length among all, longest prompt to most rows."""
    rank = np.argsort(np.argsort(tokens_in, kind="stable"), kind="stable")
    return [f"page-{1 + number * INPUTS // len(tokens_in):02d}" for number in rank.tolist()]


def prepare(work: Work) -> Work:
    """Make rows of a request."""
    assert isinstance(work.context, RawInput)
    time.sleep(PREPARE_MS / 1000)
    return Work({"x": np.zeros((int(work.context.body), 1), np.float32)})


def detect(work: Work) -> Work:
    """Wait for as long as this many rows take."""
    time.sleep(_TIMES_S[0][work.items - 1])
    return work


def recognise(work: Work) -> Work:
    """Wait for as long as this many rows take."""
    time.sleep(_TIMES_S[1][work.items - 1])
    return work


def _drawn_s(mean_ms: float, cv: float, seed: int) -> list[float]:
    sigma = np.sqrt(np.log(1 + cv * cv))
    drawn_ms = np.random.default_rng(seed).lognormal(np.log(mean_ms) - sigma**2 / 2, sigma, INPUTS)
    return [float(value) / 1000 for value in drawn_ms]


_TIMES_S = (_drawn_s(*DETECT_MS, seed=1), _drawn_s(*RECOGNISE_MS, seed=2))
