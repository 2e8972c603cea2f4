"""Holds a stream of events and effects, live or simulated, to the promises that show in it.

`invariants.check` looks at the state between two events; `Watch` looks at what was said, and keeps its own books about
it: who waits where and in which order, what runs, what was spent. It shares nothing with the kernels and needs no
state. Numbers in brackets are those of the list in `invariants`.

    watch = Watch(pipeline)
    watch.event(events.ARRIVAL, now_ns, arguments)
    watch.effects(rows, members)

`follow` does this for an event log, and looks at the state too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from loadslice.policy import columns as c
from loadslice.policy import events, invariants
from loadslice.policy.tables import Int64s, State, Tables
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import CLASSES, Batch, Pipeline

NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000

HINT_NS_MIN = 50 * NS_PER_MS

AT_THE_DOOR = {Reason.DRAINING, Reason.TABLE_FULL, Reason.RETRY_BUDGET}
"""Refused before it had a place inside; it pays nothing into the retry budget."""

Origin = Literal["door", "waiting", "running", "left"]
Lane = tuple[int, int]
"""(stage, bucket)"""


@dataclass(eq=False, slots=True)
class Inside:
    """One request that has not ended."""

    tag: int
    priority: int
    deadline_ns: int
    items: int
    bucket: int
    arrived_ns: int
    clock_ns: int
    """Since when the stage's timeout counts."""
    row: int = -1
    stage: int = 0
    engine: int = -1
    enqueued_ns: int = 0
    sequence: int = 0
    attempts: int = 1

    @property
    def lane(self) -> Lane:
        """Its place inside a queue, but for the class."""
        return (self.stage, self.bucket)


@dataclass(eq=False, slots=True)
class Running:
    """One batch on its slot."""

    engine: int
    epoch: int
    tags: tuple[int, ...]
    members: list[Inside]
    """Those that have not left it."""


@dataclass(eq=False, slots=True)
class Streak:
    """Dispatches of an engine at each of which a class with a floor was ready too."""

    dispatches: int = 0
    own: int = 0


@dataclass(slots=True)
class Told:
    """The event whose effects are looked at."""

    kind: int
    arguments: tuple[int, ...]
    results: dict[int, tuple[int, int]] = field(default_factory=dict)
    leaving: list[Inside] = field(default_factory=list)
    """Members of batches that it ended, until it is said what becomes of them."""
    touched: set[int] = field(default_factory=set)
    """Engines that must start what they may before it ends."""


