"""A plain twin of the core: objects and lists, written from the page *How it decides* and not from the kernels.

It answers the same calls with the same effects in the same order, and is slow. `naive_test.py` drives both through
random histories; where they differ, one of the two or the page is wrong.

Order inside one event, where the page leaves it open:

- what is swept or moved goes by class, then lane, then place in the queue; members of a batch in their order;
- engines that an event touched start what they may at its end, in the order in which it touched them;
- a free row or slot is the last one freed for rows, the first one for slots.
"""

from collections.abc import Iterator, Sequence

import msgspec

from loadslice.policy.estimate import ServiceCurve, service_curves, slow_ppm
from loadslice.policy.naive_breaker import FOREVER, MS, PPM, NaiveBreaker
from loadslice.policy.naive_engine import HINT_FLOOR_NS, AtStage, Flows, Lane, NaiveEngine, Request, Running, Slot
from loadslice.policy.naive_fit import accepts, can_stand_in, holds, reach, takes_bucket
from loadslice.policy.naive_versions import NaiveVersions
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import CLASSES, LEAST_SHARE, Batch, Pipeline, Stage

DISPATCH, PLACED, OUTCOME = 1, 2, 3
REFUSED = -1

TRIAL_NS = 1000 * MS

Effect = tuple[int, ...]
"""(kind, tag or slot, a, b, c, d) as the core's effects; a DISPATCH is followed by the tags of its members."""


