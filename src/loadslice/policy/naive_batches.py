"""How the twin starts and ends batches: who is in one, what its end tells, and who is tried again."""

from loadslice.policy.naive_books import DISPATCH
from loadslice.policy.naive_engine import Lane, Request, Running, Slot
from loadslice.policy.naive_fit import can_stand_in, takes_bucket
from loadslice.policy.naive_router import NaiveRouter
from loadslice.spec.outcome import Outcome, Reason


class NaiveBatches(NaiveRouter):
    """Batches, and what time and failures do to those who wait and run."""

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

    def _close(self, now_ns: int) -> None:
        for e in self.touched:
            self._start_all(now_ns, e)
        self.touched = []

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
        for request in sorted(engine.queue, key=sweep_order):
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

    def _move_all(self, now_ns: int, s: int, e: int) -> None:
        """Place anew what waits at a stage for an engine that no longer serves it."""
        for request in sorted(self.engines[e].queue, key=sweep_order):
            if request.stage == s:
                self._leave_queue(request)
                self._give_permit_back(request)
                self._place(now_ns, request, admitted=True)


def sweep_order(request: Request) -> tuple[int, Lane, int, int]:
    """By class, then lane, then place in the queue."""
    return (request.priority, request.lane, request.tenant, request.sequence)
