"""A plain twin of the core: objects and lists, written from the page *How it decides* and not from the kernels.

It answers the same calls with the same effects in the same order, and is slow. `naive_test.py` drives both through
random histories; where they differ, one of the two or the page is wrong.

Order inside one event, where the page leaves it open:

- what is swept or moved goes by class, then lane, then place in the queue; members of a batch in their order;
- engines that an event touched start what they may at its end, in the order in which it touched them;
- a free row or slot is the last one freed for rows, the first one for slots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadslice.policy.estimate import ServiceCurve, service_curves
from loadslice.policy.naive_breaker import FOREVER, PPM, NaiveBreaker
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import CLASSES, PRECISIONS, Batch, Engine, Pipeline, Rule, Stage, bounds

DISPATCH, PLACED, OUTCOME = 1, 2, 3
REFUSED = -1
MS = 1_000_000

HINT_FLOOR_NS = 50 * MS
TRIAL_NS = 1000 * MS

Effect = tuple[int, ...]
"""(kind, tag or slot, a, b, c, d) as the core's effects; a DISPATCH is followed by the tags of its members."""


@dataclass(eq=False, slots=True)
class Request:
    """One request inside."""

    tag: int
    row: int
    priority: int
    deadline_ns: int
    items: int
    bucket: int
    tokens: int
    source: int
    precision: int
    arrived_ns: int
    stage: int = 0
    engine: int = -1
    expiry_ns: int = FOREVER
    enqueued_ns: int = 0
    estimate_ns: int = 0
    sequence: int = 0
    attempts: int = 1
    call: tuple[int, bool] = (-1, False)
    """Epoch of its breaker when it was placed, and whether it holds one of its permits."""


@dataclass(eq=False, slots=True)
class Running:
    """One batch on its slot; a member that has left is None."""

    stage: int
    bucket: int
    members: list[Request | None]
    rows: int
    started_ns: int
    expected_ns: int


@dataclass(eq=False, slots=True)
class EngineNow:
    """What changes about one engine."""

    name: str
    settings: Engine
    slots: list[int]
    up: bool = True
    queue: list[Request] = field(default_factory=list)
    """In order of enqueueing."""
    scale_ppm: int = PPM
    done_ns: int = -(10**12)
    trial: bool = False
    credit: list[int] = field(default_factory=lambda: [0] * len(CLASSES))


