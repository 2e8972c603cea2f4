"""Is a server slower than a fresh one of the same, on the same minutes?

Latency that rises while one watches has two causes that look alike: the server ages, or the machine slows down (other
programs, heat, a power cap). The control is a second server of the same placement, just started: both are asked by
turns, and what the machine does it does to both. The order within a round changes from round to round, so that a
machine which goes on slowing favours neither.
"""

from collections.abc import Sequence

import numpy as np

from loadslice.evaluate.closed_loop import drive
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Letter

ROUNDS = 12
ROUND_S = 1.0
WARM_PER_LETTER = 2
SLOWER_MIN = 1.05
"""Half of the least change that is looked into: a soak's slope says more about its end than about its mean."""
RANKS_AGAINST_MAX = 4
"""Of twelve rounds, 1 + 1 + 1 + 2 + 2 of the 4,096 ways that signs can fall have at most so much against: 0.17 %."""


def ratios(
    old: Subject, fresh: Subject, letters: Sequence[Letter], clients: int, *, rounds: int = ROUNDS,
    round_s: float = ROUND_S,
) -> list[float]:  # fmt: skip
    """Median latency of the old server over the fresh one's, round by round; a round without answers says nothing.

    Args:
        old: The server that has been under load.
        fresh: One of the same placement, just started.
        letters: What to send to both.
        clients: Requests kept open, as in the soak.
        rounds: Turns of each.
        round_s: Seconds of the server's time for a turn.
    """
    for_s = round_s * old.dilate**0.5
    drive(fresh.line, letters, clients, for_s=for_s, requests_min=WARM_PER_LETTER * len(letters))
    found = []
    for number in range(rounds):
        turns = (old, fresh) if number % 2 == 0 else (fresh, old)
        medians_ms = {}
        for one in turns:
            heards = drive(one.line, letters, clients, for_s=for_s, requests_min=2 * clients)
            times_ms = [heard.whole_ms for heard in heards if heard.completed and heard.whole_ms is not None]
            if times_ms:
                medians_ms[one is old] = float(np.median(times_ms))
        if len(medians_ms) == 2:
            found.append(medians_ms[True] / medians_ms[False])
    return found


def is_older(found: Sequence[float]) -> bool | None:
    """The old server is surely slower by `SLOWER_MIN`, by Wilcoxon's signed-rank test.

    Rounds are ranked by how far their ratio lies from `SLOWER_MIN`, either way; the ranks of those below it may add up
    to `RANKS_AGAINST_MAX`. It is asked only after a slope was surely there.

    Returns:
        ``None`` with fewer rounds than that takes.

    References:
        Wilcoxon, Individual comparisons by ranking methods, Biometrics Bulletin 1 (1945).
    """
    if len(found) < ROUNDS:
        return None
    beyond = sorted((float(np.log(ratio / SLOWER_MIN)) for ratio in found), key=abs)
    return sum(rank for rank, one in enumerate(beyond, 1) if one <= 0) <= RANKS_AGAINST_MAX


def against_fresh(subject: Subject, letters: Sequence[Letter], clients: int) -> list[float] | None:
    """`ratios` against a fresh server of the same; ``None`` where none can be started here."""
    if subject.fresh is None:
        return None
    with subject.fresh() as fresh:
        return ratios(subject, fresh, letters, clients)
