"""What random histories are made of: pipelines to draw, and a run that is looked at after every event."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from loadslice.policy import columns as c
from loadslice.policy import desk, events, invariants
from loadslice.policy.tables import State, fresh, lower
from loadslice.policy.watch import Watch, follow
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import (
    CLASSES,
    Accept,
    Batch,
    Breaker,
    Canary,
    ClassLimits,
    Engine,
    Failover,
    Pipeline,
    Queue,
    Retry,
    Rollout,
    Rule,
    Stage,
    Tenant,
    When,
    check,
)

MS = 1_000_000
SOURCES = ("api",)

Effect = tuple[int, ...]
"""A row of the core's effects; a DISPATCH is followed by the tags of its members."""


class Setup(NamedTuple):
    """One drawn run."""

    pipeline: Pipeline
    latency: LatencyTable | None


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    return Engine(
        backend="twin",
        max_inflight=draw(st.integers(1, 2)),
        queue=Queue(
            limit=draw(st.sampled_from([0, 1, 2, 3, 5, 8])),
            overflow_at=draw(st.sampled_from([None, None, 0, 1, 2, 4])),
            wait_limit_ms=draw(st.none() | st.floats(0, 40)),
        ),
        precision=draw(st.sampled_from(["fp32", "fp32", "fp32", "int8"])),
        active_w=draw(st.integers(1, 3)),
        memory_mb=draw(st.sampled_from([None, None, None, 60, 90])),
    )


@st.composite
def breakers(draw: st.DrawFn) -> Breaker:
    window = draw(st.integers(1, 4))
    return Breaker(
        window=window,
        min_calls=draw(st.integers(1, window)),
        failure_rate=draw(st.sampled_from([0.3, 0.5, 1.0])),
        slow_ms=draw(st.none() | st.integers(1, 30)),
        slow_rate=draw(st.sampled_from([0.5, 1.0])),
        open_ms=20,
        open_ms_max=draw(st.sampled_from([20, 50])),
        permits=draw(st.integers(1, 3)),
        half_open_ms=draw(st.sampled_from([20, 30])),
    )