class Naive:
    """The whole core for one run."""

    def __init__(self, pipeline: Pipeline, latency: LatencyTable | None = None, sources: Sequence[str] = ()) -> None:
        self.pipeline = pipeline
        self.sources = sources
        self.stages = list(pipeline.stages)
        self.engines = _engines(pipeline, latency)
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
        tenant: int = 0,
        key: int = -1,
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
            hint_ns = self._door_hint_ns(now_ns, refusal)
            self.effects.append((OUTCOME, tag, Outcome.REJECTED, refusal, hint_ns, 0))
            return REFUSED
        row = self.free_rows.pop()
        request = Request(tag, row, priority, deadline_ns, items, bucket, tokens, source, precision, now_ns, tenant)
        request.version = self.versions.version_for(key)
        request.lane = self._lane(request)
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
        e = self.slots[slot][0]
        self.engines[e].learn(now_ns, batch)
        self._record_batch(now_ns, e, batch, failed=False)
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
                request.lane = self._lane(request)
                self._start_clock(now_ns, request)
                self._place(now_ns, request, admitted=True)
        self._close(now_ns)
        return 0

    def batch_failed(self, now_ns: int, slot: int, epoch: int) -> int:
        """As `desk.on_batch_failed`."""
        batch = self._release(now_ns, slot, epoch)
        if batch is None:
            return REFUSED
        self._record_batch(now_ns, self.slots[slot][0], batch, failed=True)
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
                probes = [
                    batch
                    for batch in self.engines[e].batches()
                    if batch.lane[0] == s and batch.started_ns >= breaker.changed_ns
                ]
                probes_end_ns = max((batch.started_ns + 2 * batch.expected_ns for batch in probes), default=0)
                if breaker.on_time(now_ns, probes_end_ns):
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
            if (batch := slot.batch) is not None:
                self._free(now_ns, e, slot)
                slot.epoch += 1
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

    def rollout(self, now_ns: int, verdict: int) -> int:
        """As `desk.on_rollout`."""
        if self.versions.step == 0:
            return REFUSED
        self.effects = []
        if self.versions.move(verdict):
            self._turn_back(now_ns)
        self._close(now_ns)
        return 0

    def _turn_back(self, now_ns: int) -> None:
        """Everybody who waits at the first stage for the new version gets the old one."""
        for e, engine in enumerate(self.engines):
            for request in sorted(engine.queue, key=_sweep_order):
                if request.stage == 0 and request.version == 1 and request in engine.queue:
                    self._touch(e)
                    self._leave_queue(request)
                    self._give_permit_back(request)
                    request.version = 0
                    request.lane = self._lane(request)
                    self._place(now_ns, request, admitted=True)

    def _lane(self, request: Request) -> Lane:
        stage = self.stages[request.stage]
        new = request.version == 1 and stage.canary is not None
        return (request.stage, request.bucket + (len(stage.buckets) + 1 if new else 0))

    def next_timer_ns(self) -> int:
        """When time alone changes something next."""
        return min((due for e in range(len(self.engines)) for due in self.dues_ns(e)), default=FOREVER)

    def dues_ns(self, e: int) -> Iterator[int]:
        """Every time at which something is due on an engine."""
        engine = self.engines[e]
        for request in engine.queue:
            yield request.expiry_ns
        for batch in engine.batches():
            for member in batch.members:
                if member is not None:
                    yield member.expiry_ns
        for s in range(len(self.stages)):
            yield self.breakers[s][e].until_ns
        if engine.up and engine.free_slot() is not None:
            for lane in engine.startable():
                yield engine.ready_ns(lane)

    # 1 and 2: who may serve, and who is preferred

    def _available(self, request: Request, e: int) -> bool:
        admits = self.breakers[request.stage][e].admits()
        return self.engines[e].up and admits and accepts(self.stages[request.stage], self.engines[e], request)

    def _preferred(self, now_ns: int, request: Request) -> tuple[int, Reason]:
        stage = self.stages[request.stage]
        able = [e for e in self.order[request.stage] if self._available(request, e)]
        if not able:
            return -1, Reason.NONE
        # min() keeps the first of equals, which is the order of the file.
        fastest = min(able, key=lambda e: self._completion_ns(now_ns, request, e))
        if stage.prefer == "fastest":
            return fastest, Reason.FASTEST
        if stage.prefer == "cheapest":
            latest_ns = request.deadline_ns - now_ns - self._ahead_ns(now_ns, request)
            timely = [e for e in able if self._completion_ns(now_ns, request, e) <= latest_ns]
            asks = {e: (self._price(request, e), self._completion_ns(now_ns, request, e)) for e in timely}
            return min(timely, key=asks.__getitem__, default=fastest), Reason.CHEAPEST
        if stage.prefer == "rules":
            rule = next((rule for rule in stage.rules if holds(rule, request, self.sources)), None)
            named = [e for e in able if rule is not None and self.engines[e].name == rule.to]
            if named:
                return named[0], Reason.RULE
        return able[0], Reason.PREFERRED

    def _completion_ns(self, now_ns: int, request: Request, e: int) -> int:
        engine = self.engines[e]
        return engine.expected_wait_ns(now_ns, request) + self._service_ns(request, e) + engine.load_ns(request.stage)

    def _price(self, request: Request, e: int) -> int:
        """Of one row in a full batch: nJ, or 1e-12 of the currency."""
        engine = self.engines[e]
        curve = engine.curves.get(request.lane, ServiceCurve(0, 0))
        row_share_ns = curve.base_ns / engine.stages[request.stage].batch.size + curve.row_ns
        if self.pipeline.cheapest == "energy":
            return round(row_share_ns * (engine.settings.active_w or 0.0))
        return round(row_share_ns / 3_600_000_000_000 * (engine.settings.cost_per_hour or 0.0) * 1e12)

    def _service_ns(self, request: Request, e: int) -> int:
        return self.engines[e].service_ns(request.lane, request.items)

    def _ahead_ns(self, now_ns: int, request: Request, *, waits: bool = True, at_best: bool = False) -> int:
        """What later stages take, each on the engine where the request would be placed now."""
        service, longest_wait = 0, 0
        for later in range(request.stage + 1, len(self.stages)):
            found = []
            for e in self._might_go(request, later):
                wait_ns = self.engines[e].expected_wait_ns(now_ns, request) if waits else 0
                takes_ns = self._quickest_ns(later, e, at_best=at_best)
                if takes_ns is not None:
                    found.append((wait_ns + takes_ns, wait_ns))
            if found:
                ends_ns, wait_ns = min(found, key=lambda pair: pair[0])
                service += ends_ns - wait_ns
                longest_wait = max(longest_wait, wait_ns)
        return service + longest_wait

    def _might_go(self, request: Request, later: int) -> list[int]:
        """Engines that a later stage might choose for a request whose rows and shape there are not known."""
        stage = self.stages[later]
        able = [
            e
            for e in self.order[later]
            if self.engines[e].up
            and self.breakers[later][e].admits()
            and reach(stage, self.engines[e])[0] >= request.precision
        ]
        if stage.prefer == "static":
            return able[:1]
        if stage.prefer != "rules":
            return able
        named = set()
        for rule in stage.rules:
            when = msgspec.structs.replace(rule.when, items=None, bucket=None)
            if not holds(msgspec.structs.replace(rule, when=when), request, self.sources):
                continue
            named.add(rule.to)
            to = self._engine_index(rule.to)
            if when == rule.when and self.engines[to].up and self.breakers[later][to].admits():
                return [e for e in able if self.engines[e].name in named]
        return [e for e in able if self.engines[e].name in named or e == able[0]]

    def _engine_index(self, name: str) -> int:
        return next(e for e, engine in enumerate(self.engines) if engine.name == name)

    def _quickest_ns(self, s: int, e: int, *, at_best: bool) -> int | None:
        """What a stage takes on an engine for nobody in particular; None: it takes no lane there."""
        engine, stage = self.engines[e], self.stages[s]
        if not at_best and engine.learned_ns.get(s):
            return engine.learned_ns[s]
        buckets = len(stage.buckets) + 1
        lanes = range(buckets * (1 if stage.canary is None else 2))
        takes = [
            engine.service_ns((s, lane), 1, at_best=at_best)
            for lane in lanes
            if takes_bucket(stage, engine, lane % buckets)
        ]
        return min(takes, default=None)

    # 3 to 5: overflow, hopelessness, room

    def _has_spare(self, now_ns: int, request: Request, e: int) -> bool:
        engine = self.engines[e]
        return self._available(request, e) and engine.has_room() and not engine.is_overflow(now_ns, request)

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
        if self._is_late(now_ns, request, self.backup_of[s]):
            is_lost = self._is_late(now_ns, request, e)
            if not is_lost or not self._may_be_tried(now_ns, request, self.backup_of[s], waits=True):
                return False
        self.overflows[s] += 1
        self.credit_ppm[s] += round(failover.share * PPM)
        if self.credit_ppm[s] < PPM:
            return False
        self.credit_ppm[s] -= PPM
        self.sent[s] += 1
        return True

    def _needed_ns(self, request: Request, e: int, *, at_best: bool = False) -> int:
        engine = self.engines[e]
        return engine.service_ns(request.lane, request.items, at_best=at_best) + engine.load_ns(request.stage)

    def _is_late(self, now_ns: int, request: Request, e: int, *, waits: bool = True) -> bool:
        """Whether it would miss its deadline on an engine, placed there now; or without waits, started there now."""
        if request.deadline_ns == FOREVER:
            return False
        wait_ns = self.engines[e].expected_wait_ns(now_ns, request) if waits else 0
        ends_ns = now_ns + wait_ns + self._needed_ns(request, e) + self._ahead_ns(now_ns, request, waits=waits)
        return ends_ns > request.deadline_ns or request.deadline_ns <= now_ns

    def _may_be_tried(self, now_ns: int, request: Request, e: int, *, waits: bool) -> bool:
        """Whether it may show what an idle engine is worth: late, unless all were as quick as they have been."""
        engine = self.engines[e]
        spell_ns = min(self._needed_ns(request, e) + self._ahead_ns(now_ns, request, waits=False), TRIAL_NS)
        idle_ns = now_ns - engine.done_ns
        if not engine.is_idle() or idle_ns < spell_ns:
            return False
        ahead_ns = self._ahead_ns(now_ns, request, waits=waits, at_best=True)
        in_time = now_ns + self._needed_ns(request, e, at_best=True) + ahead_ns <= request.deadline_ns
        return in_time or idle_ns >= 10 * spell_ns

    def _dropped(self, now_ns: int, request: Request, e: int, *, waits: bool) -> bool:
        if not self._is_late(now_ns, request, e, waits=waits):
            return False
        if request.deadline_ns <= now_ns:
            self._finish(request, Outcome.EXPIRED, Reason.DEADLINE)
            return True
        if self._may_be_tried(now_ns, request, e, waits=waits):
            request.trial = True
            return False
        self._refuse(request, Outcome.SHED, Reason.HOPELESS, self.engines[e].hint_ns(now_ns))
        return True

    def _place(self, now_ns: int, request: Request, *, admitted: bool) -> None:
        e, reason = self._preferred(now_ns, request)
        if e < 0:
            stage = self.stages[request.stage]
            able = any(accepts(stage, self.engines[e], request) for e in self.order[request.stage])
            self._refuse(request, Outcome.FAILED, Reason.ENGINE_DOWN if able else Reason.INELIGIBLE)
            return
        if self.engines[e].is_overflow(now_ns, request) and self._takes_overflow(now_ns, request, e):
            e, reason = self.backup_of[request.stage], Reason.FAILOVER
        engine = self.engines[e]
        if self._dropped(now_ns, request, e, waits=True):
            return
        if not engine.has_room():
            hint_ns = engine.hint_ns(now_ns)
            victim = engine.victim(request)
            if victim is None:
                self._refuse(request, Outcome.SHED if admitted else Outcome.REJECTED, Reason.QUEUE_FULL, hint_ns)
                return
            self._leave_queue(victim)
            self._refuse(victim, Outcome.SHED, Reason.DISPLACED, hint_ns)
        self._settle(now_ns, request, e, reason)

    def _settle(self, now_ns: int, request: Request, e: int, reason: Reason) -> None:
        request.work_ns = self.engines[e].work_ns(request.lane, request.items)
        request.latest_ns = request.deadline_ns
        if request.deadline_ns < FOREVER:
            request.latest_ns -= self._ahead_ns(now_ns, request, waits=False)
        request.call = self.breakers[request.stage][e].enter(now_ns)
        request.engine = e
        request.enqueued_ns = now_ns
        self.sequence += 1
        request.sequence = self.sequence
        self.engines[e].join(request)
        self.effects.append((PLACED, request.tag, request.stage, e, reason, request.row))
        self._touch(e)

    def _start_clock(self, now_ns: int, request: Request) -> None:
        timeout_ns = self._timeout_ns(request.stage)
        request.expiry_ns = min(request.deadline_ns, now_ns + timeout_ns if timeout_ns < FOREVER else FOREVER)

    def _timeout_ns(self, s: int) -> int:
        timeout_ms = self.stages[s].timeout_ms
        return FOREVER if timeout_ms is None else round(timeout_ms * MS)

    def _start_all(self, now_ns: int, e: int) -> None:
        engine = self.engines[e]
        while engine.up and engine.free_slot() is not None:
            choices = engine.choices(now_ns)
            if not choices:
                return
            turn = engine.turn(choices)
            members = self._fill(now_ns, e, choices[turn], turn)
            if members:
                self._start(now_ns, e, members)
                engine.keep_floors(choices, members[0].priority)

    def _fill(self, now_ns: int, e: int, lane: Lane, turn: int) -> list[Request]:
        """Take members from a lane: of the class whose turn it is until there is one, then highest class first."""
        engine = self.engines[e]
        members: list[Request] = []
        while (request := engine.next_member(lane, turn if not members else None)) is not None:
            rows = sum(member.items for member in members)
            if members and rows + request.items > engine.stages[lane[0]].batch.size:
                break
            if members and engine.costs_a_deadline(now_ns, lane, members, request):
                break
            self._leave_queue(request)
            if not self._dropped(now_ns, request, e, waits=False):
                engine.charge(request)
                members.append(request)
            elif not members and not engine.waits(lane, turn):
                break  # whose turn it is must be asked anew
        return members

    def _start(self, now_ns: int, e: int, members: list[Request]) -> None:
        engine, lane = self.engines[e], members[0].lane
        slot = engine.free_slot()
        assert slot is not None, "who may start has a slot"
        rows = sum(member.items for member in members)
        load_ns = engine.use_model(now_ns, lane[0])
        expected_ns = engine.service_ns(lane, rows) + load_ns
        trial = any(member.trial for member in members)
        slot.epoch += 1
        slot.batch = Running(lane, list(members), rows, now_ns, expected_ns, load_ns, trial)
        for member in members:
            member.trial = False
        tags = tuple(member.tag for member in members)
        self.effects.append((DISPATCH, slot.number, e, *lane, slot.epoch, *tags))

    # Ends

    def _release(self, now_ns: int, slot: int, epoch: int) -> Running | None:
        """Take a batch that has ended off its slot; None: no such batch runs."""
        if not 0 <= slot < len(self.slots) or self.slots[slot][1].epoch != epoch:
            return None
        batch = self.slots[slot][1].batch
        if batch is not None:
            self.effects = []
            self._free(now_ns, *self.slots[slot])
        return batch

    def _free(self, now_ns: int, e: int, slot: Slot) -> None:
        slot.batch = None
        self.engines[e].done_ns = now_ns
        self._touch(e)

    def _record_batch(self, now_ns: int, e: int, batch: Running, *, failed: bool) -> None:
        breaker = self.breakers[batch.lane[0]][e]
        slow = breaker.is_slow(now_ns - batch.started_ns)
        for member in batch.members:
            if member is not None:
                self._record(now_ns, member, failed=failed, slow=slow)
        if breaker.state == "open":
            self._move_all(now_ns, batch.lane[0], e)

    def _record(self, now_ns: int, request: Request, *, failed: bool, slow: bool = False) -> None:
        breaker = self.breakers[request.stage][request.engine]
        is_last = self._is_last_well(request.stage, request.engine)
        if breaker.record(now_ns, request.call, failed=failed, slow=slow, is_last=is_last):
            self._touch(request.engine)
        request.call = (request.call[0], False)

    def _is_last_well(self, s: int, e: int) -> bool:
        """Whether some shape that an engine takes is taken by no other that is up and closed."""
        stage, engine = self.stages[s], self.engines[e]
        closed = [self.engines[o] for o in self.order[s] if o != e and self.breakers[s][o].state == "closed"]
        others = [other for other in closed if other.up and can_stand_in(stage, other, engine)]
        mine = [bucket for bucket in range(len(stage.buckets) + 1) if takes_bucket(stage, engine, bucket)]
        return any(not any(takes_bucket(stage, other, bucket) for other in others) for bucket in mine)

    def _fail_members(self, now_ns: int, batch: Running) -> None:
        for request in list(batch.members):
            if request is not None and not self._try_again(now_ns, request, same_engine=True):
                self._finish(request, Outcome.FAILED, Reason.ENGINE_FAILED)

    def _expire_waiting(self, now_ns: int, e: int) -> None:
        engine = self.engines[e]
        late = [batch for batch in engine.batches() if now_ns - batch.started_ns >= self._timeout_ns(batch.lane[0])]
        for request in sorted(engine.queue, key=_sweep_order):
            if request.expiry_ns <= now_ns:
                self._leave_queue(request)
                if len(late) == len(engine.slots):
                    self._record(now_ns, request, failed=True)
                self._expire(now_ns, request)

    def _expire_running(self, now_ns: int, e: int) -> None:
        for batch in self.engines[e].batches():
            for request in list(batch.members):
                if request is not None and request.expiry_ns <= now_ns:
                    is_slow = now_ns - batch.started_ns > 2 * batch.expected_ns
                    if request.deadline_ns > now_ns or is_slow:
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
        return next((e for e in choices if self._would_serve(now_ns, request, e)), -1)

    def _would_serve(self, now_ns: int, request: Request, e: int) -> bool:
        """Whether an engine takes what has failed elsewhere, in time or as a trial."""
        if not self._has_spare(now_ns, request, e):
            return False
        return not self._is_late(now_ns, request, e) or self._may_be_tried(now_ns, request, e, waits=True)

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

    def _close(self, now_ns: int) -> None:
        for e in self.touched:
            self._start_all(now_ns, e)
        self.touched = []


