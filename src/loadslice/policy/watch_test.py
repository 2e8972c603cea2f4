"""The watch has teeth: a core that breaks a promise is caught by what it says. Each test breaks one on purpose."""

import os
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from loadslice.policy import batching, deadlines, desk, events, routing
from loadslice.policy import columns as c
from loadslice.policy.desk_test import MS, one_stage
from loadslice.policy.layout import State, Tables
from loadslice.policy.tables import fresh, lower
from loadslice.policy.watch import follow
from loadslice.spec.pipeline import ClassLimits, Engine, Failover, Pipeline, Queue

pytestmark = pytest.mark.skipif(
    not os.environ.get("NUMBA_DISABLE_JIT"), reason="compiled code calls what it was compiled with"
)

HAS_BACKUP = one_stage(
    {"a": Engine(backend="twin", queue=Queue(limit=32, overflow_at=2)), "b": Engine(backend="twin")},
    failover=Failover(to="b", share=0.3),
)
HAS_FLOOR = msgspec.structs.replace(
    one_stage({"a": Engine(backend="twin", queue=Queue(limit=64))}), classes={"sheddable": ClassLimits(floor=0.05)}
)
ALONE = one_stage({"a": Engine(backend="twin")})


def journal(pipeline: Pipeline, *, gap_ms: int, deadline_ms: int | None = None) -> str:
    """What the watch says to 300 requests of every class, served in 10 ms each."""
    tables = lower(pipeline)
    state = fresh(tables, pipeline.max_requests)
    log = np.array(list(_decide(tables, state, gap_ms, deadline_ms)), np.int64)
    return follow(log, pipeline, tables, fresh(tables, pipeline.max_requests), look_every=1000)


def _decide(tables: Tables, state: State, gap_ms: int, deadline_ms: int | None) -> Iterator[list[int]]:
    draws = np.random.default_rng(0)
    results = np.tile(np.array([1, 0]), (state.members.shape[1], 1))
    now_ns = 0
    for tag in range(300):
        now_ns += int(draws.integers(1, 2 * gap_ms)) * MS
        for slot, batch in enumerate(state.batches):
            if batch[c.B_BUSY] and now_ns - batch[c.B_STARTED_NS] >= 10 * MS:
                yield [events.BATCH_DONE, now_ns, slot, int(batch[c.B_EPOCH]), *[0] * 9]
                yield from [[events.RESULT, now_ns, 1, 0, *[0] * 9]] * int(batch[c.B_COUNT])
                desk.on_batch_done(now_ns, tables, state, slot, int(batch[c.B_EPOCH]), results)
        deadline_ns = c.FOREVER if deadline_ms is None else now_ns + deadline_ms * MS
        request = (tag, int(draws.integers(0, 4)), deadline_ns, 1, 0, -1, -1, 0, 1, 0, -1)
        yield [events.ARRIVAL, now_ns, *request]
        desk.on_arrival(now_ns, tables, state, *request)


def sends_all(now_ns: int, tables: Tables, state: State, request: int, engine: int, _ahead: int) -> int:
    """In place of `routing.backup`: whatever the backup has room for."""
    target = int(tables.stages[state.requests[request, c.R_STAGE], c.S_FAILOVER_TO])
    return target if target != engine and routing.has_spare(now_ns, tables, state, request, target) else -1


def test_a_core_that_keeps_its_promises_is_believed() -> None:
    assert journal(HAS_BACKUP, gap_ms=6) == ""
    assert journal(HAS_FLOOR, gap_ms=5) == ""
    assert journal(ALONE, gap_ms=6, deadline_ms=1000) == ""


def test_all_overflow_at_the_backup_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "backup", sends_all)
    assert "(13) no more than its share" in journal(HAS_BACKUP, gap_ms=6)


def test_traffic_at_the_backup_that_is_no_overflow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "backup", sends_all)
    monkeypatch.setattr(routing, "is_overflow", lambda _now_ns, _tables, _state, _request, engine: engine == 0)
    assert "(13) only overflow goes to the backup" in journal(HAS_BACKUP, gap_ms=6)


def test_overflow_that_never_goes_to_the_backup_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "backup", lambda *_: -1)
    assert "(13) no less than its share" in journal(HAS_BACKUP, gap_ms=6)


def test_a_class_that_leads_by_more_than_its_floor_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is = batching.choose_class

    def lowest(now_ns: int, tables: Tables, state: State, engine: int) -> int:
        chosen = as_it_is(now_ns, tables, state, engine)
        for priority in range(c.CLASSES):
            if state.engines[engine, c.N_WAITING + priority] > 0:
                state.choice[priority] = batching.ready_lane(now_ns, tables, state, engine, priority)
        return 3 if state.choice[3] >= 0 else chosen

    monkeypatch.setattr(batching, "choose_class", lowest)
    assert "(6) a class overtakes a higher one only for its floor" in journal(HAS_FLOOR, gap_ms=5)


def test_despair_without_a_reason_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadslice.policy.routing.is_late", lambda *_: True)
    monkeypatch.setattr(deadlines, "may_be_tried", lambda *_: False)
    assert "SHED HOPELESS" in journal(ALONE, gap_ms=6, deadline_ms=1000)
