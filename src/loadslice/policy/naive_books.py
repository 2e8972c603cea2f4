"""What the twin keeps: who is inside, what was said, what may still be spent; and how a request leaves."""

from collections.abc import Sequence

from loadslice.policy.naive_breaker import FOREVER, MS, PPM, NaiveBreaker
from loadslice.policy.naive_engine import HINT_FLOOR_NS, Lane, Request
from loadslice.policy.naive_fit import accepts
from loadslice.policy.naive_fleet import fleet
from loadslice.policy.naive_versions import NaiveVersions
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline

DISPATCH, PLACED, OUTCOME = 1, 2, 3

Effect = tuple[int, ...]
"""(kind, tag or slot, a, b, c, d) as the core's effects; a DISPATCH is followed by the tags of its members."""


class NaiveBooks:
    """State of one run, and its ends."""

    def __init__(self, pipeline: Pipeline, latency: LatencyTable | None = None, sources: Sequence[str] = ()) -> None:
        self.pipeline = pipeline
        self.sources = sources
        self.stages = list(pipeline.stages)
        self.engines = fleet(pipeline, latency)
        names = [engine.name for engine in self.engines]
        self.slots = [(e, slot) for e, engine in enumerate(self.engines) for slot in engine.slots]
        self.order = [[names.index(name) for name in stage.engine_names] for stage in self.stages]
        self.backup_of = [names.index(stage.failover.to) if stage.failover else -1 for stage in self.stages]
        self.breakers = [[NaiveBreaker(stage.breaker) for _ in names] for stage in self.stages]
        self.overflows = [0] * len(self.stages)
        self.sent = [0] * len(self.stages)
        self.credit_ppm = [0] * len(self.stages)
        self.budget_ppm = pipeline.retry.reserve * PPM
        self.budget_ns = 0
        self.free_rows = list(range(pipeline.max_requests))[::-1]
        self.inside: dict[int, Request] = {}
        """By row."""
        self.versions = NaiveVersions(pipeline)
        self.draining = False
        self.sequence = 0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.effects: list[Effect] = []
        self.touched: list[int] = []

    def _lane(self, request: Request) -> Lane:
        stage = self.stages[request.stage]
        new = request.version == 1 and stage.canary is not None
        return (request.stage, request.bucket + (len(stage.buckets) + 1 if new else 0))

    def _engine_index(self, name: str) -> int:
        return next(e for e, engine in enumerate(self.engines) if engine.name == name)

    def _available(self, request: Request, e: int) -> bool:
        admits = self.breakers[request.stage][e].admits()
        return self.engines[e].up and admits and accepts(self.stages[request.stage], self.engines[e], request)

    def _start_clock(self, now_ns: int, request: Request) -> None:
        timeout_ns = self._timeout_ns(request.stage)
        request.expiry_ns = min(request.deadline_ns, now_ns + timeout_ns if timeout_ns < FOREVER else FOREVER)

    def _timeout_ns(self, s: int) -> int:
        timeout_ms = self.stages[s].timeout_ms
        return FOREVER if timeout_ms is None else round(timeout_ms * MS)

    def _withdraw(self, now_ns: int) -> bool:
        retry = self.pipeline.retry
        granted = (now_ns - self.budget_ns) * round(retry.per_s * PPM) // (1000 * MS)
        if granted > 0:
            self.budget_ns = now_ns
            self.budget_ppm = min(self.budget_ppm + granted, retry.reserve * PPM)
        if self.budget_ppm < PPM:
            return False
        self.budget_ppm -= PPM
        return True

    def _door_hint_ns(self, now_ns: int, refusal: Reason) -> int:
        """When the budget has an attempt again by time alone, at most a minute; or when what is inside has drained."""
        if refusal is not Reason.RETRY_BUDGET:
            return max(engine.hint_ns(now_ns) for engine in self.engines)
        retry, minute_ns = self.pipeline.retry, 60_000 * MS
        per_s_ppm = round(retry.per_s * PPM) if retry.reserve else 0
        refill_ns = (PPM - self.budget_ppm) * 1000 * MS // per_s_ppm if per_s_ppm else minute_ns
        return max(HINT_FLOOR_NS, min(refill_ns, minute_ns))

    def _give_permit_back(self, request: Request) -> None:
        if request.engine >= 0:
            self.breakers[request.stage][request.engine].give_back(request.call)
            request.call = (request.call[0], False)

    def _leave_queue(self, request: Request) -> bool:
        queue = self.engines[request.engine].queue if request.engine >= 0 else []
        if request in queue:
            queue.remove(request)
            return True
        return False

    def _leave_batch(self, request: Request) -> None:
        for _, slot in self.slots:
            if slot.batch is not None:
                slot.batch.members = [None if member is request else member for member in slot.batch.members]

    def _refuse(self, request: Request, outcome: Outcome, reason: Reason, hint_ns: int = 0) -> None:
        """Refuse at a stage; where it has a degraded reply, that is the answer instead."""
        if self.stages[request.stage].degraded is not None:
            self._finish(request, Outcome.COMPLETED, Reason.DEGRADED)
        else:
            self._finish(request, outcome, reason, hint_ns)

    def _finish(self, request: Request, outcome: Outcome, reason: Reason, hint_ns: int = 0) -> None:
        self._give_permit_back(request)
        self._leave_batch(request)
        self.effects.append((OUTCOME, request.tag, outcome, reason, hint_ns, request.stage))
        self.outcomes[outcome] += 1
        del self.inside[request.row]
        self.free_rows.append(request.row)

    def _touch(self, e: int) -> None:
        if e not in self.touched:
            self.touched.append(e)
