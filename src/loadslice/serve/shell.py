"""The single owner of the policy core's state: feeds it facts, carries out what it says.

Rules of this file: everything runs on the event loop's thread; nothing awaits between a call into the core and the end
of its effects; the clock is read once per event; every event is fed to the core through its log
(`policy.events.decide`) and logged before its effects are carried out, so that the log replays to the same decisions.

Arrivals of one turn of the loop are decided in one call (`core`), before the loop waits for anything else; whatever
else happens decides at once, and what has arrived before it with it.
"""

import asyncio
import struct
from array import array
from collections.abc import Callable
from typing import Protocol

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import State, Tables
from loadslice.serve.alarm import Alarm
from loadslice.serve.clock import Clock
from loadslice.serve.core import ITEMS_MAX, Core, event_row, short_row
from loadslice.serve.request import Batch, Passage, Request
from loadslice.serve.residents import resident_stages
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import StageError, Work

TURN_NS = 1_000_000
"""How long decisions and what they lead to on this thread may go on before the loop looks at its sockets again."""


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
        self.draining = False
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
        self._core = Core(tables, state, has_canary=self._has_canary, keep_events=keep_events)
        self._note = self._core.note
        self._is_deciding = False
        self._is_scheduled = False
        self._alarm: Alarm | None = None
        self._alarm_ns = c.FOREVER
        self._idle: asyncio.Future[None] | None = None

    def submit(self, request: Request) -> None:
        """A request has arrived; it is decided about with all others of this turn of the loop.

        Raises:
            OverflowError: One of its numbers is none that the core holds; nothing has changed.
        """
        assert request.work is not None
        now_ns = self._clock.now_ns()
        items = request.work.items
        try:
            row = event_row(
                events.ARRIVAL,
                now_ns,
                self._next_tag,
                request.priority,
                request.deadline_ns,
                min(items or 1, ITEMS_MAX),
                request.bucket,
                request.tokens,
                request.source_index,
                request.precision,
                request.attempt,
                request.tenant_index,
                request.key,
            )
        except struct.error as error:
            raise OverflowError(f"request {self._next_tag}: {error}") from error
        request.tag = self._next_tag
        request.arrival_ns = now_ns
        request.items = items
        self._next_tag += 1
        self._inside[request.tag] = request
        self._note(row)
        if not self._is_scheduled:
            self._schedule()

    def cancel(self, request: Request) -> None:
        """The client has gone, or the server cannot wait for this request any longer."""
        if self._is_deciding:
            asyncio.get_running_loop().call_soon(self.cancel, request)
            return
        self._decide()
        if request.tag in self._inside:
            self._tell(events.CANCEL, request.row, request.tag)

    def batch_done(self, batch: Batch) -> None:
        """A worker has given a batch back."""
        now_ns = self._clock.now_ns()
        self._running.discard(batch)
        self._observer.batch_ended(batch)
        closed = self._close_passages(batch, now_ns)
        kind = events.BATCH_FAILED if batch.failed else events.BATCH_DONE
        rows = bytearray(short_row(kind, now_ns, batch.slot, batch.epoch))
        if not batch.failed:
            self._take_results(batch, now_ns, rows)
        self._note(rows)
        self._decide(now_ns + TURN_NS)
        for passage in closed:  # counted only now, when replies are on their way
            self._observer.passage_ended(passage)

    def engine_down(self, engine: int) -> bool:
        """An engine is lost; what it gives back of the batches it has now is of an old epoch.

        Returns:
            False: it was down already.
        """
        self._decide()
        if self.state.engines[engine, c.N_UP] == 0:
            return False
        self._observer.engine_lost(engine)
        self._running = {batch for batch in self._running if batch.engine != engine}
        self._tell(events.ENGINE_DOWN, engine)
        return True

    def engine_up(self, engine: int) -> bool:
        """An engine is back.

        Returns:
            False: it was up already.
        """
        self._decide()
        if self.state.engines[engine, c.N_UP] == 1:
            return False
        self._tell(events.ENGINE_UP, engine)
        return True

    def rollout(self, verdict: int) -> bool:
        """An analysis of the canary has ended.

        Args:
            verdict: `columns.PASS`, `columns.FAIL` or `columns.INCONCLUSIVE`.

        Returns:
            False: no canary has traffic.
        """
        self._decide()
        if self.state.counters[c.C_STEP] == 0:
            return False
        self._tell(events.ROLLOUT, verdict)
        return True

    def take_events(self) -> "array[int]":
        """Rows of `policy.events` since they were last taken, as one flat array."""
        self._decide()
        return self._core.take_events()

    @property
    def effects_sha256(self) -> str:
        """Over all effects so far, in order; of a shell that keeps events."""
        return self._core.decisions.hexdigest()

    def drain(self) -> None:
        """Admit nothing from now on."""
        self._decide()
        self.draining = True
        self._tell(events.DRAIN)

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
        """Disarm the alarm."""
        self._alarm_ns = 0  # no later one is set
        if self._alarm is not None:
            self._alarm.close()

    def _close_passages(self, batch: Batch, now_ns: int) -> list[Passage]:
        """Note how it went in the passages that this batch was; those are given back."""
        closed = []
        rows = batch.rows
        for request, passage in zip(batch.requests, batch.passages, strict=True):
            if request.outcome is Outcome.NONE and request.passages[-1] is passage:
                passage.started_ns = batch.started_ns
                passage.copy_ns = batch.copy_ns
                passage.compute_ns = batch.compute_ns
                passage.batch_rows = rows
                passage.done_ns = now_ns
                closed.append(passage)
        return closed

    def _take_results(self, batch: Batch, now_ns: int, log: bytearray) -> None:
        """Hand each request its share of a batch's results, and the core what it must know about them."""
        for request, passage, result, bucket in zip(
            batch.requests, batch.passages, batch.results, batch.next_buckets, strict=True
        ):
            live = request.outcome is Outcome.NONE and request.passages[-1] is passage
            if isinstance(result, StageError):
                items = -1
                if live:
                    request.fault = result
            else:
                rows = result.items
                items = min(rows or 1, ITEMS_MAX)
                if live:
                    # A request that was moved meanwhile runs elsewhere on its old work.
                    request.work = result
                    request.bucket = bucket
                    request.items = rows
            log += short_row(events.RESULT, now_ns, items, bucket)

    def _on_alarm(self) -> None:
        self._alarm_ns = c.FOREVER
        self._decide()
        if int(self.state.counters[c.C_NEXT_TIMER_NS]) > self._clock.now_ns():
            self._arm()
            return
        self._tell(events.TIMER)

    def _arm(self) -> None:
        """Have `_on_alarm` called when the core wants it. An earlier alarm that stands already is left: it re-arms."""
        at_ns = int(self.state.counters[c.C_NEXT_TIMER_NS])
        if at_ns >= self._alarm_ns:
            return
        if self._alarm is None:
            self._alarm = Alarm(self._on_alarm)
        self._alarm_ns = at_ns
        self._alarm.set(self._clock.monotonic_ns(at_ns))

    def _tell(self, kind: int, *arguments: int) -> None:
        """Something has happened now: decide about it, after all that has happened before."""
        first, second = (*arguments, 0, 0)[:2]
        self._note(short_row(kind, self._clock.now_ns(), first, second))
        self._decide()

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_scheduled = False
        self._decide(self._clock.now_ns() + TURN_NS)

    def _decide(self, until_ns: int = c.FOREVER) -> None:
        """Have the core decide about all that has happened, and do what it says.

        What happens while that is being done (a batch is run on this thread) is decided about right after it, never
        inside it.

        Args:
            until_ns: When to leave the rest to the loop's next turn, which looks at sockets and timers before.
        """
        if self._is_deciding:
            return
        self._is_deciding = True
        core = self._core
        try:
            while core.waiting:
                self._carry_out(core.decide())
                if core.waiting and self._clock.now_ns() > until_ns:
                    self._schedule()
                    break
        finally:
            self._is_deciding = False
        self._arm()
        self._wake_idle()

    def _carry_out(self, effects: list[list[int]]) -> None:
        """Do what the core has just said, in order."""
        for kind, tag, a, b, detail, d, now_ns in effects:
            if kind == c.DISPATCH:
                self._start(slot=tag, engine=a, stage=b, lane=detail, epoch=d, now_ns=now_ns)
            elif kind == c.PLACED:
                request = self._inside[tag]
                request.row = d
                if self._has_canary:
                    request.version = int(self.state.requests[d, c.R_VERSION])
                request.passages.append(Passage(a, b, _REASONS[detail], request.bucket, request.items, now_ns))
            else:
                self._end(tag, _OUTCOMES[a], _REASONS[b], hint_ns=detail, stage=d, now_ns=now_ns)

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
        # Let go of whoever waits: it has the request, and both would live, with all tensors, until the garbage
        # collector comes.
        done, request.done = request.done, _over
        done(request)

    def _wake_idle(self) -> None:
        if self._idle is not None and not self._idle.done() and not self._inside and not self._running:
            self._idle.set_result(None)


def _over(request: Request) -> None:
    """Stands where a request that has ended had whoever waited for it."""
    raise AssertionError(f"request {request.tag} has ended already")


# Looked up rather than made: making a member of an enumeration from its number takes half a microsecond.
_OUTCOMES = tuple(Outcome(number) for number in range(len(Outcome)))
_REASONS = tuple(Reason(number) for number in range(len(Reason)))