def _sweep_order(request: Request) -> tuple[int, Lane, int, int]:
    return (request.priority, request.lane, request.tenant, request.sequence)


def _engines(pipeline: Pipeline, latency: LatencyTable | None) -> list[NaiveEngine]:
    curves = service_curves(pipeline, latency) if latency is not None else {}
    limits = [pipeline.classes.get(name) for name in CLASSES]
    engines = []
    first_slot = 0
    for e, (name, settings) in enumerate(pipeline.engines.items()):
        has_shares = any(name in stage.share for stage in pipeline.stages)
        engine = NaiveEngine(
            name,
            settings,
            slots=[Slot(first_slot + number) for number in range(settings.max_inflight)],
            stages=[_at_stage(stage, name, latency) for stage in pipeline.stages],
            curves={(s, lane): curve for (s, of, lane), curve in curves.items() if of == e},
            floors_ppm=[0 if limit is None else round(limit.floor * PPM) for limit in limits],
            offline={priority for priority, limit in enumerate(limits) if limit is not None and limit.offline},
            tenant_flows=[Flows(_tenant_shares(pipeline)) for _ in CLASSES] if pipeline.tenants else [],
            stage_flows=[Flows(_stage_shares(pipeline, name)) for _ in CLASSES] if has_shares else [],
        )
        engine.resident = _first_models(pipeline, engine)
        engines.append(engine)
        first_slot += settings.max_inflight
    return engines


