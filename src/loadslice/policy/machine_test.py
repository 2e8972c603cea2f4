"""Random histories over the core: after every event every invariant holds, and at the end nothing is held."""

import os
from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadslice.policy import columns as c
from loadslice.policy import desk, events, invariants
from loadslice.policy.tables import fresh, lower
from loadslice.policy.watch import Watch
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import (
    CLASSES,
    Accept,
    Batch,
    Breaker,
    ClassLimits,
    Engine,
    Failover,
    Pipeline,
    Queue,
    Retry,
    Rule,
    Stage,
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
            limit=draw(st.integers(0, 5)),
            overflow_at=draw(st.none() | st.integers(0, 4)),
            wait_limit_ms=draw(st.none() | st.floats(0, 40)),
        ),
        precision=draw(st.sampled_from(["int8", "fp32"])),
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
        half_open_ms=draw(st.sampled_from([10, 30])),
    )


@st.composite
def stages(draw: st.DrawFn, name: str, names: list[str]) -> Stage:
    order = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    prefer = draw(st.sampled_from(["static", "static", "fastest", "rules"]))
    buckets = draw(st.sampled_from([[], [], [[8], [16]]]))
    accepts = st.builds(
        Accept,
        shape=st.none() | st.just([1, 8]) if buckets else st.none(),
        precision=st.sampled_from([None, "int4", "fp16"]),
        max_items=st.none() | st.integers(1, 3),
    )
    batches = st.builds(Batch, size=st.integers(1, 4), window_ms=st.sampled_from([0, 0, 5, 12]))
    return Stage(
        name=name,
        variant=name,
        engines=order,
        prefer=prefer,
        rules=draw(st.lists(rules(order), min_size=1, max_size=3)) if prefer == "rules" else [],
        buckets=buckets,
        accept=draw(st.just({}) | st.dictionaries(st.sampled_from(order), accepts, max_size=1)),
        batch=draw(st.dictionaries(st.sampled_from(order), batches)),
        timeout_ms=draw(st.none() | st.integers(5, 60)),
        breaker=draw(st.none() | breakers()),
        failover=draw(failovers(order)) if len(order) > 1 else None,
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
    return st.none() | st.builds(
        Failover,
        to=st.sampled_from(order[1:]),
        share=st.sampled_from([0.0, 0.3, 1.0]),
        classes=st.none() | st.lists(st.sampled_from(CLASSES), unique=True),
    )


@st.composite
def latencies(draw: st.DrawFn, stage_names: list[str], engine_names: list[str]) -> LatencyTable:
    """A line through one or two sizes for every pair."""
    entries = []
    for variant in stage_names:
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
    """One to three engines, one or two stages, every number that the core reads."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    stage_names = ["s", "t"][: draw(st.integers(1, 2))]
    floors = draw(st.sampled_from([{}, {}, {"sheddable": 0.3}, {"critical": 0.2, "sheddable": 0.5}]))
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={name: draw(engines()) for name in names},
        stages=[draw(stages(name, names)) for name in stage_names],
        max_requests=draw(st.integers(1, 12)),
        retry=Retry(
            budget=draw(st.sampled_from([0.0, 0.1, 0.5])),
            attempts=draw(st.integers(1, 3)),
            per_s=draw(st.sampled_from([0.0, 1.0, 30.0])),
            reserve=draw(st.integers(0, 4)),
        ),
        classes={name: ClassLimits(floor=floor) for name, floor in floors.items()},
    )
    latency = draw(latencies(stage_names, names)) if draw(st.booleans()) else None
    return Setup(check(pipeline, "test"), latency)


class Histories(RuleBasedStateMachine):
    """Any order of events that a shell can send, and some that it must not be able to do harm with."""

    @initialize(setup=setups())
    def start(self, setup: Setup) -> None:
        self.pipeline, self.latency = setup
        self.tables = lower(self.pipeline, self.latency, SOURCES)
        self.state = fresh(self.tables, self.pipeline.max_requests)
        self.buckets = [len(stage.buckets) + 1 for stage in self.pipeline.stages]
        self.now_ns = 0
        self.submitted = 0
        self.ended: list[int] = []
        self.rows: dict[int, int] = {}
        self.watch = Watch(self.pipeline)
        self.started()

    def started(self) -> None:
        """For machines that put something beside the core."""

    def call(self, event: str, *arguments: int, results: list[tuple[int, int]] | None = None) -> int:
        """Tell the core one fact and look at what it says; a refused one must have changed nothing."""
        before = [array.tobytes() for array in self.state]
        self.watch.event(events.EVENT_NAMES.index(event), self.now_ns, arguments, results or ())
        tell = getattr(desk, f"on_{event}")
        if results is None:
            answer = tell(self.now_ns, self.tables, self.state, *arguments)
        else:
            padded = np.ones((self.state.members.shape[1], 2), np.int64)
            padded[: len(results)] = np.array(results, np.int64).reshape(-1, 2)
            answer = tell(self.now_ns, self.tables, self.state, *arguments, padded)
        if answer == c.REFUSED and event != "arrival":
            assert [array.tobytes() for array in self.state] == before
            self.watch.effects([], [])
        else:
            self.heard(self.effects())
        return int(answer)

    def effects(self) -> list[Effect]:
        said: list[Effect] = []
        for effect in self.state.effects[: self.state.counters[c.C_EFFECTS]].tolist():
            tags = self.member_tags(effect[c.F_TAG]) if effect[c.F_KIND] == c.DISPATCH else ()
            said.append((*effect, *tags))
        return said

    def member_tags(self, slot: int) -> tuple[int, ...]:
        return tuple(self.state.members[slot, : self.state.batches[slot, c.B_COUNT], c.M_TAG].tolist())

    def heard(self, effects: list[Effect]) -> None:
        self.watch.effects(
            effects, [effect[c.EFFECT_COLUMNS :] for effect in effects if effect[c.F_KIND] == c.DISPATCH]
        )
        assert len(self.watch.inside) == self.state.counters[c.C_IN_SYSTEM], "both books agree about who is inside"
        for effect in effects:
            if effect[c.F_KIND] == c.OUTCOME:
                self.ended.append(effect[c.F_TAG])

    @rule(
        priority=st.integers(0, 3),
        deadline_ms=st.none() | st.integers(0, 80),
        items=st.integers(1, 4),
        bucket=st.integers(0, 2),
        tokens=st.sampled_from([-1, 100, 1000]),
        source=st.sampled_from([-1, 0]),
        precision=st.sampled_from([0, 0, 3, 4]),
        attempt=st.sampled_from([1, 1, 1, 2]),
    )
    def arrive(
        self,
        priority: int,
        deadline_ms: int | None,
        items: int,
        bucket: int,
        tokens: int,
        source: int,
        precision: int,
        attempt: int,
    ) -> None:
        deadline_ns = c.FOREVER if deadline_ms is None else self.now_ns + deadline_ms * MS
        tag = self.submitted
        self.submitted += 1
        self.rows[tag] = self.call(
            "arrival", tag, priority, deadline_ns, items, bucket % self.buckets[0], tokens, source, precision, attempt
        )

    def busy(self) -> list[int]:
        return np.flatnonzero(self.state.batches[:, c.B_BUSY]).tolist()

    def ends(self, slot: int, result: tuple[int, int] | None) -> None:
        """A batch ends: every member with one result, or all failed."""
        epoch = int(self.state.batches[slot, c.B_EPOCH])
        if result is None:
            assert self.call("batch_failed", slot, epoch) == 0
        else:
            results = [result] * len(self.member_tags(slot))
            assert self.call("batch_done", slot, epoch, results=results) == 0

    @precondition(lambda self: hasattr(self, "state") and self.busy())
    @rule(data=st.data(), fails=st.booleans(), items=st.integers(-1, 3), bucket=st.integers(0, 2))
    def batch_ends(self, data: st.DataObject, *, fails: bool, items: int, bucket: int) -> None:
        slot = data.draw(st.sampled_from(self.busy()))
        self.ends(slot, None if fails else (items or 1, bucket % self.buckets[-1]))

    @rule(ms=st.integers(0, 30))
    def time_passes(self, ms: int) -> None:
        until_ns = self.now_ns + ms * MS
        while (due_ns := desk.next_timer_ns(self.state)) <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.call("timer")
            assert desk.next_timer_ns(self.state) > self.now_ns, "a fired timer is not due again"
        self.now_ns = until_ns

    @rule(ms=st.integers(1, 30))
    def the_timer_is_late(self, ms: int) -> None:
        self.now_ns += ms * MS

    @rule(tag=st.integers(0, 40))
    def client_leaves(self, tag: int) -> None:
        if self.call("cancel", self.rows.get(tag, -1), tag) == c.REFUSED:
            assert tag in self.ended or tag >= self.submitted

    @rule(engine=st.integers(0, 2), up=st.booleans())
    def engine_changes(self, engine: int, *, up: bool) -> None:
        self.call("engine_up" if up else "engine_down", engine)

    @rule(slot=st.integers(0, 5), epoch=st.integers(0, 3))
    def stale_result(self, slot: int, epoch: int) -> None:
        if slot < len(self.state.batches) and self.state.batches[slot, c.B_EPOCH] == epoch:
            return
        assert self.call("batch_done", slot, epoch, results=[]) == c.REFUSED
        assert self.call("batch_failed", slot, epoch) == c.REFUSED

    @precondition(lambda self: getattr(self, "submitted", 0) > 8)
    @rule(dice=st.integers(0, 9))
    def the_server_drains(self, dice: int) -> None:
        if dice == 0:
            self.call("drain")

    @invariant()
    def state_is_whole(self) -> None:
        if hasattr(self, "state"):
            invariants.check(self.tables, self.state)
            self._nothing_idles_beside_work()

    def _nothing_idles_beside_work(self) -> None:
        for e, counts in enumerate(self.state.engines):
            idle = counts[c.N_INFLIGHT] < self.tables.engines[e, c.E_MAX_INFLIGHT]
            if counts[c.N_UP] and idle and counts[c.N_QUEUED]:
                assert counts[c.N_WAKE_NS] < c.FOREVER, "idle beside work only while a window is open"

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for engine in range(len(self.state.engines)):
            self.call("engine_up", engine)
        for _ in range(1000):
            if not self.busy() and self.state.counters[c.C_IN_SYSTEM] == 0:
                break
            for slot in self.busy():
                self.ends(slot, (1, 0))
            self.now_ns = max(self.now_ns, min(desk.next_timer_ns(self.state), self.now_ns + 1000 * MS))
            self.call("timer")
        invariants.check(self.tables, self.state)
        invariants.check_idle(self.state)
        assert sorted(self.ended) == list(range(self.submitted)), "every request has exactly one outcome"


def budget(examples: int) -> settings:
    """How much a machine is run; twice as many histories compiled as interpreted, and the same ones in CI."""
    return settings(
        deadline=None,
        max_examples=examples if os.environ.get("NUMBA_DISABLE_JIT") else 2 * examples,
        stateful_step_count=50,
        derandomize=bool(os.environ.get("CI")),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


Histories.TestCase.settings = budget(150)
TestHistories = Histories.TestCase