@st.composite
def stages(draw: st.DrawFn, name: str, names: list[str]) -> Stage:
    order = draw(st.permutations(names))[: draw(st.sampled_from([1, 2, 3, 3, 3]))]
    prefer = draw(st.sampled_from(["static", "static", "fastest", "cheapest", "rules"]))
    buckets = draw(st.sampled_from([[], [], [[8], [16]]]))
    accepts = st.builds(
        Accept,
        shape=st.none() | st.just([1, 8]) if buckets else st.none(),
        precision=st.sampled_from([None, "int4", "fp16"]),
        max_items=st.none() | st.integers(1, 3),
    )
    has_canary = draw(st.sampled_from([False, False, False, True]))
    return Stage(
        name=name,
        variant=name,
        engines=order,
        prefer=prefer,
        rules=draw(st.lists(rules(order), min_size=1, max_size=3)) if prefer == "rules" else [],
        buckets=buckets,
        accept=draw(st.just({}) | st.dictionaries(st.sampled_from(order), accepts, max_size=1)),
        batch=draw(st.fixed_dictionaries(dict.fromkeys(order, batches()))),
        timeout_ms=draw(st.none() | st.integers(5, 60)),
        breaker=draw(st.none() | breakers()),
        failover=draw(failovers(order)) if len(order) > 1 else None,
        degraded=draw(st.sampled_from([None, None, None, "m:f"])),
        share=draw(st.sampled_from([{}, {}, {order[0]: 0.3}, dict.fromkeys(order, 0.25)])),
        canary=Canary(variant=f"{name}2") if has_canary else None,
        memory_mb=draw(st.sampled_from([30, 60])),
        load_ms=draw(st.sampled_from([0, 7])),
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    size = draw(st.integers(1, 4))
    pads = draw(st.sampled_from([[], [], [1, 2], [2]]))
    return Batch(
        size=size,
        window_ms=draw(st.sampled_from([0, 0, 5, 12])),
        pad_to=[*(pad for pad in pads if pad < size), size] if pads else [],
    )


@st.composite
def rules(draw: st.DrawFn, order: list[str]) -> Rule:
    when = When(
        items=draw(st.sampled_from([None, ">1", "<=2", "3"])),
        tokens_in=draw(st.sampled_from([None, None, "<512"])),
        class_=draw(st.none() | st.sampled_from(CLASSES)),
        source=draw(st.sampled_from([None, None, "api", "batch"])),
    )
    return Rule(when=when, to=draw(st.sampled_from(order)))


def failovers(order: list[str]) -> st.SearchStrategy[Failover | None]:
    some = st.builds(
        Failover,
        to=st.sampled_from(order[1:]),
        share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
        classes=st.none() | st.lists(st.sampled_from(CLASSES), unique=True),
    )
    return st.sampled_from([None, True, True]).flatmap(lambda given: some if given else st.none())


@st.composite
def latencies(draw: st.DrawFn, stage_names: list[str], engine_names: list[str]) -> LatencyTable:
    """A line through one or two sizes for every pair."""
    entries = []
    for variant in [*stage_names, *(f"{name}2" for name in stage_names)]:
        for engine in engine_names:
            first_ms, more_ms = draw(st.integers(1, 20)), draw(st.none() | st.integers(0, 20))
            sizes = [(1, first_ms)] if more_ms is None else [(1, first_ms), (4, first_ms + more_ms)]
            entries += [
                Entry(
                    variant=variant,
                    engine=engine,
                    batch=batch,
                    latency_ms=Milliseconds(mean=mean_ms, family="constant"),
                    basis="modelled",
                )
                for batch, mean_ms in sizes
            ]
    return LatencyTable(entries=entries)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """One to three engines, one to three stages, every number that the core reads."""
    names = ["a", "b", "c"][: draw(st.sampled_from([1, 2, 2, 3, 3]))]
    stage_names = ["s", "t", "u"][: draw(st.sampled_from([1, 2, 2, 3]))]
    floors = draw(st.sampled_from([{}, {}, {"sheddable": 0.3}, {"critical": 0.2, "sheddable": 0.5}]))
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={name: draw(engines()) for name in names},
        stages=[draw(stages(name, names)) for name in stage_names],
        max_requests=draw(st.sampled_from([1, 4, 8, 12, 16, 16])),
        retry=Retry(
            budget=draw(st.sampled_from([0.0, 0.1, 0.5])),
            attempts=draw(st.integers(1, 3)),
            per_s=draw(st.sampled_from([0.0, 1.0, 30.0])),
            reserve=draw(st.integers(0, 4)),
        ),
        classes={
            **{name: ClassLimits(floor=floor) for name, floor in floors.items()},
            **draw(st.sampled_from([{}, {}, {"sheddable_plus": ClassLimits(offline=True)}])),
        },
        tenants=draw(st.sampled_from([{}, {}, {"x": Tenant(share=0.5), "y": Tenant(share=0.2)}])),
        rollout=Rollout(steps=[0.3, 0.6, 1.0], at=draw(st.integers(0, 3))),
    )
    latency = draw(latencies(stage_names, names)) if draw(st.booleans()) else None
    return Setup(check(pipeline, "test"), latency)