class Naive:
    """The whole core for one run."""

    def __init__(self, pipeline: Pipeline, latency: LatencyTable | None = None, sources: Sequence[str] = ()) -> None:
        self.pipeline = pipeline
        self.sources = sources
        self.stages: list[Stage] = list(pipeline.stages)
        names = list(pipeline.engines)
        self.engines: list[EngineNow] = []
        slots = 0
        for name, settings in pipeline.engines.items():
            self.engines.append(EngineNow(name, settings, list(range(slots, slots + settings.max_inflight))))
            slots += settings.max_inflight
        self.running: list[Running | None] = [None] * slots
        self.epochs = [0] * slots
        self.order = [[names.index(name) for name in stage.engine_names] for stage in self.stages]
        self.backup_of = [names.index(stage.failover.to) if stage.failover else -1 for stage in self.stages]
        self.curves = service_curves(pipeline, latency) if latency is not None else {}
        self.breakers = [[NaiveBreaker(stage.breaker) for _ in names] for stage in self.stages]
        self.learned_ns: dict[tuple[int, int], int] = {}
        self.overflows = [0] * len(self.stages)
        self.sent = [0] * len(self.stages)
        self.credit_ppm = [0] * len(self.stages)
        self.budget_ppm = pipeline.retry.reserve * PPM
        self.budget_ns = 0
        self.free_rows = list(range(pipeline.max_requests))[::-1]
        self.inside: dict[int, Request] = {}
        """By row."""
        self.draining = False
        self.sequence = 0
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.effects: list[Effect] = []
        self.touched: list[int] = []

    # Facts

    def arrival(
        self,
        now_ns: int,
        tag: int,
        priority: int,
        deadline_ns: int,
        items: int,
        bucket: int,
        tokens: int,
        source: int,
        precision: int,
        attempt: int = 1,
    ) -> int:
        """As `desk.on_arrival`."""
        self.effects = []
        refusal = Reason.NONE
        if self.draining:
            refusal = Reason.DRAINING
        elif not self.free_rows:
            refusal = Reason.TABLE_FULL
        elif attempt > 1 and not self._withdraw(now_ns):
            refusal = Reason.RETRY_BUDGET
        if refusal is not Reason.NONE:
            self.outcomes[Outcome.REJECTED] += 1
            self.effects.append((OUTCOME, tag, Outcome.REJECTED, refusal, HINT_FLOOR_NS, 0))
            return REFUSED
        row = self.free_rows.pop()
        request = Request(tag, row, priority, deadline_ns, items, bucket, tokens, source, precision, arrived_ns=now_ns)
        self.inside[row] = request
        if attempt <= 1:
            retry = self.pipeline.retry
            self.budget_ppm = min(self.budget_ppm + round(retry.budget * PPM), retry.reserve * PPM)
        self._start_clock(now_ns, request)
        self._place(now_ns, request, admitted=False)
        self._close(now_ns)
        return row if self.inside.get(row) is request else REFUSED

    def batch_done(self, now_ns: int, slot: int, epoch: int, results: Sequence[tuple[int, int]]) -> int:
        """As `desk.on_batch_done`; ``results`` holds (rows, bucket) per member."""
        batch = self._release(now_ns, slot, epoch)
        if batch is None:
            return REFUSED
        self._learn(now_ns, slot, batch)
        self._record_batch(now_ns, slot, batch, failed=False)
        for request, (items, bucket) in zip(list(batch.members), results, strict=False):
            if request is None:
                continue
            if items < 0:
                self._finish(request, Outcome.FAILED, Reason.STAGE_FAILED)
            elif request.stage + 1 == len(self.stages):
                self._finish(request, Outcome.COMPLETED, Reason.NONE)
            else:
                request.stage += 1
                request.items, request.bucket = items, bucket
                self._start_clock(now_ns, request)
                self._place(now_ns, request, admitted=True)
        self._close(now_ns)
        return 0

    def batch_failed(self, now_ns: int, slot: int, epoch: int) -> int:
        """As `desk.on_batch_failed`."""
        batch = self._release(now_ns, slot, epoch)
        if batch is None:
            return REFUSED
        self._record_batch(now_ns, slot, batch, failed=True)
        self._fail_members(now_ns, batch)
        self._close(now_ns)
        return 0

    def cancel(self, now_ns: int, row: int, tag: int) -> int:
        """As `desk.on_cancel`."""
        request = self.inside.get(row)
        if request is None or request.tag != tag:
            return REFUSED
        self.effects = []
        if self._leave_queue(request):
            self._touch(request.engine)
        self._finish(request, Outcome.CANCELLED, Reason.CLIENT_GONE)
        self._close(now_ns)
        return 0

    def timer(self, now_ns: int) -> int:
        """As `desk.on_timer`."""
        self.effects = []
        for e in range(len(self.engines)):
            if min(self.dues_ns(e), default=FOREVER) > now_ns:
                continue
            self._expire_waiting(now_ns, e)
            self._expire_running(now_ns, e)
            for s in range(len(self.stages)):
                breaker = self.breakers[s][e]
                if breaker.on_time(now_ns):
                    self._touch(e)
                if breaker.state == "open":
                    self._move_all(now_ns, s, e)
            self._touch(e)
        self._close(now_ns)
        return 0

    def engine_down(self, now_ns: int, e: int) -> int:
        """As `desk.on_engine_down`."""
        if not 0 <= e < len(self.engines) or not self.engines[e].up:
            return REFUSED
        self.effects = []
        self.engines[e].up = False
        for slot in self.engines[e].slots:
            batch = self.running[slot]
            if batch is not None:
                self._free(now_ns, e, slot)
                self.epochs[slot] += 1
                self._fail_members(now_ns, batch)
        for s in range(len(self.stages)):
            self._move_all(now_ns, s, e)
        self._close(now_ns)
        return 0

    def engine_up(self, now_ns: int, e: int) -> int:
        """As `desk.on_engine_up`."""
        if not 0 <= e < len(self.engines) or self.engines[e].up:
            return REFUSED
        self.effects = []
        self.engines[e].up = True
        self._touch(e)
        self._close(now_ns)
        return 0

    def drain(self, now_ns: int) -> int:
        """As `desk.on_drain`."""
        self.effects = []
        self.draining = True
        self._close(now_ns)
        return 0

    def next_timer_ns(self) -> int:
        """When time alone changes something next."""
        return min((due for e in range(len(self.engines)) for due in self.dues_ns(e)), default=FOREVER)

    def dues_ns(self, e: int) -> Iterator[int]:
        """Every time at which something is due on an engine."""
        for request in self.engines[e].queue:
            yield request.expiry_ns
        for batch in self._batches(e):
            for member in batch.members:
                if member is not None:
                    yield member.expiry_ns
        for s in range(len(self.stages)):
            yield self.breakers[s][e].until_ns
        if self._has_free_slot(e) and self.engines[e].up:
            for lane in {(request.stage, request.bucket) for request in self.engines[e].queue}:
                yield self._ready_ns(e, lane)

    # 1 and 2: who may serve, and who is preferred

    def _accepts(self, request: Request, e: int) -> bool:
        stage, engine = self.stages[request.stage], self.engines[e]
        if engine.name not in stage.engine_names:
            return False
        accept = stage.accept.get(engine.name)
        precision = (accept.precision if accept else None) or engine.settings.precision
        if request.precision > PRECISIONS.index(precision):
            return False
        if accept is not None and accept.max_items is not None and request.items > accept.max_items:
            return False
        return self._takes_bucket(request.stage, e, request.bucket)

    def _takes_bucket(self, s: int, e: int, bucket: int) -> bool:
        stage = self.stages[s]
        if self.engines[e].name not in stage.engine_names:
            return False
        accept = stage.accept.get(self.engines[e].name)
        if accept is None or accept.shape is None:
            return True
        if bucket == len(stage.buckets):
            return False
        return all(side <= most for side, most in zip(stage.buckets[bucket], accept.shape[1:], strict=True))

    def _available(self, request: Request, e: int) -> bool:
        admits = self.breakers[request.stage][e].admits()
        return self.engines[e].up and admits and self._accepts(request, e)

    def _preferred(self, now_ns: int, request: Request) -> int:
        stage = self.stages[request.stage]
        names = list(self.pipeline.engines)
        if stage.prefer == "rules":
            rule = next((rule for rule in stage.rules if self._holds(rule, request)), None)
            if rule is not None and self._available(request, names.index(rule.to)):
                return names.index(rule.to)
        able = [e for e in self.order[request.stage] if self._available(request, e)]
        if stage.prefer == "fastest":
            # min() keeps the first of equals, which is the order of the file.
            return min(able, key=lambda e: self._wait_ns(now_ns, e) + self._own_service_ns(request, e), default=-1)
        return able[0] if able else -1

    def _holds(self, rule: Rule, request: Request) -> bool:
        when = rule.when
        if when.items is not None:
            low, high = bounds(when.items, "items")
            if not low <= request.items <= high:
                return False
        if when.tokens_in is not None:
            low, high = bounds(when.tokens_in, "tokens_in")
            if not low <= request.tokens <= high:
                return False
        if when.class_ is not None and when.class_ != CLASSES[request.priority]:
            return False
        if when.source is not None and (request.source < 0 or self.sources[request.source] != when.source):
            return False
        return when.bucket is None or when.bucket == request.bucket

    # Estimates

    def _expected_ns(self, s: int, e: int, bucket: int, rows: int) -> int:
        """From the latency table alone; 0: it knows nothing."""
        curve = self.curves.get((s, e, bucket), ServiceCurve(0, 0))
        return curve.base_ns + rows * curve.row_ns

    def _service_ns(self, s: int, e: int, bucket: int, rows: int) -> int:
        expected = self._expected_ns(s, e, bucket, rows)
        return expected * self.engines[e].scale_ppm // PPM if expected else self.learned_ns.get((s, e), 0)

    def _own_service_ns(self, request: Request, e: int) -> int:
        return self._service_ns(request.stage, e, request.bucket, request.items)

    def _wait_ns(self, now_ns: int, e: int) -> int:
        engine = self.engines[e]
        if self._has_free_slot(e) and not engine.queue:
            return 0
        left = sum(request.estimate_ns for request in engine.queue)
        left += sum(max(0, batch.started_ns + batch.expected_ns - now_ns) for batch in self._batches(e))
        return left // len(engine.slots)

    def _hint_ns(self, now_ns: int, e: int) -> int:
        return max(HINT_FLOOR_NS, self._wait_ns(now_ns, e))

    def _ahead_ns(self, now_ns: int, s: int) -> int:
        service, longest_wait = 0, 0
        for later in range(s + 1, len(self.stages)):
            up = [e for e in self.order[later] if self.engines[e].up]
            if up:
                service += min(self.learned_ns.get((later, e), 0) for e in up)
                longest_wait = max(longest_wait, min(self._wait_ns(now_ns, e) for e in up))
        return service + longest_wait

    def _learn(self, now_ns: int, slot: int, batch: Running) -> None:
        e = self._engine_of(slot)
        engine = self.engines[e]
        took_ns = now_ns - batch.started_ns
        before = self.learned_ns.get((batch.stage, e), 0)
        after = took_ns if before == 0 or engine.trial else before + (took_ns - before) // 8
        self.learned_ns[batch.stage, e] = after
        expected = self._expected_ns(batch.stage, e, batch.bucket, batch.rows)
        if expected:
            seen = min(max(took_ns * PPM // expected, PPM // 100), 1000 * PPM)
            engine.scale_ppm = seen if engine.trial else engine.scale_ppm + (seen - engine.scale_ppm) // 8
        engine.trial = False

    # 3 to 5: overflow, hopelessness, room

    def _has_room(self, e: int) -> bool:
        waiting = len(self.engines[e].queue)
        return waiting < self.engines[e].settings.queue.limit or (waiting == 0 and self._has_free_slot(e))

    def _is_overflow(self, now_ns: int, e: int) -> bool:
        queue = self.engines[e].settings.queue
        if queue.overflow_at is not None and len(self.engines[e].queue) >= queue.overflow_at:
            return True
        return queue.wait_limit_ms is not None and self._wait_ns(now_ns, e) > round(queue.wait_limit_ms * MS)

    def _has_spare(self, now_ns: int, request: Request, e: int) -> bool:
        return self._available(request, e) and self._has_room(e) and not self._is_overflow(now_ns, e)

    def _may_fail_over(self, request: Request) -> bool:
        failover = self.stages[request.stage].failover
        if failover is None:
            return False
        return failover.classes is None or CLASSES[request.priority] in failover.classes

    def _takes_overflow(self, now_ns: int, request: Request, e: int) -> bool:
        """Whether this piece of overflow of an engine goes to the backup; counts it if it could."""
        s = request.stage
        failover = self.stages[s].failover
        if failover is None or self.backup_of[s] == e or not self._may_fail_over(request):
            return False
        if not self._has_spare(now_ns, request, self.backup_of[s]):
            return False
        self.overflows[s] += 1
        self.credit_ppm[s] += round(failover.share * PPM)
        if self.credit_ppm[s] < PPM:
            return False
        self.credit_ppm[s] -= PPM
        self.sent[s] += 1
        return True

    def _dropped(self, now_ns: int, request: Request, e: int, wait_ns: int, ahead_ns: int) -> bool:
        if request.deadline_ns == FOREVER:
            return False
        if request.deadline_ns <= now_ns:
            self._finish(request, Outcome.EXPIRED, Reason.DEADLINE)
            return True
        needed_ns = self._own_service_ns(request, e)
        if now_ns + wait_ns + needed_ns + ahead_ns <= request.deadline_ns:
            return False
        engine = self.engines[e]
        is_idle = not engine.queue and not any(True for _ in self._batches(e))
        if is_idle and now_ns - engine.done_ns >= min(needed_ns, TRIAL_NS):
            engine.trial = True
            return False
        self._finish(request, Outcome.SHED, Reason.HOPELESS, self._hint_ns(now_ns, e))
        return True

    def _place(self, now_ns: int, request: Request, *, admitted: bool) -> None:
        e = self._preferred(now_ns, request)
        if e < 0:
            able = any(self._accepts(request, e) for e in self.order[request.stage])
            self._finish(request, Outcome.FAILED, Reason.ENGINE_DOWN if able else Reason.INELIGIBLE)
            return
        reason = Reason.PREFERRED
        if self._is_overflow(now_ns, e) and self._takes_overflow(now_ns, request, e):
            e, reason = self.backup_of[request.stage], Reason.FAILOVER
        if self._dropped(now_ns, request, e, self._wait_ns(now_ns, e), self._ahead_ns(now_ns, request.stage)):
            return
        if not self._has_room(e):
            hint_ns = self._hint_ns(now_ns, e)
            lower = [other for other in self.engines[e].queue if other.priority > request.priority]
            if not lower:
                self._finish(request, Outcome.SHED if admitted else Outcome.REJECTED, Reason.QUEUE_FULL, hint_ns)
                return
            victim = max(lower, key=lambda other: (other.priority, other.sequence))
            self._leave_queue(victim)
            self._finish(victim, Outcome.SHED, Reason.DISPLACED, hint_ns)
        self._settle(now_ns, request, e, reason)

    def _settle(self, now_ns: int, request: Request, e: int, reason: Reason) -> None:
        request.estimate_ns = self._own_service_ns(request, e)
        request.call = self.breakers[request.stage][e].enter(now_ns)
        request.engine = e
        request.enqueued_ns = now_ns
        self.sequence += 1
        request.sequence = self.sequence
        self.engines[e].queue.append(request)
        self.effects.append((PLACED, request.tag, request.stage, e, reason, request.row))
        self._touch(e)

    def _start_clock(self, now_ns: int, request: Request) -> None:
        timeout_ns = self._timeout_ns(request.stage)
        request.expiry_ns = min(request.deadline_ns, now_ns + timeout_ns if timeout_ns < FOREVER else FOREVER)

    def _timeout_ns(self, s: int) -> int:
        timeout_ms = self.stages[s].timeout_ms
        return FOREVER if timeout_ms is None else round(timeout_ms * MS)

    # Batches

    def _batch_of(self, s: int, e: int) -> Batch:
        return self.stages[s].batch.get(self.engines[e].name, Batch())

    def _ready_ns(self, e: int, lane: tuple[int, int]) -> int:
        """When a lane that somebody waits in may be dispatched; 0: it is full."""
        waiting = [request for request in self.engines[e].queue if (request.stage, request.bucket) == lane]
        batch = self._batch_of(lane[0], e)
        window_ns = round(batch.window_ms * MS)
        if window_ns == 0 or sum(request.items for request in waiting) >= batch.size:
            return 0
        heads = [request for request in waiting if request is self._head(e, request.priority, lane)]
        return min(min(head.enqueued_ns + window_ns, head.expiry_ns - head.estimate_ns) for head in heads)

    def _head(self, e: int, priority: int, lane: tuple[int, int]) -> Request | None:
        for request in self.engines[e].queue:
            if request.priority == priority and (request.stage, request.bucket) == lane:
                return request
        return None

    def _next_member(self, e: int, lane: tuple[int, int], turn: int | None) -> Request | None:
        """The head of the class whose turn it is, or of the highest class that waits in a lane."""
        classes = [*range(len(CLASSES))] if turn is None else [turn, *range(len(CLASSES))]
        heads = (self._head(e, priority, lane) for priority in classes)
        return next((head for head in heads if head is not None), None)

    def _ready_head(self, now_ns: int, e: int, priority: int) -> Request | None:
        """Of the lanes of a class that are ready, the head that arrived in the system first."""
        lanes = {(request.stage, request.bucket) for request in self.engines[e].queue}
        heads = [self._head(e, priority, lane) for lane in lanes if self._ready_ns(e, lane) <= now_ns]
        waiting = [head for head in heads if head is not None]
        return min(waiting, key=lambda head: (head.arrived_ns, head.sequence), default=None)

    def _turn(self, now_ns: int, e: int) -> Request | None:
        """The head whose turn it is, and the floors' credits after it."""
        heads = [self._ready_head(now_ns, e, priority) for priority in range(len(CLASSES))]
        able = [priority for priority, head in enumerate(heads) if head is not None]
        if not able:
            return None
        credit = self.engines[e].credit
        for priority, name in enumerate(CLASSES):
            limits = self.pipeline.classes.get(name)
            floor_ppm = round(limits.floor * PPM) if limits else 0
            credit[priority] = credit[priority] + floor_ppm if priority in able else 0
        owed = [priority for priority in able if credit[priority] >= PPM]
        chosen = max(owed, key=lambda priority: (credit[priority], -priority)) if owed else able[0]
        credit[chosen] = max(0, credit[chosen] - PPM)
        return heads[chosen]

    def _start_all(self, now_ns: int, e: int) -> None:
        while self.engines[e].up and self._has_free_slot(e):
            first = self._turn(now_ns, e)
            if first is None:
                return
            self._start_batch(now_ns, e, first)

    def _start_batch(self, now_ns: int, e: int, first: Request) -> None:
        """Fill a batch from the lane of ``first``: its class until there is a member, then highest class first."""
        s, bucket = lane = (first.stage, first.bucket)
        size = self._batch_of(s, e).size
        members: list[Request] = []
        while (request := self._next_member(e, lane, first.priority if not members else None)) is not None:
            if members and sum(member.items for member in members) + request.items > size:
                break
            self._leave_queue(request)
            if not self._dropped(now_ns, request, e, 0, 0):
                members.append(request)
        if not members:
            return
        slot = next(slot for slot in self.engines[e].slots if self.running[slot] is None)
        rows = sum(member.items for member in members)
        expected_ns = self._service_ns(s, e, bucket, rows)
        self.running[slot] = Running(s, bucket, list(members), rows, now_ns, expected_ns)
        self.epochs[slot] += 1
        tags = tuple(member.tag for member in members)
        self.effects.append((DISPATCH, slot, e, s, bucket, self.epochs[slot], *tags))

    # Ends

    def _engine_of(self, slot: int) -> int:
        return next(e for e, engine in enumerate(self.engines) if slot in engine.slots)

    def _batches(self, e: int) -> Iterator[Running]:
        for slot in self.engines[e].slots:
            batch = self.running[slot]
            if batch is not None:
                yield batch

    def _has_free_slot(self, e: int) -> bool:
        return any(self.running[slot] is None for slot in self.engines[e].slots)

    def _release(self, now_ns: int, slot: int, epoch: int) -> Running | None:
        """Take a batch that has ended off its slot; None: no such batch runs."""
        if not 0 <= slot < len(self.running) or self.running[slot] is None or self.epochs[slot] != epoch:
            return None
        self.effects = []
        batch = self.running[slot]
        self._free(now_ns, self._engine_of(slot), slot)
        return batch

    def _free(self, now_ns: int, e: int, slot: int) -> None:
        self.running[slot] = None
        self.engines[e].done_ns = now_ns
        self._touch(e)

    def _record_batch(self, now_ns: int, slot: int, batch: Running, *, failed: bool) -> None:
        e = self._engine_of(slot)
        breaker = self.breakers[batch.stage][e]
        slow = breaker.is_slow(now_ns - batch.started_ns)
        for member in batch.members:
            if member is not None:
                self._record(now_ns, member, failed=failed, slow=slow)
        if breaker.state == "open":
            self._move_all(now_ns, batch.stage, e)

    def _record(self, now_ns: int, request: Request, *, failed: bool, slow: bool = False) -> None:
        breaker = self.breakers[request.stage][request.engine]
        is_last = self._is_last_well(request.stage, request.engine)
        if breaker.record(now_ns, request.call, failed=failed, slow=slow, is_last=is_last):
            self._touch(request.engine)
        request.call = (request.call[0], False)

    def _is_last_well(self, s: int, e: int) -> bool:
        """Whether some shape that an engine takes is taken by no other that is up and closed."""
        others = [o for o in self.order[s] if o != e and self.engines[o].up and self.breakers[s][o].state == "closed"]
        mine = [bucket for bucket in range(len(self.stages[s].buckets) + 1) if self._takes_bucket(s, e, bucket)]
        return any(not any(self._takes_bucket(s, other, bucket) for other in others) for bucket in mine)

    def _fail_members(self, now_ns: int, batch: Running) -> None:
        for request in list(batch.members):
            if request is not None and not self._try_again(now_ns, request, same_engine=True):
                self._finish(request, Outcome.FAILED, Reason.ENGINE_FAILED)

    def _expire_waiting(self, now_ns: int, e: int) -> None:
        batches = [self.running[slot] for slot in self.engines[e].slots]
        stands_still = all(b is not None and now_ns - b.started_ns >= self._timeout_ns(b.stage) for b in batches)
        for request in sorted(self.engines[e].queue, key=_sweep_order):
            if request.expiry_ns <= now_ns:
                self._leave_queue(request)
                if stands_still:
                    self._record(now_ns, request, failed=True)
                self._expire(now_ns, request)

    def _expire_running(self, now_ns: int, e: int) -> None:
        for batch in list(self._batches(e)):
            for request in list(batch.members):
                if request is not None and request.expiry_ns <= now_ns:
                    self._record(now_ns, request, failed=True)
                    self._expire(now_ns, request)

    def _expire(self, now_ns: int, request: Request) -> None:
        if request.deadline_ns <= now_ns:
            self._finish(request, Outcome.EXPIRED, Reason.DEADLINE)
        elif not self._try_again(now_ns, request, same_engine=False):
            self._finish(request, Outcome.EXPIRED, Reason.STAGE_TIMEOUT)

    def _try_again(self, now_ns: int, request: Request, *, same_engine: bool) -> bool:
        self._give_permit_back(request)
        if request.attempts >= self.pipeline.retry.attempts or request.deadline_ns <= now_ns:
            return False
        target = self._second_choice(now_ns, request, same_engine=same_engine)
        if target < 0 or not self._withdraw(now_ns):
            return False
        request.attempts += 1
        self._leave_batch(request)
        self._start_clock(now_ns, request)
        self._settle(now_ns, request, target, Reason.RETRY if target == request.engine else Reason.FAILOVER)
        return True

    def _second_choice(self, now_ns: int, request: Request, *, same_engine: bool) -> int:
        failed, target = request.engine, self.backup_of[request.stage]
        choices = []
        if target >= 0:
            choices += [target] if self._may_fail_over(request) and target != failed else []
        elif same_engine:
            choices += [e for e in self.order[request.stage] if e != failed]
        choices += [failed] if same_engine else []
        return next((e for e in choices if self._has_spare(now_ns, request, e)), -1)

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

    def _move_all(self, now_ns: int, s: int, e: int) -> None:
        """Place anew what waits at a stage for an engine that no longer serves it."""
        for request in sorted(self.engines[e].queue, key=_sweep_order):
            if request.stage == s:
                self._leave_queue(request)
                self._give_permit_back(request)
                self._place(now_ns, request, admitted=True)

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
        for batch in self.running:
            if batch is not None:
                batch.members = [None if member is request else member for member in batch.members]

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

    def _close(self, now_ns: int) -> None:
        for e in self.touched:
            self._start_all(now_ns, e)
        self.touched = []


def _sweep_order(request: Request) -> tuple[int, int, int, int]:
    return (request.priority, request.stage, request.bucket, request.sequence)
