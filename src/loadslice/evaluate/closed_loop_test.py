import pytest

from loadslice.evaluate.checks import serving
from loadslice.evaluate.closed_loop import drive, flow, predict
from loadslice.evaluate.layers.knee import knee_of
from loadslice.evaluate.wire import Letter, Line
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Queue, Stage, check

TIMES = {"a": 10.0, "b": 5.0}
TABLE = LatencyTable(
    entries=[
        Entry(variant=name, engine=name, batch=1, latency_ms=Milliseconds(mean=ms, family="constant"), basis="modelled")
        for name, ms in TIMES.items()
    ]
)


def chain(inflight: int = 1, queue: int = 64) -> Pipeline:
    engines = {name: Engine(backend="twin", max_inflight=inflight, queue=Queue(limit=queue)) for name in TIMES}
    stages = [Stage(name=name, variant=name, engine=name) for name in TIMES]
    return check(Pipeline(version=1, pipeline="p", engines=engines, stages=stages), "test")


@pytest.mark.parametrize(
    ("clients", "per_s", "mean_ms"),
    [(1, 1000 / 15, 15.0), (2, 100.0, 20.0), (8, 100.0, 80.0)],
)
def test_a_chain_with_constant_times_does_what_the_asymptotes_say(clients: int, per_s: float, mean_ms: float) -> None:
    found = predict(chain(), TABLE, ["x"], clients, 12 * clients + 40, seed=0)
    assert found.throughput_per_s == pytest.approx(per_s, rel=0.01)
    assert found.mean_ms == pytest.approx(mean_ms, rel=0.02)
    assert found.refused == found.failed == 0


def test_two_slots_do_twice_as_much() -> None:
    found = predict(chain(inflight=2), TABLE, ["x"], 8, 160, seed=0)
    assert found.throughput_per_s == pytest.approx(200.0, rel=0.02)


def test_refused_clients_come_back_and_are_counted() -> None:
    found = predict(chain(queue=1), TABLE, ["x"], 8, 160, seed=0)
    assert found.refused > 0
    assert found.throughput_per_s == pytest.approx(100.0, rel=0.1)


def test_the_knee_of_a_chain_is_its_saturation_point() -> None:
    flows = [predict(chain(), TABLE, ["x"], clients, 200, seed=0) for clients in (1, 2, 4)]
    knee = knee_of(flows)
    assert knee is not None
    assert knee.throughput_per_s == pytest.approx(100.0, rel=0.02)
    assert knee.clients == pytest.approx(1.5, rel=0.02)
    assert knee.clients_most_power == 2


def test_a_knee_needs_two_steps() -> None:
    assert knee_of([predict(chain(), TABLE, ["x"], 1, 30, seed=0)]) is None


@pytest.mark.live
def test_a_live_loop_keeps_as_many_requests_open_as_it_has_clients() -> None:
    letters = [Letter("x", b"200 10|fine", {"x-request-id": "1"})]
    with serving() as server:
        heards = drive(lambda: Line(f"{server.url}/work", 5.0), letters, 3, for_s=60.0, requests_max=30)
    assert len(heards) == 30
    assert all(one.completed and one.body == b"fine" and (one.whole_ms or 0) >= 10 for one in heards)
    found = flow(3, heards)
    assert found.failed == found.refused == 0
    assert found.throughput_per_s is not None
    assert 30 < found.throughput_per_s < 301


@pytest.mark.live
def test_clients_give_up_when_nobody_is_there() -> None:
    with serving() as server:
        gone = server.url
    heards = drive(lambda: Line(f"{gone}/work", 1.0), [Letter("x", b"", {})], 2, for_s=5.0)
    assert {one.error for one in heards} == {"refused"}
    assert len(heards) <= 8
