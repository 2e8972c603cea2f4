import numpy as np
import pytest

from loadslice.serve.console.recent import (
    LISTED_MAX,
    LOOKED_AT,
    NAMED_MAX,
    NOTABLE_MAX,
    ORDINARY_PER_TURN,
    Recent,
    told,
)
from loadslice.serve.request import Passage, Request
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Engine, Pipeline, Stage
from loadslice.spec.work import Work

PIPELINE = Pipeline(
    version=1,
    pipeline="p",
    engines={"e": Engine(backend="onnxruntime")},
    stages=[Stage(name="s", model="m.onnx", engine="e")],
)


def request(tag: int, took_ns: int = 1000, outcome: Outcome = Outcome.COMPLETED, name: str | None = None) -> Request:
    return Request(
        Work({"x": np.zeros((1, 4), np.float32)}),
        bucket=0,
        priority=1,
        deadline_ns=10**9,
        source=None,
        source_index=0,
        precision=0,
        id=name,
        input=None,
        received_ns=tag,
        done=lambda _: None,
        tag=tag,
        arrival_ns=tag + 10,
        outcome=outcome,
        reason=Reason.NONE if outcome is Outcome.COMPLETED else Reason.DEADLINE,
        stage=0,
        end_ns=tag + took_ns,
        passages=[Passage(0, 0, Reason.PREFERRED, 0, 1, tag + 10, started_ns=tag + 20, copy_ns=5, compute_ns=7)],
    )


@pytest.fixture
def recent() -> Recent:
    return Recent()


def test_of_ordinary_requests_only_some_of_each_second_are_kept(recent: Recent) -> None:
    for tag in range(LOOKED_AT):
        assert recent.room > 0
        recent.ended(PIPELINE, request(tag))
    assert recent.room == 0
    assert len(recent.last(notable=False)) == ORDINARY_PER_TURN
    assert len(recent.turn()) == LOOKED_AT
    assert len(recent.turn()) == 0
    recent.ended(PIPELINE, request(5000))
    assert recent.last(notable=False)[0].tag == 5000


def test_what_failed_is_not_pushed_out_by_what_went_well(recent: Recent) -> None:
    recent.ended(PIPELINE, request(1, outcome=Outcome.EXPIRED))
    for tag in range(2, 3000):
        recent.ended(PIPELINE, request(tag, name=f"r{tag}"))
    assert recent.find("1") is not None
    assert recent.find("r2999") is not None
    assert recent.find(f"r{2999 - NAMED_MAX}") is None


def test_without_room_those_with_an_id_and_those_that_failed_are_kept_still(recent: Recent) -> None:
    recent.room = 0
    recent.ended(PIPELINE, request(1, name="named"))
    recent.ended(PIPELINE, request(2, outcome=Outcome.SHED))
    assert [one.tag for one in recent.last(notable=False)] == [2, 1]
    assert len(recent.turn()) == 0


def test_what_took_longer_than_usual_calls_for_a_look(recent: Recent) -> None:
    recent.slow_ns = 500
    recent.ended(PIPELINE, request(1, took_ns=499))
    recent.ended(PIPELINE, request(2, took_ns=500))
    assert [one.tag for one in recent.last(notable=True)] == [2]


def test_the_rings_are_bounded_and_hold_no_tensors(recent: Recent) -> None:
    for tag in range(3 * NOTABLE_MAX):
        recent.ended(PIPELINE, request(tag, outcome=Outcome.FAILED))
    assert recent.find("0") is None
    assert recent.find(str(3 * NOTABLE_MAX - 1)) is not None
    listed = recent.last(notable=True)
    assert len(listed) == LISTED_MAX
    assert [one.tag for one in listed] == sorted((one.tag for one in listed), reverse=True)
    assert not any(isinstance(value, Work) for one in listed for value in one)


def test_the_story_tells_each_stage(recent: Recent) -> None:
    recent.ended(PIPELINE, request(7, took_ns=2_000_000, outcome=Outcome.EXPIRED, name="<b>id</b>"))
    kept = recent.find("<b>id</b>")
    assert kept is not None
    story = told(kept)
    assert (story["outcome"], story["reason"], story["took_ms"]) == ("expired", "deadline", 2.0)
    (stage,) = story["stages"]
    assert (stage["stage"], stage["engine"], stage["placed"]) == ("s", "e", "preferred")
    assert stage["compute_ms"] == pytest.approx(7e-6)


@pytest.mark.parametrize("name", ["", "-1", "1e3", "9" * 40, "\u0663", "x" * 10_000])
def test_a_name_that_nobody_has_finds_nothing(recent: Recent, name: str) -> None:
    recent.ended(PIPELINE, request(3))
    assert recent.find(name) is None
