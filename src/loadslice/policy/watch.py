"""Holds a stream of events and effects, live or simulated, to the promises that show in it.

`invariants.check` looks at the state between two events; `Watch` looks at what was said, and keeps its own books about
it: who waits where and in which order, what runs, what was spent. It shares nothing with the kernels and needs no
state; what does not show in what was said it holds between the bounds of `watch_bounds`. Numbers in brackets are those
of the list in `invariants`.

    watch = Watch(pipeline, tables)
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
from loadslice.policy.layout import Int64s, State, Tables
from loadslice.policy.watch_bounds import Despair, Diffused, Leads
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import CLASSES, Batch, Pipeline

NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000

HINT_NS_MIN = 50 * NS_PER_MS

AT_THE_DOOR = {Reason.DRAINING, Reason.TABLE_FULL, Reason.RETRY_BUDGET}
"""Refused before it had a place inside; it pays nothing into the retry budget."""

Origin = Literal["door", "waiting", "running", "left"]
Lane = tuple[int, int]
"""(stage, bucket; those of the new version follow those of the old)"""

AFTER_OVERFLOW = {Reason.HOPELESS, Reason.DEADLINE, Reason.DEGRADED}
"""Said of a request that is to be placed, once it is decided whether it is sent to the backup."""

AS_PREFERRED = {Reason.PREFERRED, Reason.RULE, Reason.FASTEST, Reason.CHEAPEST}


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
    tenant: int = 0
    precision: int = 0
    version: int = 0
    lane: Lane = (0, 0)
    row: int = -1
    stage: int = 0
    engine: int = -1
    enqueued_ns: int = 0
    sequence: int = 0
    attempts: int = 1


@dataclass(eq=False, slots=True)
class Running:
    """One batch on its slot."""

    engine: int
    epoch: int
    tags: tuple[int, ...]
    members: list[Inside]
    """Those that have not left it."""
    lane: Lane
    rows: int
    started_ns: int


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
    dropped: set[tuple[int, int]] = field(default_factory=set)
    """(engine, class) of who waited and was dropped; it may have been when a batch was filled."""
    displaced: int = -1
    """The engine where somebody has just made room."""


def hash_ppm(key: int) -> int:
    """A key's place between 0 and a million: a 32-bit finaliser, as the page on versions has it."""
    mixed = key % 2**32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x045D9F3B)):
        mixed = (mixed ^ (mixed >> shift)) * factor % 2**32
    return ((mixed ^ (mixed >> 16)) * c.PPM) >> 32


