"""A plain twin of the core: objects and lists, written from the page *How it decides* and not from the kernels.

It answers the same calls with the same effects in the same order, and is slow. `naive_test.py` drives both through
random histories; where they differ, one of the two or the page is wrong.

Order inside one event, where the page leaves it open:

- what is swept or moved goes by class, then lane, then place in the queue; members of a batch in their order;
- engines that an event touched start what they may at its end, in the order in which it touched them;
- a free row or slot is the last one freed for rows, the first one for slots.
"""

from collections.abc import Iterator, Sequence

from loadslice.policy.naive_batches import NaiveBatches, sweep_order
from loadslice.policy.naive_books import OUTCOME
from loadslice.policy.naive_breaker import FOREVER, PPM
from loadslice.policy.naive_engine import Request
from loadslice.spec.outcome import Outcome, Reason

REFUSED = -1


class Naive(NaiveBatches):
    """The whole core for one run: one call per fact."""

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
            for request in sorted(engine.queue, key=sweep_order):
                if request.stage == 0 and request.version == 1 and request in engine.queue:
                    self._touch(e)
                    self._leave_queue(request)
                    self._give_permit_back(request)
                    request.version = 0
                    request.lane = self._lane(request)
                    self._place(now_ns, request, admitted=True)

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
