"""Drawing tokens. A sequence's numbers depend on its seed and on how far it is, never on who else is in the step.

So a sequence that is preempted, moved or decoded beside others draws what it would have drawn alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadslice.backends.language.base import Float32s
from loadslice.backends.language.messages import Sampling


class Choice(NamedTuple):
    """One drawn token."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


def draw_all(
    logits: Float32s, likeliest: Sequence[int], wanted: Sequence[tuple[Sampling, Sequence[int], int]]
) -> list[Choice]:
    """Draw one token per row.

    Args:
        logits: [rows, vocabulary].
        likeliest: Per row, the token that has most.
        wanted: Per row its sampling, the tokens it has produced, and how many those are.

    Returns:
        One choice per row.
    """
    return [
        Choice(token, None, ()) if is_plain(sampling) else _draw(row, sampling, produced, at)
        for token, row, (sampling, produced, at) in zip(likeliest, logits, wanted, strict=True)
    ]


def is_plain(sampling: Sampling) -> bool:
    """Whether the likeliest token is all that is asked for."""
    return (
        sampling.temperature == 0
        and sampling.logprobs == 0
        and not sampling.bias
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
    )


def _draw(row: Float32s, sampling: Sampling, produced: Sequence[int], at: int) -> Choice:
    scores = row.astype(np.float64)
    for token, value in sampling.bias:
        scores[token] += value
    if produced and (sampling.presence_penalty or sampling.frequency_penalty):
        seen, counts = np.unique(np.asarray(produced), return_counts=True)
        scores[seen] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    if sampling.temperature == 0:
        token = int(scores.argmax())
    else:
        token = _weighted(scores / sampling.temperature, sampling.top_p, sampling.seed, at)
    if sampling.logprobs == 0:
        return Choice(token, None, ())
    # As OpenAI reports them: of the model's own distribution, before temperature and top-p.
    logs = scores - scores.max()
    logs -= np.log(np.exp(logs).sum())
    count = min(sampling.logprobs, len(logs))
    best = np.argpartition(-logs, count - 1)[:count]
    best = best[np.argsort(-logs[best], kind="stable")]
    return Choice(token, float(logs[token]), tuple((int(one), float(logs[one])) for one in best))


def _weighted(scores: np.ndarray[tuple[int], np.dtype[np.float64]], top_p: float, seed: int, at: int) -> int:
    """A token by its probability, among the likeliest that together have ``top_p``."""
    weights = np.exp(scores - scores.max())
    number = np.random.Generator(np.random.Philox(key=seed & (2**64 - 1), counter=at)).random()
    if top_p >= 1:
        cumulated = np.cumsum(weights)
        return min(len(cumulated) - 1, int(np.searchsorted(cumulated, number * cumulated[-1], side="right")))
    order = np.argsort(-weights, kind="stable")
    cumulated = np.cumsum(weights[order])
    kept = int(np.searchsorted(cumulated, top_p * cumulated[-1], side="left")) + 1
    return int(order[min(kept - 1, int(np.searchsorted(cumulated[:kept], number * cumulated[kept - 1], side="right")))])
