"""The single owner of the policy core's state: feeds it facts, carries out what it says.

Rules of this file: everything runs on the event loop's thread; nothing awaits between a call into the core and the end
of its effects; the clock is read once per event; every call is logged before its effects are carried out, so that the
log replays (`policy.events.decide`) to the same decisions.
"""

import asyncio
import hashlib
import logging
from array import array
from collections.abc import Callable
from typing import Protocol

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import desk, events
from loadslice.policy.tables import State, Tables, fresh
from loadslice.policy.versions import NO_KEY
from loadslice.serve.clock import Clock
from loadslice.serve.request import Batch, Passage, Request
from loadslice.serve.residents import resident_stages
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import StageError, Work

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Who counts what happens; called on the loop's thread."""

    def batch_ended(self, batch: Batch) -> None:
        """A worker has given a batch back."""

    def passage_ended(self, passage: Passage) -> None:
        """A request has passed a stage."""

    def engine_lost(self, engine: int) -> None:
        """An engine is down."""

    def request_ended(self, request: Request) -> None:
        """A request has its outcome."""


class Shell:
    """Owns tables and state; the front submits and cancels, workers give batches back.

    Args:
        tables: Lowered pipeline.
        state: Fresh.
        clock: The server's clock.
        dispatch: Hands a batch to its worker; must not block.
        observer: Told about ends.
        keep_events: Whether to log calls for a journal.
    """

    def __init__(
        self,
        tables: Tables,
        state: State,
        clock: Clock,
        dispatch: Callable[[Batch], None],
        observer: Observer,
        *,
        keep_events: bool,
    ) -> None:
        self.tables = tables
        self.state = state
        self._events = array("q")
        self.decisions = hashlib.sha256()
        """Over all effects, in order."""
        self.draining = False
        self._keep_events = keep_events
        self._buckets: list[int] = tables.stages[:, c.S_BUCKETS].tolist()
        self._has_canary = bool((tables.stages[:, c.S_LANES] > tables.stages[:, c.S_BUCKETS]).any())
        # Looked up here: a kernel called from Python costs a microsecond, and compiling when it is first called.
        self._has_bounded_memory: list[bool] = (tables.engines[:, c.E_MEMORY_BYTES] < c.FOREVER).tolist()
        self._clock = clock
        self._dispatch = dispatch
        self._observer = observer
        self._inside: dict[int, Request] = {}
        self._running: set[Batch] = set()
        self._next_tag = 0
        self._results = np.zeros((state.members.shape[1], 2), np.int64)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = c.FOREVER
        self._idle: asyncio.Future[None] | None = None

    def submit(self, request: Request) -> None:
        """A request has arrived. Its outcome may be known when this returns; ``request.done`` is resolved then."""
        assert request.work is not None
        now_ns = self._clock.now_ns()
        request.tag = self._next_tag
        request.arrival_ns = now_ns
        arguments = (
            request.tag,
            request.priority,
            request.deadline_ns,
            max(1, request.work.items),
            request.bucket,
            request.tokens,
            request.source_index,
            request.precision,
            request.attempt,
            request.tenant_index,
            request.key,
        )
        array("q", arguments)  # a number that the core cannot hold must fail here, before anything has changed
        self._next_tag += 1
        self._inside[request.tag] = request
        self._note(events.ARRIVAL, now_ns, *arguments)
        desk.on_arrival(now_ns, self.tables, self.state, *arguments)
        self._carry_out(now_ns)

    def cancel(self, request: Request) -> None:
        """The client has gone, or the server cannot wait for this request any longer."""
        if request.tag not in self._inside:
            return
        now_ns = self._clock.now_ns()
        self._note(events.CANCEL, now_ns, request.row, request.tag)
        answer = desk.on_cancel(now_ns, self.tables, self.state, request.row, request.tag)
        assert answer != c.REFUSED, "a request inside can be cancelled"
        self._carry_out(now_ns)

    def batch_done(self, batch: Batch) -> None:
        """A worker has given a batch back."""
        now_ns = self._clock.now_ns()
        self._running.discard(batch)
        self._observer.batch_ended(batch)
        self._close_passages(batch, now_ns)
        if batch.failed:
            self._note(events.BATCH_FAILED, now_ns, batch.slot, batch.epoch)
            answer = desk.on_batch_failed(now_ns, self.tables, self.state, batch.slot, batch.epoch)
        else:
            self._note(events.BATCH_DONE, now_ns, batch.slot, batch.epoch)
            self._take_results(batch, now_ns)
            answer = desk.on_batch_done(now_ns, self.tables, self.state, batch.slot, batch.epoch, self._results)
        if answer != c.REFUSED:
            self._carry_out(now_ns)
        self._wake_idle()

    def engine_down(self, engine: int) -> bool:
        """An engine is lost; what it gives back of the batches it has now is of an old epoch.

        Returns:
            False: it was down already.
        """
        now_ns = self._clock.now_ns()
        if desk.on_engine_down(now_ns, self.tables, self.state, engine) == c.REFUSED:
            return False
        self._note(events.ENGINE_DOWN, now_ns, engine)
        self._observer.engine_lost(engine)
        self._running = {batch for batch in self._running if batch.engine != engine}
        self._carry_out(now_ns)
        return True

    def engine_up(self, engine: int) -> bool:
        """An engine is back.

        Returns:
            False: it was up already.
        """
        now_ns = self._clock.now_ns()
        if desk.on_engine_up(now_ns, self.tables, self.state, engine) == c.REFUSED:
            return False
        self._note(events.ENGINE_UP, now_ns, engine)
        self._carry_out(now_ns)
        return True

    def rollout(self, verdict: int) -> bool:
        """An analysis of the canary has ended.

        Args:
            verdict: `columns.PASS`, `columns.FAIL` or `columns.INCONCLUSIVE`.

        Returns:
            False: no canary has traffic.
        """
        now_ns = self._clock.now_ns()
        if desk.on_rollout(now_ns, self.tables, self.state, verdict) == c.REFUSED:
            return False
        self._note(events.ROLLOUT, now_ns, verdict)
        self._carry_out(now_ns)
        return True

    def take_events(self) -> "array[int]":
        """Rows of `policy.events` since they were last taken, as one flat array."""
        taken, self._events = self._events, array("q")
        return taken

    def drain(self) -> None:
        """Admit nothing from now on."""
        now_ns = self._clock.now_ns()
        self.draining = True
        self._note(events.DRAIN, now_ns)
        desk.on_drain(now_ns, self.tables, self.state)
        self._carry_out(now_ns)

    def cancel_all(self) -> int:
        """End everything that is still inside; returns how many that were."""
        left = list(self._inside.values())
        for request in left:
            self.cancel(request)
        return len(left)

    async def idle(self) -> None:
        """Wait until nothing is inside and every worker of an engine that is up has given its batch back."""
        while self._inside or self._running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def close(self) -> None:
        """Disarm the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _close_passages(self, batch: Batch, now_ns: int) -> None:
        rows = batch.rows
        for request, passage in zip(batch.requests, batch.passages, strict=True):
            if _is_live(request, passage):
                passage.started_ns = batch.started_ns
                passage.copy_ns = batch.copy_ns
                passage.compute_ns = batch.compute_ns
                passage.batch_rows = rows
                passage.done_ns = now_ns
                self._observer.passage_ended(passage)

    def _take_results(self, batch: Batch, now_ns: int) -> None:
        """Hand each request its share of a batch's results, and the core what it must know about them."""
        for index, (request, passage, result, bucket) in enumerate(
            zip(batch.requests, batch.passages, batch.results, batch.next_buckets, strict=True)
        ):
            live = _is_live(request, passage)
            if isinstance(result, StageError):
                items = -1
                if live:
                    request.fault = result
            else:
                items = max(1, result.items)
                if live:
                    # A request that was moved meanwhile runs elsewhere on its old work.
                    request.work = result
                    request.bucket = bucket
            self._results[index] = items, bucket
            self._note(events.RESULT, now_ns, items, bucket)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ns = c.FOREVER
        now_ns = self._clock.now_ns()
        if desk.next_timer_ns(self.state) > now_ns:
            self._arm()
            return
        self._note(events.TIMER, now_ns)
        desk.on_timer(now_ns, self.tables, self.state)
        self._carry_out(now_ns)

    def _arm(self) -> None:
        """Have `_on_timer` called when the core wants it. An earlier alarm that stands already is left: it re-arms."""
        at_ns = desk.next_timer_ns(self.state)
        if at_ns >= self._timer_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = at_ns
        self._timer = asyncio.get_running_loop().call_at(self._clock.loop_time(at_ns), self._on_timer)

    def _carry_out(self, now_ns: int) -> None:
        """Do what the core has just said, in order."""
        effects = self.state.effects[: int(self.state.counters[c.C_EFFECTS])]
        if self._keep_events:
            self.decisions.update(effects.data)
        for kind, tag, a, b, detail, d in effects.tolist():
            if kind == c.DISPATCH:
                self._start(slot=tag, engine=a, stage=b, lane=detail, epoch=d, now_ns=now_ns)
            elif kind == c.PLACED:
                request = self._inside[tag]
                assert request.work is not None
                request.row = d
                if self._has_canary:
                    request.version = int(self.state.requests[d, c.R_VERSION])
                request.passages.append(Passage(a, b, Reason(detail), request.bucket, request.work.items, now_ns))
            else:
                self._end(tag, Outcome(a), Reason(b), hint_ns=detail, stage=d, now_ns=now_ns)
        self._arm()
        self._wake_idle()

    def _start(self, *, slot: int, engine: int, stage: int, lane: int, epoch: int, now_ns: int) -> None:
        version, bucket = divmod(lane, self._buckets[stage])
        padded = int(self.state.batches[slot, c.B_PADDED])
        count = int(self.state.batches[slot, c.B_COUNT])
        requests = [self._inside[tag] for tag in self.state.members[slot, :count, c.M_TAG].tolist()]
        passages = [request.passages[-1] for request in requests]
        works: list[Work] = []
        for request, passage in zip(requests, passages, strict=True):
            assert request.work is not None
            works.append(request.work)
            passage.dispatched_ns = now_ns
        batch = Batch(slot, epoch, engine, stage, version, bucket, padded, now_ns, requests, passages, works)
        if self._has_bounded_memory[engine]:
            batch.resident = resident_stages(self.state, engine)
        self._running.add(batch)
        self._dispatch(batch)

    def _end(self, tag: int, outcome: Outcome, reason: Reason, *, hint_ns: int, stage: int, now_ns: int) -> None:
        request = self._inside.pop(tag)
        request.outcome = outcome
        request.reason = reason
        request.hint_ns = hint_ns
        request.stage = stage
        request.end_ns = now_ns
        if outcome is not Outcome.COMPLETED:
            request.work = None
        self._observer.request_ended(request)
        if not request.done.done():
            request.done.set_result(None)

    def _note(self, kind: int, now_ns: int, *arguments: int) -> None:
        if self._keep_events:
            self._events.extend((kind, now_ns, *arguments, *_PADDING[len(arguments)]))

    def _wake_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._inside and not self._running:
            self._idle.set_result(None)


