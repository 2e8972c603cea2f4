"""What an engine's steps cost, measured when it starts: a handful of steps, fitted by a line.

The router and the limit on steps need these times before the first request, on this machine, in this company; they go
on learning from every step that is served (`policy.tokens.estimate.learn`).
"""

import time
from typing import NamedTuple

import numpy as np

from loadslice.backends.language.base import LanguageSession, StepRow
from loadslice.backends.language.messages import Layout

PROMPTS = (16, 64, 128, 256, 512)
DECODING = (1, 2, 4, 8, 16)
CONTEXTS = (64, 448)
REPEATS = 3
FIRST_SEQUENCE = 1 << 40
"""Numbers that no served sequence has."""


class Costs(NamedTuple):
    """As `messages.Ready` says them."""

    step_ms: float
    token_us: float
    row_us: float
    attend_ns: float
    prompt_attend_ns: float
    relative_sd: float
    export_us_per_token: float
    import_us_per_token: float


NOT_MEASURED = Costs(0, 0, 0, 0, 0, 0, 0, 0)


def measured_costs(session: LanguageSession, layout: Layout, context: int, *, measure: bool) -> Costs:
    """Warm a session up, and measure it if that is wanted.

    Args:
        session: Nothing in it.
        layout: Of its KV.
        context: Longest.
        measure: ``False``: warm up only, costs are zero.

    Returns:
        Medians of wall time, fitted; the spread is that of single steps around the fit.
    """
    _prompt(session, 16, session.vocabulary)
    if not measure:
        return NOT_MEASURED
    features: list[tuple[float, float, float, float, float]] = []
    times_ms: list[float] = []
    single: list[tuple[int, float]] = []

    def add(prompt: int, decoding: int, pairs: float, prompt_pairs: float, taken_ms: list[float]) -> None:
        single.extend((len(features), one) for one in taken_ms)
        features.append((1.0, prompt, decoding, pairs, prompt_pairs))
        times_ms.append(float(np.median(taken_ms)))

    for tokens in PROMPTS:
        if tokens < context and -(-tokens // session.layout.block) <= session.free_blocks:
            add(
                tokens,
                0,
                0,
                tokens * tokens / 2,
                [_prompt(session, tokens, session.vocabulary) for _ in range(REPEATS)],
            )
    for before in CONTEXTS:
        for rows in DECODING:
            if not session.layout.decodes or rows > (session.layout.sequences or rows):
                continue
            needed = rows * -(-(before + REPEATS + 1) // session.layout.block)
            if before + REPEATS + 2 < context and needed <= session.free_blocks:
                add(0, rows, rows * (before + 1), 0, _decode(session, rows, before))
    matrix, taken = np.array(features), np.array(times_ms)
    # Relative errors count, else long prompts alone decide; and no cost is below nothing.
    from_fit = _nonnegative(matrix / taken[:, None], np.ones(len(taken)))
    expected = matrix @ from_fit
    spread = float(np.std([one / expected[index] - 1 for index, one in single]))
    export_us, import_us = _hand_over_us(session, layout)
    step_ms, token_ms, row_ms, pair_ms, prompt_pair_ms = (float(one) for one in from_fit)
    if not any(rows for _, _, rows, _, _ in features):
        pair_ms = prompt_pair_ms
    return Costs(
        step_ms, token_ms * 1e3, row_ms * 1e3, pair_ms * 1e6, prompt_pair_ms * 1e6, spread, export_us, import_us
    )


def _nonnegative(
    matrix: np.ndarray[tuple[int, int], np.dtype[np.float64]], target: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Least squares with no coefficient below zero: those that would be are left out, one by one."""
    kept = list(range(matrix.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, kept], target, rcond=None)
        if (found >= 0).all():
            break
        kept.pop(int(found.argmin()))
    whole = np.zeros(matrix.shape[1])
    whole[kept] = found
    return whole


def _prompt(session: LanguageSession, tokens: int, vocabulary: int) -> float:
    prompt = [(7 * at + 11) % vocabulary for at in range(tokens)]
    began = time.perf_counter()
    session.step([StepRow(FIRST_SEQUENCE, prompt, samples=True)])
    taken_ms = (time.perf_counter() - began) * 1e3
    session.release(FIRST_SEQUENCE)
    return taken_ms


def _decode(session: LanguageSession, rows: int, before: int) -> list[float]:
    prompt = [(5 * at + 3) % session.vocabulary for at in range(before)]
    members = [FIRST_SEQUENCE + row for row in range(rows)]
    for member in members:
        session.step([StepRow(member, prompt, samples=False)])
    taken_ms = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        session.step([StepRow(member, [17], samples=True) for member in members])
        taken_ms.append((time.perf_counter() - began) * 1e3)
    for member in members:
        session.release(member)
    return taken_ms[1:]


def _hand_over_us(session: LanguageSession, layout: Layout) -> tuple[float, float]:
    tokens = 4 * session.layout.block
    if (
        layout.raw_bytes_per_block == 0
        or session.free_blocks < 8
        or not session.layout.decodes
        or session.layout.sequences == 1
    ):
        return 0.0, 0.0
    session.step([StepRow(FIRST_SEQUENCE, [1] * tokens, samples=False)])
    buffer = np.zeros(4 * layout.raw_bytes_per_block, np.uint8)
    export_us, import_us = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        session.export_raw(FIRST_SEQUENCE, buffer)
        export_us.append((time.perf_counter() - began) * 1e6 / tokens)
        began = time.perf_counter()
        session.import_raw(FIRST_SEQUENCE + 1, tokens, buffer)
        import_us.append((time.perf_counter() - began) * 1e6 / tokens)
        session.release(FIRST_SEQUENCE + 1)
    session.release(FIRST_SEQUENCE)
    return float(np.median(export_us)), float(np.median(import_us))