def _at_stage(stage: Stage, name: str, latency: LatencyTable | None) -> AtStage:
    batch = stage.batch.get(name, Batch()) if name in stage.engine_names else Batch()
    return AtStage(
        batch, slow_ppm(stage, name, latency), round((stage.memory_mb or 0.0) * 1e6), round((stage.load_ms or 0.0) * MS)
    )


def _tenant_shares(pipeline: Pipeline) -> list[int]:
    named = [tenant.share for tenant in pipeline.tenants.values()]
    return [round(share * PPM) for share in [max(LEAST_SHARE, 1.0 - sum(named)), *named]]


def _stage_shares(pipeline: Pipeline, name: str) -> list[int]:
    """What each stage is guaranteed of an engine, or its part of what the guarantees leave."""
    here = [stage for stage in pipeline.stages if name in stage.engine_names]
    left = max(LEAST_SHARE, 1.0 - sum(stage.share.get(name, 0.0) for stage in here))
    without = sum(name not in stage.share for stage in here)
    return [
        round(stage.share[name] * PPM) if name in stage.share else max(1, round(left / max(1, without) * PPM))
        for stage in pipeline.stages
    ]


def _first_models(pipeline: Pipeline, engine: NaiveEngine) -> dict[int, int]:
    """In the order of the file, while they fit."""
    if engine.settings.memory_mb is None:
        return {}
    free_bytes = round(engine.settings.memory_mb * 1e6)
    resident = {}
    for s, stage in enumerate(pipeline.stages):
        if engine.name in stage.engine_names and engine.stages[s].memory_bytes <= free_bytes:
            resident[s] = 0
            free_bytes -= engine.stages[s].memory_bytes
    return resident
