"""One engine of the naive twin: its queue, its slots, what it is thought to take, and whose turn it is."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from loadslice.policy.estimate import ServiceCurve
from loadslice.policy.naive_breaker import FOREVER, MS, PPM
from loadslice.spec.pipeline import CLASSES, Batch, Engine

HINT_FLOOR_NS = 50 * MS
DAY_NS = 86_400_000 * MS

Lane = tuple[int, int]
"""(stage, bucket; those of the new version follow those of the old)"""


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
    tenant: int = 0
    version: int = 0
    stage: int = 0
    lane: Lane = (0, 0)
    engine: int = -1
    expiry_ns: int = FOREVER
    latest_ns: int = FOREVER
    """When its batch must have ended, so that the stages after it still meet its deadline; as of its placement."""
    enqueued_ns: int = 0
    work_ns: int = 0
    sequence: int = 0
    attempts: int = 1
    trial: bool = False
    call: tuple[int, bool] = (-1, False)
    """Epoch of its breaker when it was placed, and whether it holds one of its permits."""


@dataclass(eq=False, slots=True)
class Running:
    """One batch on its slot; a member that has left is None."""

    lane: Lane
    members: list[Request | None]
    rows: int
    started_ns: int
    expected_ns: int
    load_ns: int
    trial: bool


@dataclass(eq=False, slots=True)
class Slot:
    """A place for one batch."""

    number: int
    epoch: int = 0
    batch: Running | None = None


@dataclass(eq=False, slots=True)
class Flows:
    """Start-time fair queueing between the tenants, or the stages, of one class."""

    shares_ppm: list[int]
    virtual_ns: dict[int, int] = field(default_factory=dict)
    common_ns: int = 0
    """Virtual time of the flow that was served last."""

    def enter(self, flow: int) -> None:
        """A flow that had nobody waiting has somebody: it has saved nothing up."""
        self.virtual_ns[flow] = max(self.virtual_ns.get(flow, 0), self.common_ns)

    def charge(self, flow: int, work_ns: int) -> None:
        """A flow is served."""
        self.common_ns = max(self.common_ns, self.virtual_ns[flow])
        self.virtual_ns[flow] += max(1, work_ns * PPM // self.shares_ppm[flow])


@dataclass(slots=True)
class AtStage:
    """What one engine is set to at one stage."""

    batch: Batch
    slow_ppm: int
    """One batch in twenty takes so much longer than it typically does."""
    memory_bytes: int
    load_ns: int


@dataclass(eq=False, slots=True)
class NaiveEngine:
    """What there is about one engine."""

    name: str
    settings: Engine
    slots: list[Slot]
    stages: list[AtStage]
    curves: dict[Lane, ServiceCurve]
    """What the latency table says."""
    floors_ppm: list[int]
    """By class."""
    offline: set[int]
    """Classes that fill valleys."""
    tenant_flows: list[Flows]
    """By class; none without guarantees."""
    stage_flows: list[Flows]
    """By class; none where no stage has a share of this engine."""
    up: bool = True
    queue: list[Request] = field(default_factory=list)
    """In order of enqueueing."""
    scale_ppm: dict[int, int] = field(default_factory=dict)
    learned_ns: dict[int, int] = field(default_factory=dict)
    best_scale_ppm: dict[int, int] = field(default_factory=dict)
    best_took_ns: dict[int, int] = field(default_factory=dict)
    """All by stage; the last but for the first batch."""
    resident: dict[int, int] = field(default_factory=dict)
    """When the model of a stage was last used; only those that are loaded."""
    done_ns: int = -(10**12)
    credit_ppm: list[int] = field(default_factory=lambda: [0] * len(CLASSES))

    def batches(self) -> Iterator[Running]:
        """What runs, in the order of the slots."""
        return (slot.batch for slot in self.slots if slot.batch is not None)

    def free_slot(self) -> Slot | None:
        """The first slot that is free."""
        return next((slot for slot in self.slots if slot.batch is None), None)

    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.queue and all(slot.batch is None for slot in self.slots)

    def has_room(self) -> bool:
        """Whether one more may join the queue, or pass through it."""
        waiting = len(self.queue)
        return waiting < self.settings.queue.limit or (waiting == 0 and self.free_slot() is not None)

    def is_overflow(self, now_ns: int, request: Request) -> bool:
        """Whether a request finds it past its marks."""
        queue = self.settings.queue
        if queue.overflow_at is not None and len(self.queue) >= queue.overflow_at:
            return True
        limit_ns = FOREVER if queue.wait_limit_ms is None else round(queue.wait_limit_ms * MS)
        return self.expected_wait_ns(now_ns, request) > limit_ns

    def join(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        for flows, flow in self._flows(request):
            if not any(
                self._flow_of(other, flows) == flow for other in self.queue if other.priority == request.priority
            ):
                flows.enter(flow)
        self.queue.append(request)

    def _flows(self, request: Request) -> Iterator[tuple[Flows, int]]:
        if self.tenant_flows:
            yield self.tenant_flows[request.priority], request.tenant
        if self.stage_flows:
            yield self.stage_flows[request.priority], request.stage

    def _flow_of(self, request: Request, flows: Flows) -> int:
        return request.stage if flows in self.stage_flows else request.tenant

    def victim(self, newcomer: Request) -> Request | None:
        """Who makes room: the newest of the lowest class below, of a greedier tenant, or of those that did least."""
        lower = [other for other in self.queue if other.priority > newcomer.priority]
        if lower:
            return max(lower, key=lambda other: (other.priority, other.sequence))
        behind = [
            other
            for other in self.queue
            if (other.priority, other.tenant) == (newcomer.priority, newcomer.tenant) and other.stage < newcomer.stage
        ]
        least = max(behind, key=lambda other: (-other.stage, other.sequence), default=None)
        if not self.tenant_flows:
            return least
        shares = self.tenant_flows[newcomer.priority].shares_ppm
        same = [other for other in self.queue if other.priority == newcomer.priority]
        held = [sum(other.tenant == tenant for other in same) * PPM // share for tenant, share in enumerate(shares)]
        mine = (sum(other.tenant == newcomer.tenant for other in same) + 1) * PPM // shares[newcomer.tenant]
        greediest = max(
            (tenant for tenant in range(len(shares)) if tenant != newcomer.tenant), key=lambda t: (held[t], -t)
        )
        if held[greediest] <= mine:
            return least
        return max((other for other in same if other.tenant == greediest), key=lambda other: other.sequence)

    # Estimates

    def padded(self, s: int, rows: int) -> int:
        """Rows that are computed for so many."""
        return next((pad for pad in self.stages[s].batch.pad_to if pad >= rows), rows)

    def _line(self, lane: Lane, *, at_best: bool = False) -> tuple[int, int]:
        """Base and row of what a batch is thought to take now, or were it as quick as it ever was."""
        curve = self.curves.get(lane, ServiceCurve(0, 0))
        if curve.base_ns + curve.row_ns == 0:
            return min((self.best_took_ns if at_best else self.learned_ns).get(lane[0], 0), DAY_NS), 0
        scale = (self.best_scale_ppm if at_best else self.scale_ppm).get(lane[0], PPM)
        return min(curve.base_ns * scale // PPM, DAY_NS), min(curve.row_ns * scale // PPM, DAY_NS)

    def service_ns(self, lane: Lane, rows: int, *, at_best: bool = False) -> int:
        """What a batch is thought to take now, or were it as quick as it ever was."""
        base_ns, row_ns = self._line(lane, at_best=at_best)
        return base_ns + self.padded(lane[0], rows) * row_ns

    def work_ns(self, lane: Lane, rows: int) -> int:
        """What a request adds to the backlog: its rows, and its part of the base of a full batch."""
        base_ns, row_ns = self._line(lane)
        return rows * self._part_ns(lane) if rows < self.stages[lane[0]].batch.size else base_ns + rows * row_ns

    def wait_ns(self, now_ns: int, priority: int) -> int:
        """What a newcomer of a class is thought to wait: for what is running, and for whoever it does not overtake."""
        if self.free_slot() is not None and len(self.slots) > 1 and not self.queue:
            return 0
        left = sum(request.work_ns for request in self.queue if request.priority <= priority)
        left += sum(max(0, batch.started_ns + batch.expected_ns - now_ns) for batch in self.batches())
        return left // len(self.slots)

    def expected_wait_ns(self, now_ns: int, request: Request) -> int:
        """What a request is thought to wait: behind all; once it has begun, behind lanes that hold an elder first."""
        wait_ns = self.wait_ns(now_ns, request.priority)
        if wait_ns == 0:
            return 0
        has_begun = request.stage > 0 and not self.tenant_flows and not self.stage_flows
        mine = (request.priority, request.arrived_ns, request.sequence)
        before = {
            lane
            for lane in {other.lane for other in self.queue}
            for priority in range(request.priority + 1)
            for head in self._heads(lane, priority)
            if not has_begun or priority < request.priority or (priority, head.arrived_ns, head.sequence) < mine
        }
        if has_begun:
            elders_ns = sum(other.items * self._part_ns(other.lane) for other in self.queue if other.lane in before)
            backlog_ns = sum(other.work_ns for other in self.queue if other.priority <= request.priority)
            wait_ns -= max(0, backlog_ns - elders_ns) // len(self.slots)
        return wait_ns + sum(self._base_missing_ns(lane) for lane in before - {request.lane}) // len(self.slots)

    def _base_missing_ns(self, lane: Lane) -> int:
        """What a lane that does not fill a batch asks beyond its rows' parts of a full one: the rest of the base."""
        rows = sum(other.items for other in self.queue if other.lane == lane)
        size, base_ns = self.stages[lane[0]].batch.size, self._line(lane)[0]
        return base_ns - rows * (base_ns // size) if rows < size else 0

    def _part_ns(self, lane: Lane) -> int:
        """What one row adds to a batch that others fill."""
        base_ns, row_ns = self._line(lane)
        return row_ns + base_ns // self.stages[lane[0]].batch.size

    def hint_ns(self, now_ns: int) -> int:
        """When to come back."""
        return max(HINT_FLOOR_NS, self.wait_ns(now_ns, len(CLASSES) - 1))

    def learn(self, now_ns: int, batch: Running) -> None:
        """Move the estimates by how long a batch took that ended well; a trial's answer replaces them."""
        s = batch.lane[0]
        if batch.load_ns > 0:
            return
        took_ns = now_ns - batch.started_ns
        before = self.learned_ns.get(s, 0)
        if before:
            self.best_took_ns[s] = min(self.best_took_ns.get(s, 0) or took_ns, took_ns)
        self.learned_ns[s] = took_ns if before == 0 or batch.trial else before + (took_ns - before) // 8
        curve = self.curves.get(batch.lane, ServiceCurve(0, 0))
        expected = curve.base_ns + self.padded(s, batch.rows) * curve.row_ns
        if expected:
            seen = min(max(took_ns * PPM // expected, PPM // 100), 1000 * PPM)
            scale = self.scale_ppm.get(s, PPM)
            self.scale_ppm[s] = seen if batch.trial else scale + (seen - scale) // 8
            self.best_scale_ppm[s] = min(self.best_scale_ppm.get(s, PPM), self.scale_ppm[s])

    # Models in memory

    def _is_bounded(self) -> bool:
        return self.settings.memory_mb is not None

    def _room_bytes(self, kept: set[int]) -> int:
        assert self.settings.memory_mb is not None
        return round(self.settings.memory_mb * 1e6) - sum(self.stages[s].memory_bytes for s in kept)

    def can_hold(self, s: int) -> bool:
        """Whether a batch of a stage could start, once models that do not run are dropped."""
        if not self._is_bounded() or s in self.resident:
            return True
        running = {batch.lane[0] for batch in self.batches()}
        return self.stages[s].memory_bytes <= self._room_bytes(running & set(self.resident))

    def load_ns(self, s: int) -> int:
        """What must be loaded before a stage can run."""
        return self.stages[s].load_ns if self._is_bounded() and s not in self.resident else 0

    def use_model(self, now_ns: int, s: int) -> int:
        """Have a stage's model there; what does not run and was used longest ago goes first."""
        if not self._is_bounded():
            return 0
        took_ns = self.load_ns(s)
        running = {batch.lane[0] for batch in self.batches()}
        while s not in self.resident and self._room_bytes(set(self.resident)) < self.stages[s].memory_bytes:
            idle = [other for other in self.resident if other not in running]
            del self.resident[min(idle, key=lambda other: (self.resident[other], other))]
        self.resident[s] = now_ns
        return took_ns

    # Whose turn it is

    def _order(self, request: Request) -> tuple[int, int, int, int]:
        """Inside a class: guaranteed shares first, then arrival in the system, then in the queue."""
        stage_ns = self.stage_flows[request.priority].virtual_ns[request.stage] if self.stage_flows else 0
        tenant_ns = self.tenant_flows[request.priority].virtual_ns[request.tenant] if self.tenant_flows else 0
        return (stage_ns, tenant_ns, request.arrived_ns, request.sequence)

    def _heads(self, lane: Lane, priority: int) -> list[Request]:
        """The first in, of each tenant."""
        heads: dict[int, Request] = {}
        for request in self.queue:
            if request.lane == lane and request.priority == priority:
                heads.setdefault(request.tenant, request)
        return list(heads.values())

    def ready_ns(self, lane: Lane) -> int:
        """When a lane that somebody waits in may be dispatched; 0: it is full, or nobody may wait."""
        batch = self.stages[lane[0]].batch
        window_ns = round(batch.window_ms * MS)
        rows = sum(request.items for request in self.queue if request.lane == lane)
        if window_ns == 0 or rows >= batch.size or self.settings.queue.limit == 0:
            return 0
        heads = [head for priority in range(len(CLASSES)) for head in self._heads(lane, priority)]
        service_ns = self.service_ns(lane, rows) // 1000 * (self.stages[lane[0]].slow_ppm // 1000)
        slacks = (min(head.expiry_ns, head.latest_ns) - service_ns - self.load_ns(lane[0]) for head in heads)
        return min(*(head.enqueued_ns + window_ns for head in heads), *slacks)

    def waits(self, lane: Lane, priority: int) -> bool:
        """Whether somebody of a class waits in a lane."""
        return bool(self._heads(lane, priority))

    def next_member(self, lane: Lane, turn: int | None) -> Request | None:
        """Who comes next from a lane: of the class whose turn it is, else of the highest."""
        for priority in range(len(CLASSES)) if turn is None else [turn, *range(len(CLASSES))]:
            if heads := self._heads(lane, priority):
                return min(heads, key=self._order)
        return None

    def startable(self) -> set[Lane]:
        """Lanes that only their windows hold up: somebody of a class that may start, and a model that can be there."""
        online_waits = any(request.priority not in self.offline for request in self.queue)
        able = [request for request in self.queue if request.priority not in self.offline or not online_waits]
        return {request.lane for request in able if self.can_hold(request.stage)}

    def choices(self, now_ns: int) -> dict[int, Lane]:
        """The lane that each class would dispatch now, for those that could."""
        online_waits = any(request.priority not in self.offline for request in self.queue)
        ready = [lane for lane in self.startable() if self.ready_ns(lane) <= now_ns]
        found = {}
        for priority in range(len(CLASSES)):
            if priority in self.offline and online_waits:
                continue
            heads = [head for lane in ready for head in self._heads(lane, priority)]
            if heads:
                found[priority] = min(heads, key=self._order).lane
        return found

    def turn(self, choices: dict[int, Lane]) -> int:
        """The class whose turn it is: the one most owed a whole dispatch, else the highest."""
        credit = {priority: self.credit_ppm[priority] + self.floors_ppm[priority] for priority in choices}
        owed = [priority for priority in choices if credit[priority] >= PPM]
        return max(owed, key=lambda priority: (credit[priority], -priority)) if owed else min(choices)

    def keep_floors(self, choices: dict[int, Lane], served: int) -> None:
        """A batch was dispatched whose first is of class ``served``."""
        for priority, floor_ppm in enumerate(self.floors_ppm):
            self.credit_ppm[priority] = self.credit_ppm[priority] + floor_ppm if priority in choices else 0
        self.credit_ppm[served] = max(0, self.credit_ppm[served] - PPM)

    def costs_a_deadline(self, now_ns: int, lane: Lane, members: list[Request], request: Request) -> bool:
        """Whether a batch with one more would end too late for that one, or for a member who is in time without it."""
        rows = sum(member.items for member in members)
        starts_ns = now_ns + self.load_ns(lane[0])
        without_ns, with_ns = (starts_ns + self.service_ns(lane, count) for count in (rows, rows + request.items))
        earliest_ns = min(member.latest_ns for member in members)
        return with_ns > request.latest_ns or without_ns <= earliest_ns < with_ns

    def charge(self, request: Request) -> None:
        """A request is dispatched: its tenant and its stage have had their part."""
        for flows, flow in self._flows(request):
            flows.charge(flow, request.work_ns)
