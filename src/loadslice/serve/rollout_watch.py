"""Where a rollout gets its evidence: looks on as requests and batches end, and asks the canary some of them again.

What is asked again is a request of the stable version that has been answered: its input goes through the canary as
work of the lowest class, only while queues are short and only a few at once; what both versions made of it is
compared and thrown away: what each stage that differs gave, where both ran on the same engine (another one may round
to another precision), and the answer, where all did. It is an ordinary request to the core and stands in the journal
with the source ``shadow``; its key is one whose share of the split is always the canary's.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from loadslice.policy import columns as c
from loadslice.serve.golden import distance
from loadslice.serve.refusals import NS_PER_S
from loadslice.serve.request import Batch, Passage, Request
from loadslice.serve.rollout_analysis import Evidence
from loadslice.serve.shell import Observer, Shell
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import CLASSES, Pipeline
from loadslice.spec.rollout import RolloutPlan
from loadslice.spec.work import StageInputError, Tensor, Work

SHADOW_KEY = 0
"""Its hash is 0, which lies below every share (`policy.versions.hash_ppm`)."""
GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, fall evenly and into step with nothing (Weyl 1916). Every twentieth
request would be the canary's, whose share goes to every twentieth too, or always the same client's."""

QUIET_SHARE = 0.25
"""Of a queue's limit; while more waits for any engine, nothing is asked again."""

SHADOW_SOURCE = "shadow"
SHADOW_DEADLINE_NS = 30 * NS_PER_S

OURS = frozenset({Reason.STAGE_FAILED, Reason.ENGINE_FAILED, Reason.ENGINE_DOWN})
"""Failures that may be the version's."""


Trace = dict[tuple[int, int], dict[str, Tensor]]
"""Outputs of one request by stage and engine."""

ANSWER = (-1, -1)
"""Where a trace has the answer, if it is worth comparing."""


class RolloutWatch:
    """An observer that gathers evidence; everything runs on the loop's thread.

    Args:
        pipeline: With a canary.
        plan: What to look at.
        evidence: Grows.
        observer: Who is told too.
    """

    def __init__(self, pipeline: Pipeline, plan: RolloutPlan, evidence: Evidence, observer: Observer) -> None:
        self._plan = plan
        self.evidence = evidence
        self._observer = observer
        self._differs = [stage.canary is not None for stage in pipeline.stages]
        self._tripped: set[int] = set()
        """Tags of requests inside of which a batch has failed: a repeated attempt may hide it from the client."""
        self.shadows: set[Request] = set()
        """Inside now; they are nobody's requests."""
        self.traces: dict[Request, Trace] = {}
        """What stages that differ gave, of requests that are, or will be, asked again."""
        self.answered: Callable[[Request], None] = _ignore
        """Told of each request of the stable version that has been answered."""

    def batch_ended(self, batch: Batch) -> None:
        """See `Observer.batch_ended`."""
        self._observer.batch_ended(batch)
        if not self._differs[batch.stage]:
            return
        if self.traces and not batch.failed:
            for request, result in zip(batch.requests, batch.results, strict=False):
                trace = self.traces.get(request)
                if trace is not None and isinstance(result, Work):
                    trace[batch.stage, batch.engine] = result.tensors
        if batch.failed:
            self._tripped.update(request.tag for request in batch.requests)
        elif self._plan.latency is not None:
            kind = f"{batch.stage}.{batch.engine}.{batch.bucket}.{batch.rows}.{batch.padded}"
            time_s = (batch.copy_ns + batch.compute_ns) / NS_PER_S
            self.evidence.took(kind, batch.version, time_s, self._plan.latency)

    def passage_ended(self, passage: Passage) -> None:
        """See `Observer.passage_ended`."""
        self._observer.passage_ended(passage)

    def engine_lost(self, engine: int) -> None:
        """See `Observer.engine_lost`."""
        self._observer.engine_lost(engine)

    def request_ended(self, request: Request) -> None:
        """See `Observer.request_ended`."""
        self._observer.request_ended(request)
        tripped = request.tag in self._tripped
        self._tripped.discard(request.tag)
        if request.version is None or request in self.shadows:
            return
        if request.outcome is Outcome.COMPLETED and request.reason is not Reason.DEGRADED:
            self.evidence.ended(request.version, failed=tripped)
            if request.version == c.STABLE:
                self.answered(request)
        elif request.outcome is Outcome.FAILED and request.reason in OURS:
            if not isinstance(request.fault, StageInputError):
                self.evidence.ended(request.version, failed=True)
        elif tripped:
            self.evidence.ended(request.version, failed=True)


