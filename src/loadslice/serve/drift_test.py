"""The sampler keeps numbers of answers, within its rate and its room, and of nobody's shadow."""

import asyncio

import msgspec
import numpy as np
import pytest

from loadslice.serve.admin import Admin
from loadslice.serve.drift import ANSWERED, KEPT, DriftSampler
from loadslice.serve.request import Request
from loadslice.serve.rollout_watch import SHADOW_SOURCE
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Engine, Pipeline, Stage, check
from loadslice.spec.watch import Samples, Signal, WatchPlan
from loadslice.spec.work import Work

PIPELINE = check(
    Pipeline(
        version=1, pipeline="p", engines={"a": Engine(backend="python")},
        stages=[Stage(name="s", python="m:f", engine="a")],
    ),
    "test",
)  # fmt: skip
PLAN = WatchPlan(signals=[Signal(name="c", output="c", take="mean")], samples_per_s=10.0)


def answered(**changes) -> Request:
    request = Request(
        work=Work({"c": np.array([0.5], np.float32)}), bucket=0, priority=1, deadline_ns=0, source=None,
        source_index=-1,
        precision=0, id=None, input=None, received_ns=0, done=lambda ended: None,
    )  # fmt: skip
    request.outcome = Outcome.COMPLETED
    for name, value in changes.items():
        setattr(request, name, value)
    return request


class Sampled:
    def __init__(self, plan: WatchPlan = PLAN) -> None:
        self.now_s = 0.0
        self.sampler = DriftSampler(plan, PIPELINE, lambda: self.now_s)

    def end(self, **changes) -> None:
        self.sampler.ended(PIPELINE, answered(**changes), 5_000_000_000)


def test_an_answer_becomes_a_number_and_no_more() -> None:
    one = Sampled()
    one.end(version=1)
    found = one.sampler.since(0)
    assert found.samples[0].values == [0.5]
    assert (found.samples[0].version, found.samples[0].at_s, found.taken, found.basis) == ("canary", 5.0, 1, "measured")
    assert one.sampler.since(1).samples == []


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": Outcome.FAILED, "work": None},
        {"reason": Reason.DEGRADED},
        {"source": SHADOW_SOURCE},
        {"work": None},
    ],
    ids=["failed", "degraded", "shadow", "without an answer"],
)
def test_what_is_no_answer_of_the_pipelines_is_not_sampled(changes) -> None:
    one = Sampled()
    one.end(**changes)
    assert one.sampler.since(0).taken == 0


def test_a_flood_is_sampled_at_the_rate_of_the_plan() -> None:
    one = Sampled()
    for _ in range(10):
        one.now_s += 1.0
        for _ in range(500):
            one.end()
    assert 95 <= one.sampler.since(0).taken <= 110


def test_room_is_bounded_and_what_was_dropped_can_be_counted() -> None:
    one = Sampled(msgspec.structs.replace(PLAN, samples_per_s=10_000.0))
    for _ in range(KEPT + 500):
        one.now_s += 0.001
        one.end()
    found = one.sampler.since(0)
    assert found.taken == KEPT + 500
    assert found.samples[0].number == 501
    assert len(found.samples) == ANSWERED
    assert one.sampler.since(found.samples[-1].number).samples[-1].number == found.taken


def test_administration_gives_what_came_after_a_number_and_refuses_what_is_none() -> None:
    one, admin = Sampled(), Admin()
    one.sampler.administer(admin)
    one.end()
    status, document = asyncio.run(admin.answer("GET", "/admin/watch", b"after=0"))
    assert status == 200
    assert len(msgspec.convert(document, type=Samples).samples) == 1
    assert asyncio.run(admin.answer("GET", "/admin/watch", b"after=1"))[1]["samples"] == []
    for query in (b"after=x", b"after=-1", b"after=" + b"9" * 40, b"after=\xff"):
        assert asyncio.run(admin.answer("GET", "/admin/watch", query))[0] == 409