class Watch:
    """Call `event`, then `effects` with what it said, for every event in order.

    Either raises an AssertionError that names the promise which was broken.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.inside: dict[int, Inside] = {}
        """Requests that have not ended, by tag."""
        self._pipeline = pipeline
        self._names = list(pipeline.engines)
        self._settings = list(pipeline.engines.values())
        self._floors = [pipeline.classes[name].floor if name in pipeline.classes else 0.0 for name in CLASSES]
        slots = [e for e, engine in enumerate(self._settings) for _ in range(engine.max_inflight)]
        self._engine_of_slot = slots
        self._running: list[Running | None] = [None for _ in slots]
        self._epochs = [0 for _ in slots]
        self._up = [True for _ in self._names]
        self._waiting: list[list[Inside]] = [[] for _ in self._names]
        self._streaks = [[Streak() for _ in CLASSES] for _ in self._names]
        # Parts per million of an attempt times nanoseconds per second: exact in whole numbers.
        self._budget = self._reserve = pipeline.retry.reserve * c.PPM * NS_PER_S
        self._ended: set[int] = set()
        self._draining = False
        self._sequence = 0
        self._now_ns = 0
        self._told = Told(events.DRAIN, ())

    def event(
        self, kind: int, now_ns: int, arguments: Sequence[int] = (), results: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Take one event.

        Args:
            kind: As in `events`.
            now_ns: Time since the run began.
            arguments: As in a row of the event log.
            results: Of a BATCH_DONE: rows and bucket at the next stage, for each member.
        """
        assert now_ns >= self._now_ns, "(5) the clock never goes back"
        self._earn((now_ns - self._now_ns) * round(self._pipeline.retry.per_s * c.PPM))
        self._now_ns = now_ns
        self._told = Told(kind, tuple(arguments))
        if kind == events.BATCH_DONE and self._applies():
            batch = self._running[arguments[0]]
            assert batch is not None
            self._told.results = dict(zip(batch.tags, results, strict=True))

    def effects(self, rows: Sequence[Sequence[int]], members: Sequence[Sequence[int]]) -> None:
        """Take what the event said.

        Args:
            rows: Effects in order; none for an event that was refused.
            members: Tags of the members, for each DISPATCH in order.
        """
        if not self._applies():
            assert not rows, "(20) what does not apply says nothing"
            return
        told = self._told
        self._begin(rows)
        batches = iter(members)
        for number, row in enumerate(rows):
            if row[0] == c.PLACED:
                self._placed(*row[1:6])
            elif row[0] == c.OUTCOME:
                following = rows[number + 1] if number + 1 < len(rows) else ()
                self._outcome(row[1], Outcome(row[2]), Reason(row[3]), row[4], following)
            else:
                assert row[0] == c.DISPATCH, f"an effect of kind {row[0]}"
                self._dispatch(row[1:6], tuple(next(batches)))
        assert not told.leaving, "(27) nobody is forgotten in a batch that has ended"
        assert len(self.inside) <= self._pipeline.max_requests, "(11) requests inside within max_requests"
        if told.kind == events.ENGINE_DOWN:
            assert not self._waiting[told.arguments[0]], "(27) nobody waits for a lost engine"
        if told.kind == events.TIMER:
            told.touched.update(range(len(self._names)))
            for request in self.inside.values():
                assert self._now_ns < self._ends_ns(request), "(25) nobody stays past a deadline or a stage timeout"
        for engine in told.touched:
            self._check_conserving(engine)

    # The event by itself

    def _applies(self) -> bool:
        kind, arguments = self._told.kind, self._told.arguments
        if kind in {events.BATCH_DONE, events.BATCH_FAILED}:
            batch = self._running[arguments[0]] if 0 <= arguments[0] < len(self._running) else None
            return batch is not None and batch.epoch == arguments[1]
        if kind == events.CANCEL:
            request = self.inside.get(arguments[1])
            return request is not None and request.row == arguments[0]
        if kind in {events.ENGINE_DOWN, events.ENGINE_UP}:
            known = 0 <= arguments[0] < len(self._up)
            return known and self._up[arguments[0]] == (kind == events.ENGINE_DOWN)
        return True

    def _begin(self, rows: Sequence[Sequence[int]]) -> None:
        kind, arguments = self._told.kind, self._told.arguments
        if kind == events.ARRIVAL:
            self._arrive(
                *arguments[:5], attempt=arguments[8], refused=rows[0][0] == c.OUTCOME and rows[0][3] in AT_THE_DOOR
            )
        elif kind in {events.BATCH_DONE, events.BATCH_FAILED}:
            self._end_batch(arguments[0])
        elif kind == events.ENGINE_DOWN:
            self._up[arguments[0]] = False
            for slot, batch in enumerate(self._running):
                if batch is not None and batch.engine == arguments[0]:
                    self._end_batch(slot)
        elif kind == events.ENGINE_UP:
            self._up[arguments[0]] = True
            self._told.touched.add(arguments[0])
        elif kind == events.DRAIN:
            self._draining = True

    def _arrive(
        self, tag: int, priority: int, deadline_ns: int, items: int, bucket: int, *, attempt: int, refused: bool
    ) -> None:
        assert tag not in self.inside, "(2) a tag is one request's"
        assert tag not in self._ended, "(2) a tag is one request's"
        now_ns = self._now_ns
        self.inside[tag] = Inside(tag, priority, deadline_ns, items, bucket, arrived_ns=now_ns, clock_ns=now_ns)
        if attempt > 1 and not refused:
            self._spend()
        elif not refused:
            self._earn(round(self._pipeline.retry.budget * c.PPM) * NS_PER_S)

    def _end_batch(self, slot: int) -> None:
        batch = self._running[slot]
        assert batch is not None
        self._running[slot] = None
        self._told.leaving += batch.members
        self._told.touched.add(batch.engine)

    def _take_out(self, tag: int) -> tuple[Inside, Origin]:
        """Where a request that something is said about was until now; it is there no longer."""
        assert tag in self.inside, f"(2) request {tag} has one outcome, and nothing after it"
        request = self.inside[tag]
        if request in self._told.leaving:
            self._told.leaving.remove(request)
            return request, "left"
        if request.engine < 0:
            return request, "door"
        if request in self._waiting[request.engine]:
            self._waiting[request.engine].remove(request)
            return request, "waiting"
        batch = next(batch for batch in self._running if batch is not None and request in batch.members)
        batch.members.remove(request)
        return request, "running"

    # Effects

    def _placed(self, tag: int, stage: int, engine: int, reason: int, row: int) -> None:
        request, origin = self._take_out(tag)
        previous = request.engine
        if origin == "left" and self._told.kind == events.BATCH_DONE:
            assert stage == request.stage + 1, "(5) stages follow one another"
            request.stage, request.clock_ns = stage, self._now_ns
            request.items, request.bucket = self._told.results[tag]
        assert stage == request.stage, "(5) stages follow one another"
        is_repeated = self._is_repeated(request, origin)
        if is_repeated:
            request.attempts += 1
            request.clock_ns = self._now_ns
            assert request.attempts <= self._pipeline.retry.attempts, "(16) attempts within their cap"
            assert self._now_ns < request.deadline_ns, "(16) no attempt starts past a deadline"
            self._spend()
        self._check_reason(request, previous, engine, Reason(reason), is_repeated=is_repeated)
        assert self._up[engine], "(27) nobody is sent to a lost engine"
        waiting = self._waiting[engine]
        limit = self._settings[engine].queue.limit
        has_room = len(waiting) < limit or (not waiting and self._has_free_slot(engine))
        assert has_room, "(11) queue length within its limit at every instant"
        self._sequence += 1
        request.row, request.engine = row, engine
        request.enqueued_ns, request.sequence = self._now_ns, self._sequence
        waiting.append(request)
        self._told.touched.add(engine)

    def _is_repeated(self, request: Inside, origin: Origin) -> bool:
        """Whether this placement is a further attempt, and not the first or a move of what only waited."""
        if origin == "waiting":
            return self._told.kind == events.TIMER and self._now_ns >= self._ends_ns(request)
        return origin == "running" or (origin == "left" and self._told.kind != events.BATCH_DONE)

    def _check_reason(self, request: Inside, previous: int, engine: int, reason: Reason, *, is_repeated: bool) -> None:
        stage = self._pipeline.stages[request.stage]
        assert self._names[engine] in stage.engine_names, "an engine of the stage"
        if reason is Reason.RETRY:
            assert is_repeated, "(14) only a failure is retried"
            assert engine == previous, "a retry stays where it was"
        elif reason is Reason.FAILOVER and is_repeated:
            assert engine != previous, "a failover goes elsewhere"
        elif reason is Reason.FAILOVER:
            failover = stage.failover
            assert failover is not None, "(13) overflow goes to the backup only"
            assert failover.to == self._names[engine], "(13) overflow goes to the backup only"
            allowed = failover.classes is None or CLASSES[request.priority] in failover.classes
            assert allowed, "(13) only classes that may fail over do"
        else:
            assert reason is Reason.PREFERRED, f"placed for the reason {reason.name}"
            assert not is_repeated, "a further attempt says so"

    def _outcome(self, tag: int, outcome: Outcome, reason: Reason, hint_ns: int, following: Sequence[int]) -> None:
        if reason is Reason.DISPLACED:
            self._check_victim(self.inside[tag], following)
        request, origin = self._take_out(tag)
        del self.inside[tag]
        self._ended.add(tag)
        if self._told.kind == events.CANCEL and origin == "waiting":
            self._told.touched.add(request.engine)
        assert 0 <= hint_ns < c.FOREVER, "(14) a hint is finite and not negative"
        if outcome in {Outcome.REJECTED, Outcome.SHED}:
            assert hint_ns >= HINT_NS_MIN, "(14) a refusal says when to come back"
        self._check_outcome(request, origin, outcome, reason)

    def _check_outcome(self, request: Inside, origin: Origin, outcome: Outcome, reason: Reason) -> None:
        kind = self._told.kind
        if outcome is Outcome.COMPLETED:
            at_the_end = request.stage + 1 == len(self._pipeline.stages)
            assert origin == "left", "(5) only what ran completes"
            assert kind == events.BATCH_DONE, "(5) only what ran completes"
            assert at_the_end, "(5) completed after the last stage"
        if outcome is Outcome.CANCELLED:
            assert kind == events.CANCEL, "(23) only a cancel cancels"
            assert self._told.arguments[1] == request.tag, "(23) a cancel ends one request"
        facts: dict[Reason, bool] = {
            Reason.DEADLINE: self._now_ns >= request.deadline_ns,
            Reason.STAGE_TIMEOUT: self._now_ns >= self._ends_ns(request),
            Reason.HOPELESS: request.deadline_ns < c.FOREVER,
            Reason.TABLE_FULL: len(self.inside) == self._pipeline.max_requests,
            Reason.DRAINING: self._draining,
            Reason.ENGINE_FAILED: kind in {events.BATCH_FAILED, events.ENGINE_DOWN} and origin == "left",
            Reason.STAGE_FAILED: kind == events.BATCH_DONE and origin == "left",
            Reason.QUEUE_FULL: any(self._is_full_for(engine, request) for engine in self._engines_of(request.stage)),
        }
        if outcome is Outcome.REJECTED:
            assert origin == "door", "only who stands at the door is rejected"
        assert facts.get(reason, True), f"{outcome.name} {reason.name} at {self._now_ns} is not so"

    def _check_victim(self, victim: Inside, following: Sequence[int]) -> None:
        present = self._waiting[victim.engine]
        lowest = max(present, key=lambda request: (request.priority, request.sequence))
        assert victim is lowest, "(8) the newest of the lowest class present is displaced"
        assert len(present) >= self._settings[victim.engine].queue.limit, "(8) only a full queue displaces"
        assert following, "(8) a victim makes room for somebody"
        assert following[0] == c.PLACED, "(8) a victim makes room for somebody"
        assert following[3] == victim.engine, "(8) a victim makes room for somebody"
        assert self.inside[following[1]].priority < victim.priority, "(8) only for a higher class"

    def _dispatch(self, row: Sequence[int], tags: tuple[int, ...]) -> None:
        slot, engine, stage, bucket, epoch = row
        assert self._engine_of_slot[slot] == engine, "(12) a slot is one engine's"
        assert self._running[slot] is None, "(12) in flight within the quota"
        assert epoch > self._epochs[slot], "(20) every batch has an epoch of its own"
        assert self._up[engine], "(27) a lost engine starts nothing"
        assert tags, "(25) no batch is empty"
        assert all(tag in self.inside for tag in tags), "(2) who has ended is not dispatched"
        members = [self.inside[tag] for tag in tags]
        for member in members:
            assert member in self._waiting[engine], "(5) only what waits there is dispatched"
            assert member.lane == (stage, bucket), "(25) one stage and one bucket per batch"
            assert member.deadline_ns > self._now_ns, "(25) nobody past a deadline is dispatched"
        batch = self._batch_of(engine, stage)
        rows = sum(member.items for member in members)
        assert rows <= batch.size or len(members) == 1, "(25) rows within the batch size"
        self._check_order(engine, members)
        self._check_turn(engine, members)
        self._waiting[engine] = [request for request in self._waiting[engine] if request not in members]
        self._epochs[slot] = epoch
        self._running[slot] = Running(engine, epoch, tags, members)

    def _check_order(self, engine: int, members: list[Inside]) -> None:
        lane = members[0].lane
        for priority in range(len(CLASSES)):
            fifo = [one for one in self._waiting[engine] if one.lane == lane and one.priority == priority]
            taken = [member for member in members if member.priority == priority]
            assert taken == fifo[: len(taken)], "(7) first in, first out inside a class and a lane"
            lower = any(member.priority > priority for member in members[1:])
            assert not lower or len(taken) == len(fifo), "(6) nobody of a lower class overtakes in a batch"

    def _check_turn(self, engine: int, members: list[Inside]) -> None:
        first = members[0]
        ready = [one for one in self._heads(engine) if self._is_surely_ready(engine, one.lane)]
        higher = any(one.priority < first.priority for one in ready)
        assert not higher or self._floors[first.priority] > 0, "(6) no priority inversion but for a floor"
        for one in ready:
            if one.priority == first.priority:
                earlier = (one.arrived_ns, one.sequence) < (first.arrived_ns, first.sequence)
                assert not earlier, "(7) inside a class, what arrived first starts first"
        for priority, floor in enumerate(self._floors):
            if floor == 0:
                continue
            streak = self._streaks[engine][priority]
            if not any(one.priority == priority for one in ready):
                self._streaks[engine][priority] = Streak()
                continue
            streak.dispatches += 1
            streak.own += any(member.priority == priority for member in members)
            assert streak.own >= floor * streak.dispatches - 1, "(9) a class that waits gets its floor"

    # Books

    def _earn(self, amount: int) -> None:
        self._budget = min(self._budget + amount, self._reserve)

    def _spend(self) -> None:
        self._budget -= c.PPM * NS_PER_S
        assert self._budget >= 0, "(15) further attempts within the retry budget, in any window"

    def _ends_ns(self, request: Inside) -> int:
        timeout_ms = self._pipeline.stages[request.stage].timeout_ms
        timeout_ns = c.FOREVER if timeout_ms is None else round(timeout_ms * NS_PER_MS)
        return min(request.deadline_ns, request.clock_ns + timeout_ns)

    def _batch_of(self, engine: int, stage: int) -> Batch:
        return self._pipeline.stages[stage].batch.get(self._names[engine], Batch())

    def _engines_of(self, stage: int) -> Iterator[int]:
        return (self._names.index(name) for name in self._pipeline.stages[stage].engine_names)

    def _is_full_for(self, engine: int, request: Inside) -> bool:
        waiting = self._waiting[engine]
        is_full = len(waiting) >= self._settings[engine].queue.limit
        return is_full and not any(other.priority > request.priority for other in waiting)

    def _has_free_slot(self, engine: int) -> bool:
        return any(batch is None and self._engine_of_slot[slot] == engine for slot, batch in enumerate(self._running))

    def _heads(self, engine: int) -> list[Inside]:
        """The first of every class and lane."""
        heads: dict[tuple[int, Lane], Inside] = {}
        for request in self._waiting[engine]:
            heads.setdefault((request.priority, request.lane), request)
        return list(heads.values())

    def _is_surely_ready(self, engine: int, lane: Lane) -> bool:
        """Whether a lane is full or its window over. A deadline may make it ready sooner; that takes estimates."""
        waiting = [request for request in self._waiting[engine] if request.lane == lane]
        batch = self._batch_of(engine, lane[0])
        window_ns = round(batch.window_ms * NS_PER_MS)
        is_full = sum(request.items for request in waiting) >= batch.size
        return is_full or window_ns == 0 or self._now_ns >= waiting[0].enqueued_ns + window_ns

    def _check_conserving(self, engine: int) -> None:
        if not self._up[engine] or not self._has_free_slot(engine):
            return
        for lane in {request.lane for request in self._waiting[engine]}:
            assert not self._is_surely_ready(engine, lane), "(26) no free slot beside work that could start"