class ShadowingShell(Shell):
    """A shell that asks the canary some requests again.

    Args:
        watch: Gets what came of it.
        record: Keeps a request that nobody waits for.
        arguments: As `Shell`.
    """

    def __init__(self, watch: RolloutWatch, plan: RolloutPlan, record: Callable[[Request], None], **arguments: Any):
        super().__init__(observer=watch, **arguments)
        self._watch = watch
        self._rule = plan.outputs
        self._record_shadow = record
        self._inputs: dict[Request, Work] = {}
        """Of requests inside that will be asked again if the stable version answers them."""
        self._seen = 0
        self._busy = 0
        """Asked again and not compared yet."""
        watch.answered = self._answered

    def submit(self, request: Request) -> None:
        """See `Shell.submit`."""
        rule = self._rule
        if rule is not None and request not in self._watch.shadows and int(self.state.counters[c.C_STEP]) > 0:
            self._seen += 1
            if (
                (self._seen * GOLDEN) % 1.0 < rule.share
                and len(self._inputs) + self._busy < rule.inflight_max
                and self._is_quiet()
            ):
                assert request.work is not None
                self._inputs[request] = Work(dict(request.work.tensors), request.work.context)
                self._watch.traces[request] = {}
                done = request.done
                request.done = lambda ended: self._forget(ended, done)
        super().submit(request)

    def _forget(self, request: Request, done: Callable[[Request], object]) -> None:
        """A request that was to be asked again has ended otherwise."""
        self._inputs.pop(request, None)
        self._watch.traces.pop(request, None)
        done(request)

    def _is_quiet(self) -> bool:
        """Whether no queue is long. What is asked again is of the lowest class besides: it starts where none waits."""
        waiting = self.state.engines[:, c.N_QUEUED]
        return not bool((waiting > QUIET_SHARE * self.tables.engines[:, c.E_QUEUE_LIMIT]).any())

    def _answered(self, request: Request) -> None:
        """The stable version has answered one that may be asked again."""
        work = self._inputs.pop(request, None)
        if work is None or request.work is None or not self._is_quiet() or self.draining:
            return
        kept = self._watch.traces.pop(request, {})
        kept[ANSWER] = request.work.tensors
        route = [passage.engine for passage in request.passages]
        now_ns = self._clock.now_ns()
        shadow = Request(
            work=work,
            bucket=request.passages[0].bucket,
            priority=len(CLASSES) - 1,
            deadline_ns=now_ns + SHADOW_DEADLINE_NS,
            source=SHADOW_SOURCE,
            source_index=-1,
            precision=request.precision,
            id=request.id,
            input=request.input,
            received_ns=now_ns,
            done=lambda ended: self._came_back(ended, kept, route),
            key=SHADOW_KEY,
            tokens=request.tokens,
        )
        self._watch.shadows.add(shadow)
        self._watch.traces[shadow] = {}
        self._busy += 1
        super().submit(shadow)

    def _came_back(self, shadow: Request, kept: Trace, route: list[int]) -> None:
        self._watch.shadows.discard(shadow)
        trace = self._watch.traces.pop(shadow, {})
        self._record_shadow(shadow)
        rule = self._rule
        assert rule is not None
        if shadow.outcome is Outcome.FAILED and shadow.version == c.CANARY:
            # The stable version could answer it.
            self._watch.evidence.compared(float("inf"), rule.tolerance, rule.different_max)
        elif shadow.outcome is Outcome.COMPLETED and shadow.version == c.CANARY and shadow.work is not None:
            trace[ANSWER] = shadow.work.tensors
            if [passage.engine for passage in shadow.passages] != route:
                del trace[ANSWER]
            pairs = [(trace[place], kept[place]) for place in trace if place in kept]
            if pairs:
                comparing = asyncio.get_running_loop().run_in_executor(None, _farthest, pairs)
                comparing.add_done_callback(self._compared)
                return
        self._busy -= 1

    def _compared(self, comparing: "asyncio.Future[float]") -> None:
        self._busy -= 1
        rule = self._rule
        assert rule is not None
        if not comparing.cancelled():
            self._watch.evidence.compared(comparing.result(), rule.tolerance, rule.different_max)


def _farthest(pairs: list[tuple[dict[str, Tensor], dict[str, Tensor]]]) -> float:
    return max(distance(given, kept) for given, kept in pairs)


def _ignore(_request: Request) -> None:
    """Nobody asks again."""
