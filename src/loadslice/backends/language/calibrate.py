"""What an engine's steps cost, measured when it starts: a handful of steps, fitted by a line.

The router and the limit on steps need these times before the first request, on this machine, in this company; they go
on learning from every step that is served (`policy.tokens.estimate.learn`).
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from loadslice.backends.language.base import LanguageSession, StepRow
from loadslice.backends.language.messages import Layout
from loadslice.backends.probe import Others

PROMPTS = (16, 64, 128, 256, 512)
DECODING = (1, 2, 4, 8, 16)
CONTEXTS = (64, 448)
REPEATS = 3
FIRST_SEQUENCE = 1 << 40
"""Numbers that no served sequence has."""


SPREAD_MAX = 0.5
"""Of single steps around the fit: beyond it the machine, not the model, is what was measured."""
ROUNDS_MAX = 3
AGAIN_S = 60.0
"""A disturbed round that began later than this is not repeated: whoever starts a server waits for it."""
LEAST_SHARE = 0.01
"""Of the shortest step: what a cost is taken to be that noise has hidden."""


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
    others_share: float
    """Of the processors, in others' hands meanwhile."""


NOT_MEASURED = Costs(0, 0, 0, 0, 0, 0, 0, 0, 0)

Tell = Callable[[int, int], None]
"""Is told how many kinds of steps are measured, of how many."""


def tell_nobody(done: int, of: int) -> None:
    """Nobody waits for it."""


def measured_costs(
    session: LanguageSession, layout: Layout, context: int, *, measure: bool, tell: Tell = tell_nobody
) -> Costs:
    """Warm a session up, and measure it if that is wanted: again when single steps spread too far, up to three times.

    Args:
        session: Nothing in it.
        layout: Of its KV.
        context: Longest.
        measure: ``False``: warm up only, costs are zero.
        tell: Is told before each kind of step.

    Returns:
        Medians of wall time, fitted; the spread is that of single steps around the fit. Of several rounds the one
        with the least.
    """
    _prompt(session, 16, session.vocabulary)
    if not measure:
        return NOT_MEASURED
    began_s = time.monotonic()
    rounds: list[Costs] = []
    while True:
        with Others() as others:
            found = _round(session, layout, context, tell)
        rounds.append(found._replace(others_share=others.share))
        is_quiet = found.relative_sd <= SPREAD_MAX
        if is_quiet or len(rounds) == ROUNDS_MAX or time.monotonic() - began_s > AGAIN_S:
            return min(rounds, key=lambda one: one.relative_sd)


def _round(session: LanguageSession, layout: Layout, context: int, tell: Tell) -> Costs:
    kinds = list(_kinds(session, context))
    times_ms: list[float] = []
    single: list[tuple[int, float]] = []
    for index, (prompt, rows, before) in enumerate(kinds):
        tell(index, len(kinds))
        if rows:
            taken_ms = _decode(session, rows, before)
        else:
            taken_ms = [_prompt(session, prompt, session.vocabulary) for _ in range(REPEATS)]
        single.extend((index, one) for one in taken_ms)
        times_ms.append(float(np.median(taken_ms)))
    features = [(1.0, prompt, rows, rows * (before + 1), prompt * prompt / 2) for prompt, rows, before in kinds]
    matrix, taken = np.array(features), np.array(times_ms)
    # Relative errors count, else long prompts alone decide; and no cost is below nothing.
    from_fit = _nonnegative(matrix / taken[:, None], np.ones(len(taken)))
    expected = matrix @ from_fit
    spread = float(np.std([one / expected[index] - 1 for index, one in single]))
    export_us, import_us = _hand_over_us(session, layout)
    step_ms, token_ms, row_ms, pair_ms, prompt_pair_ms = (float(one) for one in from_fit)
    decodes = any(rows for _, rows, _ in kinds)
    if not decodes:
        pair_ms = prompt_pair_ms
    step_ms, token_ms, row_ms = never_nothing(step_ms, token_ms, row_ms, min(times_ms), decodes=decodes)
    attend = (pair_ms * 1e6, prompt_pair_ms * 1e6)
    return Costs(step_ms, token_ms * 1e3, row_ms * 1e3, *attend, spread, export_us, import_us, 0.0)


def _kinds(session: LanguageSession, context: int) -> Iterator[tuple[int, int, int]]:
    """(tokens of a prompt, sequences that go on, tokens before each) of the steps that there is room for."""
    block = session.layout.block
    for tokens in PROMPTS:
        if tokens < context and -(-tokens // block) <= session.free_blocks:
            yield tokens, 0, 0
    for before in CONTEXTS:
        for rows in DECODING:
            if not session.layout.decodes or rows > (session.layout.sequences or rows):
                continue
            needed = rows * -(-(before + REPEATS + 1) // block)
            if before + REPEATS + 2 < context and needed <= session.free_blocks:
                yield 0, rows, before


def never_nothing(
    step_ms: float, token_ms: float, row_ms: float, shortest_ms: float, *, decodes: bool
) -> tuple[float, float, float]:
    """The fitted costs with those that noise has hidden put at something: a router takes what costs nothing for free.

    A sequence's step computes one token, so that the two stand in for each other.

    Args:
        step_ms: Of a step with nothing in it.
        token_ms: Of a prompt's token.
        row_ms: Of a sequence that goes on.
        shortest_ms: Of all measured steps.
        decodes: Whether sequences go on here; a row that never comes costs nothing.
    """
    least_ms = LEAST_SHARE * shortest_ms
    token_ms = token_ms or min(row_ms, least_ms) or least_ms
    row_ms = row_ms or (min(token_ms, shortest_ms) if decodes else 0.0)
    return step_ms or least_ms, token_ms, row_ms


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
