"""Requests that did not complete, counted: a line when they begin, then one a minute while there are any.

Stories (`--stories`) tell of each; without them a server that refuses everything would say nothing until it stops.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from loadslice.serve.request import Request
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline

FIRST_S = 1.0
"""From the first of them to the first line, so that it speaks of more than one."""
EVERY_S = 60.0

log = logging.getLogger("loadslice.requests")

Later = Callable[[float, Callable[[], None]], Any]


def _on_the_loop(after_s: float, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(after_s, act)


class Losses:
    """Counts requests that did not complete, by outcome and reason.

    Args:
        later: Has something done after so many seconds.
        monotonic_s: Never goes back.
    """

    def __init__(self, later: Later = _on_the_loop, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._later = later
        self._monotonic_s = monotonic_s
        self._lost: Counter[tuple[Outcome, Reason]] = Counter()
        self._since_s = 0.0
        self._told_s = -EVERY_S
        self._ended = 0

    def ended(self, pipeline: Pipeline, request: Request, now_ns: int) -> None:
        """See `logs.Witness.ended`."""
        del pipeline, now_ns
        self._ended += 1
        if request.outcome is Outcome.COMPLETED:
            return
        if not self._lost:
            self._since_s = self._monotonic_s()
            self._later(max(FIRST_S, self._told_s + EVERY_S - self._since_s), self.tell)
        self._lost[request.outcome, request.reason] += 1

    def tell(self) -> None:
        """Write what has been counted since the last line, if anything; at a stop too."""
        if not self._lost:
            return
        now_s = self._monotonic_s()
        each = ", ".join(
            f"{count} {outcome.name.lower()} ({reason.name.lower()})"
            for (outcome, reason), count in self._lost.most_common()
        )
        log.warning(
            "%d of %d requests did not complete in %.0f s: %s", self._lost.total(), self._ended,
            max(1.0, now_s - self._since_s), each,
        )  # fmt: skip
        self._lost.clear()
        self._told_s, self._ended = now_s, 0
