"""The rule of the knee, what both sides are asked, and what an error of it means."""

import msgspec
import pytest

from loadslice.evaluate.closed_loop import Flow, predict
from loadslice.evaluate.layers import knee, ramp
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Letter
from loadslice.spec.evaluation_report import Knee
from loadslice.spec.files import stamp
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Engine, Pipeline, Queue, Stage, check

PIPELINE = check(
    Pipeline(
        version=1,
        pipeline="p",
        engines={"a": Engine(backend="onnxruntime", max_inflight=2, queue=Queue(limit=256))},
        stages=[Stage(name="a", variant="a", engine="a")],
    ),
    "test",
)


def table(front_cpu_ms: float = 0.0, outside_ms: float = 0.0) -> LatencyTable:
    times = Milliseconds(mean=10.0, family="constant")
    made = stamp("latency/1", inputs={})
    return LatencyTable(
        entries=[Entry(variant="a", engine="a", batch=1, latency_ms=times, contended_ms=times, basis="measured")],
        overhead_ms=Milliseconds(samples=[outside_ms, outside_ms]),
        overhead_cpu_ms=front_cpu_ms,
        stamp=msgspec.structs.replace(made, machine={**made.machine, "cpus": 2}),
    )


def step(clients: int, per_s: float, mean_ms: float = 10.0, refused: int = 0) -> Flow:
    return Flow(clients, per_s, mean_ms, mean_ms, 100, refused, 0)


def subject(count: int = 8) -> Subject:
    letters = [Letter(f"x{number}", b"", {}) for number in range(count)]
    return Subject("s", "http://x/", letters, {}, None, False, 5.0, pipeline=PIPELINE, table=table())


CURVE = [step(1, 100), step(2, 190), step(3, 199), step(4, 200), step(8, 202), step(16, 203)]


def test_a_ramp_ends_at_the_doubling_that_brings_nothing_and_steps_between_doublings_end_none() -> None:
    assert knee.end_of(CURVE) == 8
    assert knee.end_of(CURVE[:4]) is None
    assert knee.over([step(1, 100), step(2, 190, refused=5)]) == "the server began to refuse"


def test_the_knee_is_read_at_the_step_that_is_named_so_that_two_curves_are_read_alike() -> None:
    by_itself, named = knee.knee_of(CURVE), knee.knee_of(CURVE, 16)
    assert by_itself is not None
    assert named is not None
    assert by_itself.throughput_per_s == pytest.approx(201.0)
    assert named.throughput_per_s == pytest.approx(202.5)
    assert named.clients == pytest.approx(2.025)


def test_a_knee_needs_one_client_and_a_doubling() -> None:
    assert knee.knee_of([step(2, 190), step(4, 200)]) is None
    assert knee.knee_of([step(1, 100)]) is None


def test_steps_are_finer_around_the_predicted_knee_and_the_prediction_knows_them_all() -> None:
    told = knee.forecast(subject(), step_s=1.0, clients_max=16, seed=0)
    assert told.steps(16) == [1, 2, 3, 4, 8, 16]
    assert sorted(told.flows) == told.steps(16)
    assert told.flows[8].throughput_per_s == pytest.approx(200.0, rel=0.01)


def test_a_step_counts_whole_turns_of_its_inputs() -> None:
    for clients in (1, 5, 16):
        counted = knee.requests_of(clients, 24, 100.0) - 2 * clients
        assert counted > 0
        assert counted % 24 == 0
        assert counted >= 4 * clients - 12


def test_inputs_that_one_client_cannot_get_through_are_thinned_evenly() -> None:
    letters = [Letter(str(number), b"", {}) for number in range(100)]
    chosen = knee.in_a_step(letters, 50.0, 1.0)
    assert [letter.input for letter in chosen] == [str(number) for number in range(0, 100, 2)]
    assert knee.in_a_step(letters[:24], 1.0, 1.0) == letters[:24]


def test_a_placement_without_a_profile_is_not_predicted_and_says_so() -> None:
    mine = subject()
    mine.table = None
    told = knee.forecast(mine, step_s=1.0, clients_max=8, seed=0)
    assert told.flows == {}
    assert told.unpredicted is not None
    assert told.steps(8) == [1, 2, 4, 8]


def test_as_many_clients_as_cores_are_not_crowded_by_their_own_fronts() -> None:
    alone = predict(PIPELINE, table(), ["x"], 2, 100, seed=0)
    fronts = predict(PIPELINE, table(front_cpu_ms=2.0), ["x"], 2, 100, seed=0)
    assert fronts.throughput_per_s == pytest.approx(alone.throughput_per_s)


def test_many_clients_share_the_cores_with_their_fronts() -> None:
    alone = predict(PIPELINE, table(), ["x"], 16, 400, seed=0)
    fronts = predict(PIPELINE, table(front_cpu_ms=2.0), ["x"], 16, 400, seed=0)
    assert alone.throughput_per_s is not None
    assert fronts.throughput_per_s is not None
    assert 0.8 < fronts.throughput_per_s / alone.throughput_per_s < 0.9


def test_a_machine_that_became_slower_misses_the_rate_and_not_the_clients() -> None:
    slower = 1.1
    found = ramp.Ramp(
        predicted=CURVE,
        knee_foretold=Knee(clients=2.0, throughput_per_s=200.0, clients_most_power=2),
        knee=Knee(clients=2.0, throughput_per_s=200.0 / slower, clients_most_power=2),
        lone_ms=[10.0 * slower] * 3,
    )
    assert found.knee_error == pytest.approx(0.1)
    assert found.clients_error == pytest.approx(0.0)
    assert found.drift == pytest.approx(0.1)


def test_runs_of_one_step_are_averaged_and_an_unanswered_one_says_nothing() -> None:
    silent = Flow(2, None, None, None, 0, 0, 4)
    mean = knee.mean_of([step(2, 100.0), step(2, 110.0), silent])
    assert mean.throughput_per_s == pytest.approx(105.0)
    assert (mean.answers, mean.failed) == (200, 4)