_PADDING = tuple((0,) * (events.EVENT_COLUMNS - 2 - given) for given in range(events.EVENT_COLUMNS - 1))


def _is_live(request: Request, passage: Passage) -> bool:
    """Whether a batch's result still matters to a request: it has not ended, nor been moved, meanwhile."""
    return request.outcome is Outcome.NONE and request.passages[-1] is passage


def warm_kernels(tables: Tables) -> None:
    """Compile every decision the shell calls (or load it from the cache) on a scratch state."""
    state = fresh(tables, max_requests=1)
    results = np.ones((state.members.shape[1], 2), np.int64)
    # With every argument, as `submit` calls it: a default that is left out is another signature, compiled for the
    # first request while all others wait.
    desk.on_arrival(0, tables, state, 0, 0, c.FOREVER, 1, 0, -1, -1, 0, 1, 0, NO_KEY)
    desk.on_timer(0, tables, state)
    desk.on_batch_done(0, tables, state, -1, 0, results)
    desk.on_batch_failed(0, tables, state, -1, 0)
    desk.on_cancel(0, tables, state, -1, 0)
    desk.on_engine_down(0, tables, state, -1)
    desk.on_engine_up(0, tables, state, -1)
    desk.on_rollout(0, tables, state, c.FAIL)
    desk.on_drain(0, tables, state)
