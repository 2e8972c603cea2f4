"""From measured steps to what a language engine's steps cost: a line, its shape over sequences, the noise around."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadslice.spec.language import StepCost
from loadslice.spec.language_profile import NOISE_AT, SHAPE_ROWS, StepTime

Floats = NDArray[np.float64]

NOISE_LEAST = 20
"""Steps of which quantiles say something."""
SHAPE_LEAST, SHAPE_MOST = 0.2, 5.0
"""Beyond these a shape would say that the line fits nothing."""


class Kind(NamedTuple):
    """One kind of step."""

    prompt_tokens: int
    rows: int
    before: int
    """Tokens that each sequence has, or the prompt where nobody decodes; beside others a prompt begins."""

    @property
    def pairs(self) -> float:
        """Tokens before each of those who decode, summed."""
        return self.rows * self.before

    @property
    def prompt_pairs(self) -> float:
        """Tokens before each token of the prompt, summed."""
        before = 0 if self.rows else self.before
        return self.prompt_tokens * (before + self.prompt_tokens / 2)


class Taken(NamedTuple):
    """One step of a kind, milliseconds."""

    time_ms: float
    compute_ms: float


class Fit(NamedTuple):
    """A line with its shape."""

    cost: StepCost
    shape: list[float]
    error_p50: float
    error_max: float


def fitted(taken: dict[Kind, list[Taken]]) -> Fit:
    """Fit medians.

    Args:
        taken: At least two kinds, each with at least one step.

    Returns:
        Costs that are nowhere below zero, fitted to relative errors; what is left by number of decoding sequences; and
        the errors of kinds that are left after both.
    """
    kinds = list(taken)
    medians = np.array([np.median([one.time_ms for one in taken[kind]]) for kind in kinds])
    full = np.array([(1.0, kind.prompt_tokens, kind.rows, kind.pairs, kind.prompt_pairs) for kind in kinds])
    target = np.ones(len(medians))
    line = nonnegative(full / medians[:, None], target)
    if not full[:, 3].any():
        line[3] = line[4]
    parts = medians / (full @ line)
    shape = shaped(kinds, parts)
    left = parts / np.array([_at(shape, kind.rows) for kind in kinds])
    singles = [
        one.time_ms / (row @ line) / _at(shape, kind.rows)
        for kind, row in zip(kinds, full, strict=True)
        for one in taken[kind]
    ]
    cost = StepCost(
        step_ms=float(line[0]),
        token_us=float(line[1]) * 1e3,
        row_us=float(line[2]) * 1e3,
        attend_ns=float(line[3]) * 1e6,
        prompt_attend_ns=float(line[4]) * 1e6,
        relative_sd=float(np.std(singles)),
    )
    errors = np.abs(left - 1)
    return Fit(cost, shape, float(np.median(errors)), float(errors.max()))


def shaped(kinds: Sequence[Kind], parts: Floats) -> list[float]:
    """Geometric means of what a line leaves, by decoding sequences, at `SHAPE_ROWS`; between them a line is drawn."""
    by_rows: dict[int, list[float]] = {}
    for kind, part in zip(kinds, parts, strict=True):
        by_rows.setdefault(kind.rows, []).append(float(np.log(part)))
    known = sorted(by_rows)
    means = np.array([np.exp(np.mean(by_rows[rows])) for rows in known])
    shape = np.interp(SHAPE_ROWS, known, means)
    if 0 in by_rows and len(known) > 1:
        # A step without decoding sequences says nothing of one with a few.
        others = np.interp(SHAPE_ROWS[1:], known[1:], means[1:])
        shape = np.concatenate(([means[0]], others))
    return [float(part) for part in np.clip(shape, SHAPE_LEAST, SHAPE_MOST)]


class Held(NamedTuple):
    """What a step that was served held, how many times longer its company made it, and what it took."""

    prompt_tokens: int
    rows: int
    pairs: float
    prompt_pairs: float
    company: float
    took_ms: float
    is_cold: bool = False
    """Whether its engine had done nothing for a while."""
    is_reshaped: bool = False
    """Whether it has not as many tokens as the step before."""


class AsServed(NamedTuple):
    """Costs as a server has them."""

    cost: StepCost
    noise: list[float]
    """Quantiles of single steps in parts of what they should take; empty: of too few."""
    cold_ms: float
    """What the first step after a pause takes longer."""
    reshape_ms: float
    """What a step takes longer that has not as many tokens as the one before."""


def as_served(cost: StepCost, shape: Sequence[float], steps: Sequence[Held], reshape_ms: float = 0.0) -> AsServed:
    """Fit costs to steps that were served.

    Messages, sampling and whatever else the machine does cost a step more than they cost a share of it, and caches are
    colder between other work than between equal steps. So the base, prompts and decoding each get a factor; that all
    have the same one is believed as much as three steps say.

    Args:
        cost: Measured alone.
        shape: Of it.
        steps: Served; fewer than twenty change nothing.
        reshape_ms: What another shape costs, measured alone.
    """
    if len(steps) < NOISE_LEAST:
        return AsServed(cost, [], 0.0, reshape_ms)
    prompt_attend_ns = cost.attend_ns if cost.prompt_attend_ns is None else cost.prompt_attend_ns
    alone = np.array(
        [
            (
                cost.step_ms,
                step.prompt_tokens * cost.token_us / 1e3 + step.prompt_pairs * prompt_attend_ns / 1e6,
                step.rows * cost.row_us / 1e3 + step.pairs * cost.attend_ns / 1e6,
            )
            for step in steps
        ]
    ) * np.array([[step.company * _at(shape, step.rows)] for step in steps])
    took_ms = np.array([step.took_ms for step in steps])
    should_ms = alone.sum(axis=1)
    parts = took_ms / should_ms
    company = np.array([step.company for step in steps])
    more = company[:, None] * np.array([(step.is_cold, step.is_reshaped) for step in steps], np.float64)
    plain = ~more.any(axis=1)
    # That nothing is lost by a pause, that another shape costs what it was measured to, and that all parts have one
    # factor, is believed as much as three steps say.
    factor = parts[plain].mean() if plain.any() else parts.mean()
    mean_ms = max(1e-9, float(np.mean(should_ms)))
    weights = np.diag([1.0, 1.0, 1.0, 1 / mean_ms, 1 / mean_ms])
    believed = np.array([factor, factor, factor, 0.0, reshape_ms / mean_ms])
    held = np.hstack((alone, more))
    found = nonnegative(np.vstack((held / should_ms[:, None], weights)), np.concatenate((parts, believed)))
    step, prompt, decoding, cold_ms, reshape_ms = found.tolist()
    served = msgspec.structs.replace(
        cost,
        step_ms=cost.step_ms * step,
        token_us=cost.token_us * prompt,
        prompt_attend_ns=prompt_attend_ns * prompt,
        row_us=cost.row_us * decoding,
        attend_ns=cost.attend_ns * decoding,
    )
    return AsServed(served, noise_of((took_ms / (held @ found)).tolist()), cold_ms, reshape_ms)


def expected_ms(
    cost: StepCost, shape: Sequence[float], prompt_tokens: int, rows: int, pairs: float, prompt_pairs: float
) -> float:
    """What a step should take, ms.

    Args:
        cost: Fitted.
        shape: At `SHAPE_ROWS`, as `EngineTimes` has it.
        prompt_tokens: Of prompts that the step computes.
        rows: Sequences that decode in it.
        pairs: Over those sequences, the tokens before each added up.
        prompt_pairs: The same over the tokens of prompts.
    """
    prompt_attend_ns = cost.attend_ns if cost.prompt_attend_ns is None else cost.prompt_attend_ns
    line = cost.step_ms + (prompt_tokens * cost.token_us + rows * cost.row_us) / 1e3
    line += (pairs * cost.attend_ns + prompt_pairs * prompt_attend_ns) / 1e6
    return line * _at(shape, rows)


def noise_of(parts: Sequence[float]) -> list[float]:
    """Quantiles of steps in parts of what they should take; empty for fewer than twenty."""
    if len(parts) < NOISE_LEAST:
        return []
    return [float(part) for part in np.quantile(parts, NOISE_AT)]


def step_times(taken: dict[Kind, list[Taken]]) -> list[StepTime]:
    """Medians of each kind."""
    return [
        StepTime(
            prompt_tokens=kind.prompt_tokens,
            rows=kind.rows,
            before=kind.before,
            time_ms_p50=float(np.median([one.time_ms for one in steps])),
            time_ms_p90=float(np.quantile([one.time_ms for one in steps], 0.9)),
            compute_ms_p50=float(np.median([one.compute_ms for one in steps])),
            n=len(steps),
        )
        for kind, steps in sorted(taken.items())
    ]


class HandoverLine(NamedTuple):
    """What hand-overs take."""

    base_ms: float
    token_us: float
    relative_sd: float
    noise: list[float]
    """Quantiles of single ones in parts of that; their mean is 1."""


def handover_line(tokens: Sequence[int], times_ms: Sequence[float]) -> HandoverLine:
    """Fit a line to single hand-overs, relative errors counted, whose mean is theirs."""
    matrix = np.array([(1.0, count) for count in tokens])
    taken = np.array(times_ms)
    line = nonnegative(matrix / taken[:, None], np.ones(len(taken)))
    # Relative errors draw a line below long ones, which are those that somebody waits for.
    line *= float(np.mean(taken / (matrix @ line)))
    parts = taken / (matrix @ line)
    return HandoverLine(float(line[0]), float(line[1]) * 1e3, float(np.std(parts)), noise_of(parts.tolist()))


def nonnegative(matrix: Floats, target: Floats) -> Floats:
    """Least squares with no coefficient below zero: those that would be are left out, one by one."""
    kept = list(range(matrix.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, kept], target, rcond=None)
        if len(kept) == 1 or (found >= 0).all():
            break
        kept.pop(int(found.argmin()))
    whole = np.zeros(matrix.shape[1])
    whole[kept] = np.maximum(found, 0)
    return whole


def _at(shape: Sequence[float], rows: int) -> float:
    return float(np.interp(rows, SHAPE_ROWS, shape))
