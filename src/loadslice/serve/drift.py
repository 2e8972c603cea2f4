"""Samples of answers for a watch: a few numbers of each, at most so many a second, the last ones kept.

Rules of this file: it is there only when a plan was given; it keeps numbers and never an answer; it decides nothing.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec

from loadslice.serve.admin import Admin
from loadslice.serve.request import VERSIONS, Request
from loadslice.serve.rollout_watch import SHADOW_SOURCE
from loadslice.spec import signals
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import twins
from loadslice.spec.watch import Sample, Samples, WatchPlan

KEPT = 8192
"""Samples; at the highest default rate those of the last two and a half minutes, in under 2 MB."""
ANSWERED = 4096
"""Samples in one reply, under half a megabyte."""
NS_PER_S = 1e9


class DriftSampler:
    """A witness that keeps values of answers.

    Args:
        plan: What to take.
        pipeline: That is served.
        monotonic_s: Never goes back.
    """

    def __init__(self, plan: WatchPlan, pipeline: Pipeline, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._pipeline = pipeline.pipeline
        self._emulated = bool(twins(pipeline))
        self._monotonic_s = monotonic_s
        self._kept: deque[Sample] = deque(maxlen=KEPT)
        self._taken = 0
        self._credit = 1.0
        self._filled_s = monotonic_s()

    def ended(self, pipeline: Pipeline, request: Request, now_ns: int) -> None:
        """See `logs.Witness.ended`."""
        if request.outcome is not Outcome.COMPLETED or request.reason is Reason.DEGRADED or request.work is None:
            return
        if request.source == SHADOW_SOURCE or not self._may_take():
            return
        self._taken += 1
        version = None if request.version is None else VERSIONS[request.version]
        values = signals.read(self._plan.signals, request.work.tensors)
        self._kept.append(Sample(self._taken, now_ns / NS_PER_S, version, values))

    def _may_take(self) -> bool:
        now_s = self._monotonic_s()
        rate = self._plan.samples_per_s
        self._credit = min(max(1.0, rate), self._credit + rate * (now_s - self._filled_s))
        self._filled_s = now_s
        if self._credit < 1:
            return False
        self._credit -= 1
        return True

    def since(self, after: int) -> Samples:
        """Samples that came after one, the oldest that are kept first."""
        fresh = [sample for sample in self._kept if sample.number > after]
        return Samples(
            plan=self._plan,
            pipeline=self._pipeline,
            basis="emulated" if self._emulated else "measured",
            taken=self._taken,
            samples=fresh[:ANSWERED],
        )

    def administer(self, admin: Admin) -> None:
        """Have ``GET /admin/watch?after=NUMBER`` answered."""

        async def samples(query: bytes) -> dict[str, Any]:
            named = parse_qs(query.decode(errors="replace"))
            text = named.get("after", ["0"])[0]
            if not text.isdecimal() or len(text) > 18:
                raise InputError(f"after: '{text:.32}' is not the number of a sample.")
            document: dict[str, Any] = msgspec.to_builtins(self.since(int(text)))
            return document

        admin.add("GET", "/admin/watch", samples)