def follow(log: Int64s, pipeline: Pipeline, tables: Tables, state: State, *, look_every: int = 1) -> str:
    """Decide an event log again, one event at a time, and hold each to `Watch` and `invariants`.

    Args:
        log: [n, EVENT_COLUMNS], well formed: `events.decide` takes it.
        pipeline: As it was run.
        tables: Of this pipeline.
        state: Fresh; changed.
        look_every: Events from one look at the whole state to the next; each costs milliseconds, unlike the watch.

    Returns:
        The first promise that is broken and the row of its event; empty when all are kept.
    """
    watch = Watch(pipeline)
    results = np.zeros((state.members.shape[1], 2), np.int64)
    effects = np.zeros_like(state.effects)
    starts = np.flatnonzero(log[:, 0] != events.RESULT).tolist()
    for number, (begin, end) in enumerate(zip(starts, [*starts[1:], len(log)], strict=True)):
        kind, now_ns, *arguments = log[begin].tolist()
        try:
            watch.event(kind, now_ns, arguments, [(row[2], row[3]) for row in log[begin + 1 : end].tolist()])
            before = invariants.copy(state) if number % look_every == 0 else None
            said = effects[: events.decide(log[begin:end], tables, state, results, effects)].tolist()
            slots = [row[c.F_TAG] for row in said if row[c.F_KIND] == c.DISPATCH]
            members = [state.members[slot, : state.batches[slot, c.B_COUNT], c.M_TAG].tolist() for slot in slots]
            watch.effects(said, members)
            if before is not None:
                invariants.check(tables, state)
                invariants.check_step(tables, before, state)
        except AssertionError as error:
            return f"event row {begin}: {error}"
    return ""
