"""What the watch keeps of what was said: who waits where and in which order, what runs, what may still be spent."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.layout import Tables
from loadslice.policy.watch_bounds import Despair, Diffused, Leads
from loadslice.policy.watch_split import Split
from loadslice.spec.pipeline import CLASSES, Batch, Pipeline

NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000

Origin = Literal["door", "waiting", "running", "left"]
Lane = tuple[int, int]
"""(stage, bucket; those of the new version follow those of the old)"""


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


class Books:
    """State of one watch."""

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

    def _set_lane(self, request: Inside) -> None:
        stage = self._pipeline.stages[request.stage]
        new = request.version == 1 and stage.canary is not None
        request.lane = (request.stage, request.bucket + (len(stage.buckets) + 1 if new else 0))

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

    def _move_on(self, request: Inside, origin: Origin, stage: int) -> None:
        """Whoever left a batch that is done may stand at the next stage by now; nobody else does."""
        if origin == "left" and self._told.kind == events.BATCH_DONE and stage == request.stage + 1:
            request.stage, request.clock_ns = stage, self._now_ns
            request.items, request.bucket = self._told.results[request.tag]
            self._despair.asked(request.items)
            self._set_lane(request)
        assert stage == request.stage, "(5) stages follow one another"

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

    def _busy_slots(self, engine: int) -> int:
        return sum(batch is not None and batch.engine == engine for batch in self._running)

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
