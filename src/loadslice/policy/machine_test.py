"""Random histories over the core: after every event every invariant holds, and at the end nothing is held."""

import os

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadslice.policy import columns as c
from loadslice.policy import desk, invariants
from loadslice.policy.tables import fresh, lower
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import (
    CLASSES,
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


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Pipeline, LatencyTable | None]:
    """One to three engines, one or two stages, every number that the core reads."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    engines = {
        name: Engine(
            backend="twin",
            max_inflight=draw(st.integers(1, 2)),
            queue=Queue(
                limit=draw(st.integers(0, 5)),
                overflow_at=draw(st.none() | st.integers(0, 4)),
                wait_limit_ms=draw(st.none() | st.floats(0, 40)),
            ),
            precision=draw(st.sampled_from(["int8", "fp32"])),
        )
        for name in names
    }
    stages = []
    for name in ("s", "t")[: draw(st.integers(1, 2))]:
        order = draw(st.permutations(names))
        prefer = draw(st.sampled_from(["static", "fastest", "rules"]))
        stages.append(
            Stage(
                name=name,
                variant=name,
                engines=order,
                prefer=prefer,
                rules=[Rule(when=When(items=">1", class_="critical"), to=order[-1])] if prefer == "rules" else [],
                buckets=draw(st.sampled_from([[], [[8], [16]]])),
                batch={order[0]: Batch(size=draw(st.integers(1, 4)), window_ms=draw(st.sampled_from([0, 5])))},
                timeout_ms=draw(st.none() | st.integers(5, 60)),
                breaker=draw(
                    st.none() | st.just(Breaker(window=4, min_calls=2, open_ms=20, permits=2, half_open_ms=30))
                ),
                failover=Failover(
                    to=order[-1],
                    share=draw(st.sampled_from([0.0, 0.3, 1.0])),
                    classes=draw(st.none() | st.lists(st.sampled_from(CLASSES), unique=True)),
                )
                if len(order) > 1
                else None,
            )
        )
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines=engines,
        stages=stages,
        max_requests=draw(st.integers(1, 12)),
        retry=Retry(attempts=draw(st.integers(1, 3)), reserve=draw(st.integers(0, 4))),
        classes={"sheddable": ClassLimits(floor=draw(st.sampled_from([0.0, 0.3])))},
    )
    known = draw(st.booleans())
    times = Milliseconds(mean=10.0, family="constant")
    latency = LatencyTable(
        entries=[
            Entry(variant=stage.name, engine=name, batch=1, latency_ms=times, basis="modelled")
            for stage in stages
            for name in names
        ]
    )
    return check(pipeline, "test"), latency if known else None


class Histories(RuleBasedStateMachine):
    """Any order of events that a shell can send, and some that it must not be able to do harm with."""

    @initialize(setup=pipelines())
    def start(self, setup: tuple[Pipeline, LatencyTable | None]) -> None:
        pipeline, latency = setup
        self.tables = lower(pipeline, latency)
        self.state = fresh(self.tables, pipeline.max_requests)
        self.buckets = [len(stage.buckets) + 1 for stage in pipeline.stages]
        self.now_ns = 0
        self.submitted = 0
        self.ended: list[int] = []
        self.rows: dict[int, int] = {}
        self.known = True

    def heard(self) -> None:
        for effect in self.state.effects[: self.state.counters[c.C_EFFECTS]]:
            if effect[c.F_KIND] == c.OUTCOME:
                self.ended.append(int(effect[c.F_TAG]))
                assert effect[c.F_C] >= 0
                assert effect[c.F_C] < c.FOREVER
            if effect[c.F_KIND] == c.DISPATCH:
                self._check_batch(int(effect[c.F_TAG]))
        assert len(set(self.ended)) == len(self.ended), "one outcome per request"

    def _check_batch(self, slot: int) -> None:
        batch = self.state.batches[slot]
        if batch[c.B_BUSY] == 0:
            return
        for request, epoch, _ in self.state.members[slot, : batch[c.B_COUNT]]:
            row = self.state.requests[request]
            if row[c.R_EPOCH] == epoch:
                assert row[c.R_BUCKET] == batch[c.B_BUCKET], "one bucket per batch"
                assert row[c.R_STAGE] == batch[c.B_STAGE]
                assert row[c.R_DEADLINE_NS] > self.now_ns, "nothing past its deadline is dispatched"

    @rule(
        priority=st.integers(0, 3),
        deadline_ms=st.none() | st.integers(0, 80),
        items=st.integers(1, 4),
        bucket=st.integers(0, 2),
        precision=st.sampled_from([0, 4]),
    )
    def arrive(self, priority: int, deadline_ms: int | None, items: int, bucket: int, precision: int) -> None:
        deadline_ns = c.FOREVER if deadline_ms is None else self.now_ns + deadline_ms * MS
        tag = self.submitted
        self.submitted += 1
        self.rows[tag] = desk.on_arrival(
            self.now_ns,
            self.tables,
            self.state,
            tag,
            priority,
            deadline_ns,
            items,
            bucket % self.buckets[0],
            -1,
            -1,
            precision,
        )
        self.heard()

    def busy(self) -> list[int]:
        return [int(slot) for slot in np.flatnonzero(self.state.batches[:, c.B_BUSY])]

    @precondition(lambda self: hasattr(self, "state") and self.busy())
    @rule(data=st.data(), fails=st.booleans(), items=st.integers(-1, 3), bucket=st.integers(0, 2))
    def batch_ends(self, data: st.DataObject, *, fails: bool, items: int, bucket: int) -> None:
        slot = data.draw(st.sampled_from(self.busy()))
        epoch = int(self.state.batches[slot, c.B_EPOCH])
        results = np.full((self.state.members.shape[1], 2), (items or 1, bucket % self.buckets[-1]), np.int64)
        if fails:
            assert desk.on_batch_failed(self.now_ns, self.tables, self.state, slot, epoch) == 0
        else:
            assert desk.on_batch_done(self.now_ns, self.tables, self.state, slot, epoch, results) == 0
        self.heard()

    @rule(ms=st.integers(0, 30))
    def time_passes(self, ms: int) -> None:
        until_ns = self.now_ns + ms * MS
        while (due_ns := desk.next_timer_ns(self.state)) <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            desk.on_timer(self.now_ns, self.tables, self.state)
            self.heard()
            assert desk.next_timer_ns(self.state) > self.now_ns, "a fired timer is not due again"
        self.now_ns = until_ns

    @rule(tag=st.integers(0, 40))
    def client_leaves(self, tag: int) -> None:
        row = self.rows.get(tag, -1)
        before = [array.tobytes() for array in self.state]
        answer = desk.on_cancel(self.now_ns, self.tables, self.state, row, tag)
        if answer == c.REFUSED:
            assert [array.tobytes() for array in self.state] == before
            assert tag in self.ended or tag >= self.submitted
        else:
            self.heard()

    @rule(engine=st.integers(0, 2), up=st.booleans())
    def engine_changes(self, engine: int, *, up: bool) -> None:
        before = [array.tobytes() for array in self.state]
        change = desk.on_engine_up if up else desk.on_engine_down
        if change(self.now_ns, self.tables, self.state, engine) == c.REFUSED:
            assert [array.tobytes() for array in self.state] == before
        else:
            self.heard()

    @rule(slot=st.integers(0, 5), epoch=st.integers(0, 3))
    def stale_result(self, slot: int, epoch: int) -> None:
        if slot < len(self.state.batches) and self.state.batches[slot, c.B_EPOCH] == epoch:
            return
        before = [array.tobytes() for array in self.state]
        results = np.ones((self.state.members.shape[1], 2), np.int64)
        assert desk.on_batch_done(self.now_ns, self.tables, self.state, slot, epoch, results) == c.REFUSED
        assert [array.tobytes() for array in self.state] == before

    @invariant()
    def state_is_whole(self) -> None:
        if hasattr(self, "state"):
            invariants.check(self.tables, self.state)
            self._nothing_idles_beside_work()

    def _nothing_idles_beside_work(self) -> None:
        for e, counts in enumerate(self.state.engines):
            idle = counts[c.N_INFLIGHT] < self.tables.engines[e, c.E_MAX_INFLIGHT]
            if counts[c.N_UP] and idle and counts[c.N_QUEUED]:
                assert self.state.timers[len(self.state.timers) // 2 + e] < c.FOREVER, "idle beside work only while a window is open"

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        for engine in range(len(self.state.engines)):
            if desk.on_engine_up(self.now_ns, self.tables, self.state, engine) != c.REFUSED:
                self.heard()
        for _ in range(1000):
            if not self.busy() and self.state.counters[c.C_IN_SYSTEM] == 0:
                break
            for slot in self.busy():
                epoch = int(self.state.batches[slot, c.B_EPOCH])
                results = np.ones((self.state.members.shape[1], 2), np.int64)
                results[:, 1] = 0
                desk.on_batch_done(self.now_ns, self.tables, self.state, slot, epoch, results)
                self.heard()
            self.now_ns = max(self.now_ns, min(desk.next_timer_ns(self.state), self.now_ns + 1000 * MS))
            desk.on_timer(self.now_ns, self.tables, self.state)
            self.heard()
        invariants.check(self.tables, self.state)
        invariants.check_idle(self.state)
        assert sorted(self.ended) == list(range(self.submitted)), "every request has exactly one outcome"


Histories.TestCase.settings = settings(
    deadline=None,
    max_examples=150 if os.environ.get("NUMBA_DISABLE_JIT") else 300,
    stateful_step_count=50,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestHistories = Histories.TestCase
