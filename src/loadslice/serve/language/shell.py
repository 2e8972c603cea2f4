"""The single owner of the token desk: feeds it facts, carries out what it says.

Rules of this file: everything runs on the event loop's thread; nothing awaits between a call into the desk and the end
of its effects; the clock is read once per event; every call is logged before its effects are carried out.
"""

import asyncio
import logging
from collections.abc import Sequence

import numpy as np

from loadslice.backends.language import messages as m
from loadslice.backends.language.host import LanguageProcess, SharedSlots
from loadslice.backends.language.prefix import names
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.layout import State, Tables
from loadslice.serve.alarm import Alarm
from loadslice.serve.clock import Clock
from loadslice.serve.language.handovers import Handovers, Key
from loadslice.serve.language.observer import Observer
from loadslice.serve.language.prefixes import KnownPrefixes
from loadslice.serve.language.request import LanguageRequest
from loadslice.serve.language.stepped import fault_of
from loadslice.serve.refusals import NS_PER_MS
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.route import Route

log = logging.getLogger(__name__)


class LanguageShell:
    """Owns tables and state of one language model.

    Args:
        tables: Lowered, with measured costs.
        state: Fresh.
        engines: In the order of the tables; started, and ready unless the desk is told otherwise.
        layouts: What each engine's KV means.
        vocabulary: Tokens that there are.
        slots: Shared memory of the hand-overs, see `Handovers`.
        clock: The server's.
        observer: Told of everything.
    """

    def __init__(
        self,
        tables: Tables,
        state: State,
        engines: Sequence[LanguageProcess],
        layouts: Sequence[m.Layout],
        vocabulary: int,
        slots: SharedSlots,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.tables, self.state = tables, state
        self.layouts = list(layouts)
        self._vocabulary = vocabulary
        self._engines = engines
        self._handovers = Handovers(slots)
        self._clock = clock
        self._observer = observer
        self._of_tag: dict[int, LanguageRequest] = {}
        self._of_row: dict[int, LanguageRequest] = {}
        self._next_tag = self._next_number = 0
        self._steps = [m.Step(-1, ())] * len(engines)
        """By engine: the step that it computes."""
        self._prefixes = KnownPrefixes(len(engines), int(tables.run[c.T_BLOCK]))
        self._ends = np.zeros(state.rows.shape[1], np.int64)
        self._alarm: Alarm | None = None
        self._alarm_ns = c.FOREVER
        self._idle: asyncio.Future[None] | None = None
        self.draining = False

    @property
    def inside(self) -> int:
        """Requests without an outcome."""
        return len(self._of_tag)

    def submit(self, request: LanguageRequest) -> None:
        """A request has arrived; its end may be told before this returns."""
        now_ns = self._clock.now_ns()
        request.tag, request.arrival_ns = self._next_tag, now_ns
        self._next_tag += 1
        self._of_tag[request.tag] = request
        model = bytes.fromhex(self.layouts[0].model_sha256)
        request.names = names(request.prompt, int(self.tables.run[c.T_BLOCK]), model)
        hits = self._prefixes.hits(request.names, len(request.prompt))
        arguments = (
            request.tag,
            request.priority,
            len(request.prompt),
            request.new_max,
            request.first_by_ns,
            request.deadline_ns,
        )
        self._observer.event("arrival", now_ns, (*arguments, *hits.tolist()))
        desk.on_arrival(now_ns, self.tables, self.state, *arguments, hits)
        self._carry_out(now_ns)

    def cancel(self, request: LanguageRequest) -> None:
        """The client has gone."""
        if request.tag not in self._of_tag:
            return
        now_ns = self._clock.now_ns()
        self._observer.event("cancel", now_ns, (request.row, request.tag))
        if desk.on_cancel(now_ns, self.tables, self.state, request.row, request.tag) != c.REFUSED:
            self._carry_out(now_ns)

    def hear(self, engine: int, message: m.FromEngine) -> None:
        """An engine has said something."""
        if isinstance(message, m.Stepped):
            self._stepped(engine, message)
        elif isinstance(message, m.Exported):
            self._exported(message)
        elif isinstance(message, m.Imported):
            self._imported(message)
        elif isinstance(message, m.Broken):
            self._broken(engine, message)
        elif isinstance(message, m.Cached):
            self._prefixes.changed(engine, message.added, message.dropped)

    def engine_down(self, engine: int) -> None:
        """An engine is lost, with all KV on it."""
        now_ns = self._clock.now_ns()
        self._prefixes.engine_down(engine)
        self._handovers.engine_down(engine)
        self._observer.event("engine_down", now_ns, (engine,))
        if desk.on_engine_down(now_ns, self.tables, self.state, engine) != c.REFUSED:
            self._carry_out(now_ns)

    def engine_up(self, engine: int) -> None:
        """An engine is back, with nothing on it."""
        now_ns = self._clock.now_ns()
        self._observer.event("engine_up", now_ns, (engine,))
        if desk.on_engine_up(now_ns, self.tables, self.state, engine) != c.REFUSED:
            self._carry_out(now_ns)

    def is_late(self, engine: int, least_ns: int) -> bool:
        """Whether an engine hangs: its step takes ``least_ns``, and far longer than was expected."""
        return self._clock.now_ns() > desk.late_at_ns(self.state, engine, least_ns)

    def drain(self) -> None:
        """Admit nothing from now on."""
        now_ns = self._clock.now_ns()
        self.draining = True
        self._observer.event("drain", now_ns, ())
        desk.on_drain(now_ns, self.tables, self.state)
        self._carry_out(now_ns)

    def cancel_all(self) -> int:
        """End everything that is still inside; returns how many that were."""
        left = list(self._of_tag.values())
        for request in left:
            self.cancel(request)
        return len(left)

    async def idle(self) -> None:
        """Wait until nothing is inside."""
        while self._of_tag:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def close(self) -> None:
        """Disarm the alarm."""
        self._alarm_ns = 0  # no later one is set
        if self._alarm is not None:
            self._alarm.close()

    # -- what engines say

    def _stepped(self, engine: int, message: m.Stepped) -> None:
        step = self._steps[engine]
        epoch = step.epoch
        if epoch != message.epoch:
            return  # of an engine that was given up meanwhile
        fault = fault_of(message, step.rows, self._vocabulary)
        if fault:
            self._distrust(engine, f"its answer is none: {fault}")
            return
        rows = [row for row, _, _ in step.rows]
        now_ns = self._clock.now_ns()
        self._ends[:] = 0
        heard: list[LanguageRequest] = []
        places = {row: place for place, row in enumerate(rows)}
        for drawn in message.drawn:
            request = self._of_row.get(drawn.row)
            if request is None or request.number != drawn.number:
                continue  # cancelled while it was computed
            request.produced.append(drawn.token)
            if request.first_ns == 0:
                request.first_ns = now_ns
            request.last_ns = now_ns
            self._ends[places[drawn.row]] = c.ENDS if request.take(drawn) else c.GOES_ON
            heard.append(request)
        for row in message.late:
            self._ends[places[row]] = c.LATE
        for row, why in message.lost:
            self._ends[places[row]] = c.LOST
            if row in self._of_row:
                self._of_row[row].failure = why
        self._observer.event("step_done", now_ns, (engine, epoch, *self._ends[: len(rows)].tolist()))
        done = desk.on_step_done(now_ns, self.tables, self.state, engine, epoch, self._ends)
        if done == c.REFUSED:
            return
        gaps_ns = self.state.gaps[engine, :done]
        self._observer.stepped(engine, message.compute_ns, message.sample_ns, gaps_ns[gaps_ns >= 0].tolist())
        self._carry_out(now_ns)
        for request in heard:
            request.told()

    def _exported(self, message: m.Exported) -> None:
        key = (message.row, message.epoch)
        handover = self._handovers.find(key)
        if handover is None:
            return
        row = self.state.sequences[message.row]
        due = int(row[c.Q_COMPUTED])
        if message.tokens != due and row[c.Q_EPOCH] == message.epoch:
            self._handovers.let_go(key)
            self._fail_handover(key, f"KV of {message.tokens} tokens came for a prompt of {due}")
            return
        handover.export_ns, handover.tokens = message.took_ns, message.tokens
        handover.payload_bytes, handover.is_exported = message.payload_bytes, True
        request = self._of_row.get(message.row)
        if not self._tell_handover(key, desk.EXPORTED) or request is None or request.number != message.number:
            self._handovers.let_go(key)
            return
        raw = self._is_raw(handover.prefill, handover.decode)
        order = m.Import(message.row, message.number, message.epoch, handover.slot, raw)
        self._engines[handover.decode].send(order)

    def _imported(self, message: m.Imported) -> None:
        key = (message.row, message.epoch)
        handover = self._handovers.find(key)
        if handover is None:
            return
        self._handovers.let_go(key)
        request = self._of_row.get(message.row)
        if request is not None:
            request.handover_ns += handover.export_ns + message.took_ns
        self._observer.handed_over(handover.tokens, handover.payload_bytes, handover.export_ns, message.took_ns)
        self._tell_handover(key, desk.IMPORTED)

    def _broken(self, engine: int, message: m.Broken) -> None:
        log.warning("engine '%s': %s failed: %s", self._engines[engine].name, message.what, message.reason)
        if message.what in ("export", "import"):
            key = (message.row, message.epoch)
            handover = self._handovers.find(key)
            if handover is not None:
                self._handovers.let_go(key)
                self._fail_handover(key, message.reason)
        else:
            # It has not what it was told to compute with.
            self._distrust(engine, message.reason)

    def _distrust(self, engine: int, reason: str) -> None:
        """End an engine of which nothing is to be believed any more; what it had in hand is computed elsewhere."""
        log.error("engine '%s' is ended: %s", self._engines[engine].name, reason)
        self._steps[engine] = m.Step(-1, ())
        self._engines[engine].kill()

    def _fail_handover(self, key: Key, reason: str) -> None:
        self._observer.handover_failed(reason)
        self._tell_handover(key, desk.BROKEN)

    def _tell_handover(self, key: Key, what: int) -> bool:
        now_ns = self._clock.now_ns()
        self._observer.event("handover", now_ns, (*key, what))
        if desk.on_handover(now_ns, self.tables, self.state, *key, what) == c.REFUSED:
            return False
        self._carry_out(now_ns)
        return True

    # -- what the desk says

    def _carry_out(self, now_ns: int) -> None:
        effects = self.state.effects[: int(self.state.counters[c.C_EFFECTS])].tolist()
        late: list[Key] = []
        ended: list[LanguageRequest] = []
        for kind, tag, row, a, b, detail in effects:
            if kind == c.STEP:
                self._step(engine=a, epoch=b, count=detail)
            elif kind == c.PLACED:
                self._place(self._of_tag[tag], row, prefill=a, decode=b, route=Route(detail))
            elif kind == c.FREED:
                if tag in self._of_tag:
                    self._release(self._of_tag[tag], a)
            elif kind == c.HAND_OVER:
                if not self._begin_handover(self._of_tag[tag], row, prefill=a, decode=b, epoch=detail):
                    late.append((row, detail))
            elif kind == c.PREEMPTED:
                self._observer.preempted(a)
            elif kind == c.ENDED:
                ended.append(self._end(tag, row, Outcome(a), Reason(b), hint_ns=detail, now_ns=now_ns))
        # Engines compute again before clients are told.
        for request in ended:
            self._observer.ended(request)
            request.ended(request)
        if ended and not self._of_tag and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._arm()
        for key in late:
            self._fail_handover(key, "no slot is free")

    def _place(self, request: LanguageRequest, row: int, *, prefill: int, decode: int, route: Route) -> None:
        self._release_all(request)
        request.row = row
        self._of_row[row] = request
        request.number = self._next_number
        self._next_number += 1
        request.prefill, request.decode = prefill, decode
        if request.places == 0:
            request.route = route
            request.hit = int(self.state.sequences[row, c.Q_HIT])
        request.places += 1
        self._begin(request, prefill, hit=int(self.state.sequences[row, c.Q_HIT]))

    def _begin(self, request: LanguageRequest, engine: int, *, hit: int) -> None:
        tokens = (*request.prompt, *request.produced)
        request.begun[engine] = request.number
        left_ms = 0
        if request.deadline_ns < c.FOREVER:
            left_ms = max(1, (request.deadline_ns - self._clock.now_ns()) // NS_PER_MS)
        order = m.Begin(
            *(request.row, request.number, tokens, len(request.prompt), request.sampling, hit),
            new_max=request.new_max,
            left_ms=left_ms,
        )
        self._engines[engine].send(order)

    def _release(self, request: LanguageRequest, engine: int) -> None:
        number = request.begun.pop(engine, None)
        if number is not None:
            self._engines[engine].send(m.Release(request.row, number))

    def _release_all(self, request: LanguageRequest) -> None:
        for engine in list(request.begun):
            self._release(request, engine)

    def _step(self, *, engine: int, epoch: int, count: int) -> None:
        rows = self.state.rows[engine, :count]
        computed = self.state.sequences[rows[:, c.P_SEQUENCE], c.Q_COMPUTED]
        planned = zip(
            rows[:, c.P_SEQUENCE].tolist(),
            (computed + rows[:, c.P_TOKENS]).tolist(),
            (rows[:, c.P_SAMPLES] == 1).tolist(),
            strict=True,
        )
        order = m.Step(epoch, tuple(planned))
        self._steps[engine] = order
        self._engines[engine].send(order)

    def _is_raw(self, prefill: int, decode: int) -> bool:
        return self.layouts[prefill].raw == self.layouts[decode].raw

    def _begin_handover(self, request: LanguageRequest, row: int, *, prefill: int, decode: int, epoch: int) -> bool:
        handover = self._handovers.begin((row, epoch), prefill, decode)
        if handover is None:
            return False
        raw = self._is_raw(prefill, decode)
        self._begin(request, decode, hit=0)
        self._engines[prefill].send(m.Export(row, request.number, epoch, handover.slot, raw))
        return True

    def _end(
        self, tag: int, row: int, outcome: Outcome, reason: Reason, *, hint_ns: int, now_ns: int
    ) -> LanguageRequest:
        request = self._of_tag.pop(tag)
        request.outcome, request.reason, request.hint_ns = outcome, reason, hint_ns
        request.end_ns = now_ns
        if row >= 0 and self._of_row.get(row) is request:
            del self._of_row[row]
        # An engine obeys in order: a step or a hand-over that it has been told of is done before this.
        self._release_all(request)
        return request

    # -- time

    def _on_alarm(self) -> None:
        self._alarm_ns = c.FOREVER
        now_ns = self._clock.now_ns()
        if desk.next_timer_ns(self.state) > now_ns:
            self._arm()
            return
        self._observer.event("timer", now_ns, ())
        desk.on_timer(now_ns, self.tables, self.state)
        self._carry_out(now_ns)

    def _arm(self) -> None:
        """Have `_on_alarm` called when the desk wants it. An earlier alarm that stands already is left: it re-arms."""
        at_ns = desk.next_timer_ns(self.state)
        if at_ns >= self._alarm_ns:
            return
        if self._alarm is None:
            self._alarm = Alarm(self._on_alarm)
        self._alarm_ns = at_ns
        self._alarm.set(self._clock.monotonic_ns(at_ns))