class Split:
    """Who gets the new version, (28)."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._shares = [0.0, *pipeline.rollout.steps]
        has_canary = any(stage.canary is not None for stage in pipeline.stages)
        self.step = pipeline.rollout.at if has_canary else 0
        self._seen = 0
        self._sent = 0

    def version_for(self, key: int) -> int:
        """Of n requests without a key, the whole part of share * n; with one, its hash decides."""
        share_ppm = round(self._shares[self.step] * c.PPM)
        if key >= 0:
            return int(share_ppm > 0 and hash_ppm(key) < share_ppm)
        self._seen += 1
        sent, self._sent = self._sent, self._seen * share_ppm // c.PPM
        return self._sent - sent

    def move(self, verdict: int) -> None:
        """One step up at a pass, to nothing at a failure, and nowhere at anything else."""
        if verdict == c.PASS and self.step + 1 < len(self._shares):
            self.step += 1
            self._seen = self._sent = 0
        elif verdict == c.FAIL:
            self.step = self._seen = self._sent = 0


class Watch:
    """Call `event`, then `effects` with what it said, for every event in order.

    Either raises an AssertionError that names the promise which was broken.
    """

    def __init__(self, pipeline: Pipeline, tables: Tables) -> None:
        """Start with nothing inside.

        Args:
            pipeline: As it is run.
            tables: Of this pipeline; read for what is expected of batches, and nothing else.
        """
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
        self._leads = [Leads([round(floor * c.PPM) for floor in self._floors]) for _ in self._names]
        self._diffused = [
            None if stage.failover is None else Diffused(round(stage.failover.share * c.PPM))
            for stage in pipeline.stages
        ]
        self._despair = Despair(pipeline, tables)
        # Parts per million of an attempt times nanoseconds per second: exact in whole numbers.
        self._budget = self._reserve = pipeline.retry.reserve * c.PPM * NS_PER_S
        self._ended: set[int] = set()
        self._offline = {CLASSES.index(name) for name, limits in pipeline.classes.items() if limits.offline}
        self._split = Split(pipeline)
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
            assert len(results) == len(batch.tags), "(5) a batch done has a result for each member"
            self._told.results = dict(zip(batch.tags, results, strict=True))
            self._despair.took(batch.lane[0], batch.engine, batch.lane[1], batch.rows, now_ns - batch.started_ns)

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
                self._outcome(row[1], Outcome(row[2]), Reason(row[3]), row[4:6], following)
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
        if told.kind == events.ROLLOUT and told.arguments[0] == c.FAIL:
            waiting = [request for queue in self._waiting for request in queue if request.stage == 0]
            assert not any(request.version for request in waiting), (
                "(28) who waits for a failed version gets the old one"
            )
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
        return kind != events.ROLLOUT or self._split.step > 0

    def _begin(self, rows: Sequence[Sequence[int]]) -> None:
        kind, arguments = self._told.kind, self._told.arguments
        if kind == events.ARRIVAL:
            refused = rows[0][0] == c.OUTCOME and rows[0][3] in AT_THE_DOOR
            self._arrive(arguments, refused=refused)
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
        elif kind == events.ROLLOUT:
            self._split.move(arguments[0])

    def _arrive(self, arguments: Sequence[int], *, refused: bool) -> None:
        tag, priority, deadline_ns, items, bucket, _, _, precision, attempt, tenant, key = arguments
        assert tag not in self.inside, "(2) a tag is one request's"
        assert tag not in self._ended, "(2) a tag is one request's"
        request = Inside(tag, priority, deadline_ns, items, bucket, self._now_ns, self._now_ns, tenant, precision)
        self.inside[tag] = request
        self._despair.asked(items)
        if refused:
            return
        request.version = self._split.version_for(key)
        self._set_lane(request)
        if attempt > 1:
            self._spend()
        else:
            self._earn(round(self._pipeline.retry.budget * c.PPM) * NS_PER_S)

    def _set_lane(self, request: Inside) -> None:
        stage = self._pipeline.stages[request.stage]
        new = request.version == 1 and stage.canary is not None
        request.lane = (request.stage, request.bucket + (len(stage.buckets) + 1 if new else 0))

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
            self._told.touched.add(request.engine)
            return request, "waiting"
        batch = next(batch for batch in self._running if batch is not None and request in batch.members)
        batch.members.remove(request)
        return request, "running"

    # Effects

    def _placed(self, tag: int, stage: int, engine: int, reason: int, row: int) -> None:
        request, origin = self._take_out(tag)
        previous = request.engine
        assert origin != "left" or self._told.kind != events.BATCH_DONE or stage > request.stage, (
            "(5) a batch done is over"
        )
        self._move_on(request, origin, stage)
        is_repeated = self._is_repeated(request, origin)
        if is_repeated:
            request.attempts += 1
            request.clock_ns = self._now_ns
            assert request.attempts <= self._pipeline.retry.attempts, "(16) attempts within their cap"
            assert self._now_ns < request.deadline_ns, "(16) no attempt starts past a deadline"
            self._spend()
        self._check_reason(request, previous, engine, Reason(reason), is_repeated=is_repeated)
        if not is_repeated:
            self._count_overflow(request, engine, is_sent=reason == Reason.FAILOVER)
        assert self._up[engine], "(27) nobody is sent to a lost engine"
        waiting = self._waiting[engine]
        limit = self._settings[engine].queue.limit
        has_room = len(waiting) < limit or (not waiting and self._has_free_slot(engine))
        assert has_room, "(11) queue length within its limit at every instant"
        if self._told.kind == events.ROLLOUT:
            request.version = 0
            self._set_lane(request)
        self._sequence += 1
        request.row, request.engine = row, engine
        request.enqueued_ns, request.sequence = self._now_ns, self._sequence
        waiting.append(request)
        self._told.touched.add(engine)

    def _move_on(self, request: Inside, origin: Origin, stage: int) -> None:
        """Whoever left a batch that is done may stand at the next stage by now; nobody else does."""
        if origin == "left" and self._told.kind == events.BATCH_DONE and stage == request.stage + 1:
            request.stage, request.clock_ns = stage, self._now_ns
            request.items, request.bucket = self._told.results[request.tag]
            self._despair.asked(request.items)
            self._set_lane(request)
        assert stage == request.stage, "(5) stages follow one another"

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
            assert reason in AS_PREFERRED, f"placed for the reason {reason.name}"
            assert not is_repeated, "a further attempt says so"

    def _count_overflow(self, request: Inside, engine: int, *, is_sent: bool) -> None:
        """(13): whether a request that is placed was overflow, as far as queue lengths show."""
        stage = self._pipeline.stages[request.stage]
        diffused, failover = self._diffused[request.stage], stage.failover
        displaced, self._told.displaced = self._told.displaced, -1
        if diffused is None or failover is None:
            return
        if is_sent:
            full = [e for e in self._may_prefer(request) if self._names[e] != failover.to and self._is_overflow(e, 0)]
            assert full, "(13) only overflow goes to the backup"
            diffused.at_most += 1
            diffused.sent += 1
        elif (
            self._names[engine] != failover.to
            and (failover.classes is None or CLASSES[request.priority] in failover.classes)
            and self._is_overflow(engine, int(displaced == engine))
            and self._has_spare(self._names.index(failover.to))
        ):
            backup = self._settings[self._names.index(failover.to)]
            queue = self._settings[engine].queue
            is_sure = queue.overflow_at is not None and len(self._waiting[engine]) >= queue.overflow_at
            takes_all = stage.breaker is None and failover.to not in stage.accept and request.precision == 0
            is_sure &= takes_all and backup.queue.wait_limit_ms is None and request.deadline_ns == c.FOREVER
            diffused.at_most += 1
            diffused.at_least += int(is_sure)
        diffused.check()

    def _may_prefer(self, request: Inside) -> list[int]:
        """Engines that may have been preferred for a request; with a static order that nothing hides, the first."""
        stage = self._pipeline.stages[request.stage]
        up = [engine for engine in self._engines_of(request.stage) if self._up[engine]]
        is_plain = stage.breaker is None and not stage.accept and request.precision == 0
        return up[:1] if stage.prefer == "static" and is_plain else up

    def _is_overflow(self, engine: int, more: int) -> bool:
        """Whether a request may have been overflow on an engine where so many more waited than do now."""
        queue = self._settings[engine].queue
        is_long = queue.overflow_at is not None and len(self._waiting[engine]) + more >= queue.overflow_at
        return is_long or queue.wait_limit_ms is not None

    def _has_spare(self, engine: int) -> bool:
        """Whether an engine may have taken overflow of another."""
        waiting, queue = len(self._waiting[engine]), self._settings[engine].queue
        has_room = waiting < queue.limit or (waiting == 0 and self._has_free_slot(engine))
        return self._up[engine] and has_room and (queue.overflow_at is None or waiting < queue.overflow_at)

    def _outcome(
        self, tag: int, outcome: Outcome, reason: Reason, detail: Sequence[int], following: Sequence[int]
    ) -> None:
        hint_ns, stage = detail
        if reason is Reason.DISPLACED:
            self._check_victim(self.inside[tag], following)
        request, origin = self._take_out(tag)
        self._move_on(request, origin, stage)
        del self.inside[tag]
        self._ended.add(tag)
        if origin == "waiting":
            self._told.dropped.add((request.engine, request.priority))
        # A victim may get a degraded reply, and then it is not said that it was one.
        self._told.displaced = request.engine if reason in {Reason.DISPLACED, Reason.DEGRADED} else -1
        diffused = self._diffused[request.stage]
        if diffused is not None and (reason in AFTER_OVERFLOW or reason is Reason.QUEUE_FULL):
            diffused.at_most += 1
            diffused.unseen += int(reason in AFTER_OVERFLOW)
        assert 0 <= hint_ns < c.FOREVER, "(14) a hint is finite and not negative"
        if outcome in {Outcome.REJECTED, Outcome.SHED}:
            assert hint_ns >= HINT_NS_MIN, "(14) a refusal says when to come back"
        self._check_outcome(request, origin, outcome, reason)

    def _check_outcome(self, request: Inside, origin: Origin, outcome: Outcome, reason: Reason) -> None:
        kind = self._told.kind
        if reason is Reason.DEGRADED:
            assert self._pipeline.stages[request.stage].degraded is not None, "only where a stage has such a reply"
        elif outcome is Outcome.COMPLETED:
            at_the_end = request.stage + 1 == len(self._pipeline.stages)
            assert origin == "left", "(5) only what ran completes"
            assert kind == events.BATCH_DONE, "(5) only what ran completes"
            assert at_the_end, "(5) completed after the last stage"
        if outcome is Outcome.CANCELLED:
            assert kind == events.CANCEL, "(23) only a cancel cancels"
            assert self._told.arguments[1] == request.tag, "(23) a cancel ends one request"
        before = max(len(waiting) + self._busy_slots(engine) for engine, waiting in enumerate(self._waiting))
        facts: dict[Reason, bool] = {
            Reason.DEADLINE: self._now_ns >= request.deadline_ns,
            Reason.STAGE_TIMEOUT: self._now_ns >= self._ends_ns(request),
            Reason.HOPELESS: self._now_ns + self._despair.at_most_ns(request.stage, before) > request.deadline_ns,
            Reason.TABLE_FULL: len(self.inside) == self._pipeline.max_requests,
            Reason.DRAINING: self._draining,
            Reason.ENGINE_FAILED: kind in {events.BATCH_FAILED, events.ENGINE_DOWN} and origin == "left",
            Reason.STAGE_FAILED: kind == events.BATCH_DONE and origin == "left",
            Reason.QUEUE_FULL: any(self._is_full_for(engine, request) for engine in self._engines_of(request.stage)),
        }
        if outcome is Outcome.REJECTED:
            assert origin == "door", "only who stands at the door is rejected"
        assert facts.get(reason, True), f"{outcome.name} {reason.name} at {self._now_ns} is not so"

    def _busy_slots(self, engine: int) -> int:
        return sum(batch is not None and batch.engine == engine for batch in self._running)

    def _check_victim(self, victim: Inside, following: Sequence[int]) -> None:
        present = self._waiting[victim.engine]
        assert len(present) >= self._settings[victim.engine].queue.limit, "(8) only a full queue displaces"
        assert following, "(8) a victim makes room for somebody"
        assert following[0] == c.PLACED, "(8) a victim makes room for somebody"
        assert following[3] == victim.engine, "(8) a victim makes room for somebody"
        newcomer = self.inside[following[1]]
        if victim.priority == newcomer.priority and victim.tenant == newcomer.tenant:
            assert victim.stage < following[2], "(8) of its own a request displaces only who has done less"
            behind = [one for one in present if (one.priority, one.tenant) == (victim.priority, victim.tenant)]
            least = max(behind, key=lambda request: (-request.stage, request.sequence))
            assert victim is least, "(8) the newest of those that have done least is displaced"
            assert all(one.priority <= victim.priority for one in present), "(8) a lower class makes room first"
            return
        if victim.priority == newcomer.priority:
            present = [one for one in present if one.tenant == victim.tenant or one.priority > victim.priority]
        else:
            assert newcomer.priority < victim.priority, "(8) only for a higher class"
        lowest = max(present, key=lambda request: (request.priority, request.sequence))
        assert victim is lowest, "(8) the newest of the lowest class present is displaced"

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
        self._running[slot] = Running(engine, epoch, tags, members, (stage, bucket), rows, self._now_ns)

    def _check_order(self, engine: int, members: list[Inside]) -> None:
        lane = members[0].lane
        for priority in range(len(CLASSES)):
            fifo = [one for one in self._waiting[engine] if one.lane == lane and one.priority == priority]
            taken = [member for member in members if member.priority == priority]
            for tenant in {member.tenant for member in taken}:
                theirs = [member for member in taken if member.tenant == tenant]
                assert theirs == [one for one in fifo if one.tenant == tenant][: len(theirs)], (
                    "(7) first in, first out inside a class and a lane"
                )
            lower = any(member.priority > priority for member in members[1:])
            assert not lower or len(taken) == len(fifo), "(6) nobody of a lower class overtakes in a batch"

    def _check_turn(self, engine: int, members: list[Inside]) -> None:
        first = members[0]
        if self._settings[engine].memory_mb is not None:
            return  # which models could be loaded does not show
        ready = [one for one in self._heads(engine) if self._is_surely_ready(engine, one)]
        assert not self._is_held_back(engine, first), "(6) an offline class starts only while no other waits"
        higher = any(one.priority < first.priority for one in ready)
        dropped = {priority for where, priority in self._told.dropped if where == engine}
        classes = dropped | {one.priority for one in self._waiting[engine]}
        self._leads[engine].start(first.priority, classes, inverted=higher)
        if not self._pipeline.tenants and not any(
            self._names[engine] in stage.share for stage in self._pipeline.stages
        ):
            for one in ready:
                earlier = (one.arrived_ns, one.sequence) < (first.arrived_ns, first.sequence)
                assert one.priority != first.priority or not earlier, "(7) what arrived first starts first in its class"
        owed = sum(floor > 0 for floor in self._floors)
        for priority, floor in enumerate(self._floors):
            streak = self._streaks[engine][priority]
            if not any(one.priority == priority for one in ready):
                self._streaks[engine][priority] = Streak()
                continue
            streak.dispatches += 1
            streak.own += any(member.priority == priority for member in members)
            assert streak.own >= floor * streak.dispatches - owed, "(9) a class that waits gets its floor"

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
        mine = (request.priority, request.tenant)
        return is_full and not any(
            other.priority > request.priority
            or ((other.priority, other.tenant) == mine and other.stage < request.stage)
            for other in waiting
        )

    def _has_free_slot(self, engine: int) -> bool:
        return any(batch is None and self._engine_of_slot[slot] == engine for slot, batch in enumerate(self._running))

    def _heads(self, engine: int) -> list[Inside]:
        """The first of every class and lane."""
        heads: dict[tuple[int, Lane], Inside] = {}
        for request in self._waiting[engine]:
            heads.setdefault((request.priority, request.lane), request)
        return list(heads.values())

    def _is_held_back(self, engine: int, request: Inside) -> bool:
        """Whether somebody of an offline class waits for the others to be gone."""
        online = any(other.priority not in self._offline for other in self._waiting[engine] if other is not request)
        return request.priority in self._offline and online

    def _is_surely_ready(self, engine: int, head: Inside) -> bool:
        """Whether a lane is full or its window over. A deadline may make it ready sooner; that takes estimates."""
        if self._is_held_back(engine, head):
            return False
        waiting = [request for request in self._waiting[engine] if request.lane == head.lane]
        batch = self._batch_of(engine, head.stage)
        window_ns = round(batch.window_ms * NS_PER_MS)
        is_full = sum(request.items for request in waiting) >= batch.size
        nobody_may_wait = self._settings[engine].queue.limit == 0
        is_over = self._now_ns >= waiting[0].enqueued_ns + window_ns
        return is_full or window_ns == 0 or nobody_may_wait or is_over

    def _check_conserving(self, engine: int) -> None:
        if not self._up[engine] or not self._has_free_slot(engine) or self._settings[engine].memory_mb is not None:
            return
        for head in self._heads(engine):
            assert not self._is_surely_ready(engine, head), "(26) no free slot beside work that could start"


def follow(log: Int64s, pipeline: Pipeline, tables: Tables, state: State, *, look_every: int = 1) -> str:
    """Decide an event log again, one event at a time, and hold each to `Watch` and `invariants`.

    Args:
        log: [n, EVENT_COLUMNS], of whatever content.
        pipeline: As it was run.
        tables: Of this pipeline.
        state: Fresh; changed.
        look_every: Events from one look at the whole state to the next; each costs milliseconds, unlike the watch.

    Returns:
        The first promise that is broken and the row of its event; empty when all are kept.
    """
    watch = Watch(pipeline, tables)
    results = np.zeros((state.members.shape[1], 2), np.int64)
    effects = np.zeros_like(state.effects)
    starts = np.flatnonzero(log[:, 0] != events.RESULT).tolist()
    # RESULT rows before the first event are its own slice, which `decide` refuses.
    starts = starts if not len(log) or starts[:1] == [0] else [0, *starts]
    for number, (begin, end) in enumerate(zip(starts, [*starts[1:], len(log)], strict=True)):
        kind, now_ns, *arguments = log[begin].tolist()
        before = invariants.copy(state) if number % look_every == 0 else None
        count = events.decide(log[begin:end], tables, state, results, effects)
        if count == events.MALFORMED:
            row = begin + int(results[0, 0])
            return f"event row {row} cannot be one of this run: {log[row].tolist()}"
        said = effects[:count].tolist()
        slots = [row[c.F_TAG] for row in said if row[c.F_KIND] == c.DISPATCH]
        members = [state.members[slot, : state.batches[slot, c.B_COUNT], c.M_TAG].tolist() for slot in slots]
        try:
            watch.event(kind, now_ns, arguments, [(row[2], row[3]) for row in log[begin + 1 : end].tolist()])
            watch.effects(said, members)
            if before is not None:
                invariants.check(tables, state)
                invariants.check_step(tables, before, state)
        except AssertionError as error:
            return f"event row {begin}: {error}"
        except (LookupError, StopIteration, ValueError) as error:
            # What was said does not fit the watch's own books: a name it does not know, a row that is not there.
            return f"event row {begin}: what was said does not fit what came before, {error!r}"
    return ""