class Run:
    """One run of the core: tells it facts, and holds everything it says to `invariants` and `Watch`."""

    def __init__(self, setup: Setup) -> None:
        self.pipeline, self.latency = setup
        self.tables = lower(self.pipeline, self.latency, SOURCES)
        self.state = fresh(self.tables, self.pipeline.max_requests)
        self.buckets = [len(stage.buckets) + 1 for stage in self.pipeline.stages]
        self.watch = Watch(self.pipeline, self.tables)
        self.now_ns = 0
        self.submitted = 0
        self.ended: list[int] = []
        self.rows: dict[int, int] = {}
        self.log: list[list[int]] = []
        self.said: list[Effect] = []
        """Every effect, without the members."""

    def tell(self, event: str, *arguments: int, results: list[tuple[int, int]] | None = None) -> int:
        """Tell the core one fact and look at what it says; a refused one must have changed nothing."""
        before = invariants.copy(self.state)
        hints_ns = self.hints_ns()
        self._note(event, arguments, results or ())
        self.watch.event(events.EVENT_NAMES.index(event), self.now_ns, arguments, results or ())
        call = getattr(desk, f"on_{event}")
        if results is None:
            answer = call(self.now_ns, self.tables, self.state, *arguments)
        else:
            padded = np.ones((self.state.members.shape[1], 2), np.int64)
            padded[: len(results)] = np.array(results, np.int64).reshape(-1, 2)
            answer = call(self.now_ns, self.tables, self.state, *arguments, padded)
        if answer == c.REFUSED and event != "arrival":
            unchanged = (array.tobytes() == old.tobytes() for array, old in zip(self.state, before, strict=True))
            assert all(unchanged), "(4) a refused event changes nothing"
            self.watch.effects([], [])
            return int(answer)
        effects = self.effects()
        self.heard(event, effects)
        invariants.check_step(self.tables, before, self.state)
        self._check_hints(before, hints_ns, effects)
        return int(answer)

    def _note(self, event: str, arguments: tuple[int, ...], results: Sequence[tuple[int, int]]) -> None:
        """Keep the event as its rows in an event log."""
        for kind, values in [(event, arguments), *(("result", result) for result in results)]:
            row = [events.EVENT_NAMES.index(kind), self.now_ns, *values]
            self.log.append(row + [0] * (events.EVENT_COLUMNS - len(row)))

    def hints_ns(self) -> list[int]:
        """What a refusal would say now, by engine: the backlog and what is left of its batches, over its slots."""
        hints = []
        for engine, counts in enumerate(self.state.engines):
            batches = self.state.batches[self.state.batches[:, c.B_ENGINE] == engine]
            running = batches[batches[:, c.B_BUSY] == 1]
            left_ns = np.maximum(running[:, c.B_STARTED_NS] + running[:, c.B_EXPECTED_NS] - self.now_ns, 0).sum()
            idle = len(running) < len(batches) and counts[c.N_QUEUED] == 0
            hints.append(0 if idle else int((self.state.backlog_ns[-1, engine] + left_ns) // len(batches)))
        return hints

    def _check_hints(self, before: State, hints_ns: list[int], effects: list[Effect]) -> None:
        """(14): where nothing came, started or was learned, a hint has not grown.

        What starts is priced anew, by what was learned since it came to wait.
        """
        columns = {c.PLACED: c.F_B, c.DISPATCH: c.F_A}
        busy = {effect[columns[effect[c.F_KIND]]] for effect in effects if effect[c.F_KIND] in columns}
        for engine, (old_ns, new_ns) in enumerate(zip(hints_ns, self.hints_ns(), strict=True)):
            learned = (self.state.live[:, :, engine] != before.live[:, :, engine]).any()
            assert engine in busy or learned or new_ns <= old_ns, "(14) a hint does not grow while the backlog drains"

    def effects(self) -> list[Effect]:
        """What the last event said."""
        said: list[Effect] = []
        for effect in self.state.effects[: self.state.counters[c.C_EFFECTS]].tolist():
            tags = self.members_of(effect[c.F_TAG]) if effect[c.F_KIND] == c.DISPATCH else ()
            said.append((*effect, *tags))
        return said

    def members_of(self, slot: int) -> tuple[int, ...]:
        """Tags of a batch that runs."""
        return tuple(self.state.members[slot, : self.state.batches[slot, c.B_COUNT], c.M_TAG].tolist())

    def heard(self, event: str, effects: list[Effect]) -> None:
        """Look at what an event said."""
        del event
        self.watch.effects(
            effects, [effect[c.EFFECT_COLUMNS :] for effect in effects if effect[c.F_KIND] == c.DISPATCH]
        )
        self.said += [effect[: c.EFFECT_COLUMNS] for effect in effects]
        self._check_hopes(effects)
        self.ended += [effect[c.F_TAG] for effect in effects if effect[c.F_KIND] == c.OUTCOME]
        assert len(self.watch.inside) == self.state.counters[c.C_IN_SYSTEM], "(1) both books agree about who is inside"
        invariants.check(self.tables, self.state)

    def _check_hopes(self, effects: list[Effect]) -> None:
        """(24): a batch is expected to end within the deadline of every member, by what is known now; or is a trial."""
        for effect in effects:
            if effect[c.F_KIND] != c.DISPATCH or self.state.batches[effect[c.F_TAG], c.B_TRIAL] == 1:
                continue
            ends_ns = self.now_ns + int(self.state.batches[effect[c.F_TAG], c.B_EXPECTED_NS])
            members = [self.watch.inside[tag] for tag in effect[c.EFFECT_COLUMNS :] if tag in self.watch.inside]
            assert all(ends_ns <= member.deadline_ns for member in members), "(24) nothing hopeless is dispatched"

    def busy(self) -> list[int]:
        """Slots that run a batch."""
        return np.flatnonzero(self.state.batches[:, c.B_BUSY]).tolist()

    def arrive(
        self,
        priority: int = 1,
        deadline_ms: int | None = None,
        items: int = 1,
        bucket: int = 0,
        tokens: int = -1,
        source: int = -1,
        precision: int = 0,
        attempt: int = 1,
        tenant: int = 0,
        key: int = -1,
    ) -> None:
        """A request arrives."""
        deadline_ns = c.FOREVER if deadline_ms is None else self.now_ns + deadline_ms * MS
        tag = self.submitted
        self.submitted += 1
        bucket %= self.buckets[0]
        request = (tag, priority, deadline_ns, items, bucket, tokens, source, precision, attempt)
        self.rows[tag] = self.tell("arrival", *request, tenant % len(self.tables.tenants), key)

    def batch_ends(self, slot: int, results: list[tuple[int, int]] | None) -> None:
        """A batch ends with a result for each member, or fails."""
        epoch = int(self.state.batches[slot, c.B_EPOCH])
        if results is None:
            assert self.tell("batch_failed", slot, epoch) == 0
        else:
            last = self.buckets[min(self.state.batches[slot, c.B_STAGE] + 1, len(self.buckets) - 1)]
            assert (
                self.tell("batch_done", slot, epoch, results=[(items, bucket % last) for items, bucket in results]) == 0
            )

    def pass_time(self, ns: int) -> None:
        """Time passes, and every timer is kept."""
        until_ns = self.now_ns + ns
        while (due_ns := desk.next_timer_ns(self.state)) <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.tell("timer")
            assert desk.next_timer_ns(self.state) > self.now_ns, "a fired timer is not due again"
        self.now_ns = until_ns

    def leave(self, tag: int) -> None:
        """A client leaves."""
        if self.tell("cancel", self.rows.get(tag, -1), tag) == c.REFUSED:
            assert tag in self.ended or tag >= self.submitted

    def nonsense(self, slot: int, epoch: int) -> None:
        """A result of an old epoch, or of no batch at all, and a timer that nobody asked for."""
        if slot >= len(self.state.batches) or self.state.batches[slot, c.B_EPOCH] != epoch:
            assert self.tell("batch_done", slot, epoch, results=[]) == c.REFUSED
            assert self.tell("batch_failed", slot, epoch) == c.REFUSED
        self.tell("timer")
        self.tell("engine_up", 99)
        self.tell("cancel", 99, -5)

    def run_out(self) -> None:
        """Let everything end, and see that every request has ended once and nothing is held."""
        for engine in range(len(self.state.engines)):
            self.tell("engine_up", engine)
        for _ in range(1000):
            if not self.busy() and self.state.counters[c.C_IN_SYSTEM] == 0:
                break
            for slot in self.busy():
                self.batch_ends(slot, [(1, 0)] * len(self.members_of(slot)))
            self.now_ns = max(self.now_ns, min(desk.next_timer_ns(self.state), self.now_ns + 1000 * MS))
            self.tell("timer")
        invariants.check_idle(self.state)
        self.decide_again()
        assert sorted(self.ended) == list(range(self.submitted)), "(2) every request has exactly one outcome"

    def decide_again(self) -> None:
        """(29): the event log, decided again, says the same."""
        state = fresh(self.tables, self.pipeline.max_requests)
        log = np.array(self.log, np.int64)
        effects = np.zeros((len(self.said) + 1, c.EFFECT_COLUMNS), np.int64)
        scratch = np.zeros((state.members.shape[1], 2), np.int64)
        count = events.decide(log, self.tables, state, scratch, effects)
        assert [tuple(effect) for effect in effects[:count].tolist()] == self.said
        assert follow(log, self.pipeline, self.tables, fresh(self.tables, self.pipeline.max_requests)) == ""
