"""Every rule fires where it should and is silent where it should be."""

from collections.abc import Callable

import msgspec
import pytest

from loadslice.evaluate.answers import Difference
from loadslice.evaluate.closed_loop import Flow
from loadslice.evaluate.layers.abnormal import Abnormal, Fate, Tried
from loadslice.evaluate.layers.attribution import Attribution
from loadslice.evaluate.layers.correctness import Correctness
from loadslice.evaluate.layers.lone import Lone
from loadslice.evaluate.layers.ramp import Ramp
from loadslice.evaluate.layers.soak import Soak
from loadslice.evaluate.rules import COMPARATIVE, fired
from loadslice.evaluate.rules_alone import ABSOLUTE
from loadslice.evaluate.seen import Seen
from loadslice.evaluate.slope import Slope
from loadslice.evaluate.wire import Heard
from loadslice.spec.evaluation import Evaluation, Floors, Placement
from loadslice.spec.evaluation_report import Knee
from loadslice.spec.report import Interval

WANTED = Evaluation(version=1, placements=[Placement(name="a", url="http://a"), Placement(name="b", url="http://b")])
SAME = Difference(True, True, 0.0, 1.0, 0.0, 0.0, 0, False)
Change = Callable[[Seen], object]


def heard(first_ms: float, whole_ms: float) -> Heard:
    return Heard("x", status=200, first_ms=first_ms, whole_ms=whole_ms)


def seen(name: str) -> Seen:
    """A placement about which there is nothing to say."""
    return Seen(
        Placement(name=name, url=f"http://{name}"),
        reference=name == "a",
        devices=["npu"],
        correctness=Correctness(inputs=8, metric=0.9, alike="identical", differences=[SAME] * 8, paths={"npu": 8}),
        loaded={"answers": 100, "differing": 0, "paths": {}},
        lone=Lone([heard(10, 10)] * 20, interval=Interval(low=9.9, high=10.1), small=True),
        ramp=Ramp(
            knee=Knee(clients=2, throughput_per_s=100.0, clients_most_power=2),
            knee_foretold=Knee(clients=2, throughput_per_s=101.0, clients_most_power=2),
            busy={"npu": 0.9},
            measured=[Flow(1, 50.0, 10.0, 11.0, 50, 0, 0)],
        ),
        soak=Soak(
            heards=[heard(10, 10)] * 100,
            latency=Slope(1, -1, 2),
            latency_ms=10.0,
            decays=False,
            grows=False,
            left_inside=0.0,
            memory=Slope(1, -1, 2),
        ),
        abnormal=Abnormal([tried("refused")]),
        attribution=Attribution(
            20,
            10.0,
            {"compute": 9.0, "copy": 0.1, "queueing": 0.1, "scheduling": 0.2, "front": 0.3, "transport": 0.2},
            0.1,
            {},
            None,
            from_journal=True,
        ),
        cost_per_hour=1.0,
    )


def tried(fate: Fate, *, recovered: bool = True, not_finite: bool = False) -> Tried:
    return Tried("case", "hostile", fate, 400, 1.0, not_finite, recovered, 10.0)


def codes(wanted: Evaluation, *changes: Change) -> set[str]:
    """Codes that fire for ``b`` beside an ordinary ``a``."""
    other = seen("b")
    for change in changes:
        change(other)
    return {rule.code for rule in fired([seen("a"), other], wanted) if rule.placement == "b"}


def differ(alike: str) -> Change:
    return lambda one: [setattr(one.correctness, "alike", alike)]


def rate(per_s: float) -> Change:
    return lambda one: setattr(one.ramp, "knee", Knee(clients=2, throughput_per_s=per_s, clients_most_power=2))


def slower(ms: float) -> Change:
    def change(one: Seen) -> None:
        one.lone = Lone([heard(ms, ms)] * 20, interval=Interval(low=ms - 0.1, high=ms + 0.1))

    return change


def put(part: str, **values: object) -> Change:
    """Set fields of a part of what was seen."""

    def change(one: Seen) -> None:
        for key, value in values.items():
            setattr(getattr(one, part) if part else one, key, value)

    return change


QUIET = {"outputs-identical", "no-benefit"}
"""What is said of a placement that is like the reference in everything."""


def test_a_placement_like_the_reference_is_said_to_bring_nothing() -> None:
    assert codes(WANTED) == QUIET


FIRES: dict[str, list[Change]] = {
    "not-run": [put("", state="not_run", why="no such runtime")],
    "died": [put("", state="died", why="it ended")],
    "outputs-identical": [],
    "outputs-slightly-different": [differ("slightly")],
    "outputs-clearly-different": [differ("clearly")],
    "not-finite": [put("correctness", not_finite=3)],
    "unanswered": [put("correctness", unanswered=["x"])],
    "degraded-operators": [put("correctness", paths={"npu": 6, "cpu": 2})],
    "load-changes-answers": [put("", loaded={"answers": 100, "differing": 1, "paths": {}})],
    "metric-lost": [put("correctness", metric=0.85)],
    "throughput-down": [rate(90.0)],
    "latency-up": [slower(12.0)],
    "throughput-up-first-later": [rate(150.0), slower(14.0)],
    "throughput-flat-device-idle": [put("ramp", busy={"npu": 0.5})],
    "no-dual-bank-gain": [put("", devices=["npu.bank0", "npu.bank1"])],
    "decay": [put("soak", rises=True, decays=True, aged_ratios=[1.3] * 8)],
    "machine-slowed": [put("soak", rises=True, decays=False, aged_ratios=[1.0] * 8)],
    "rise-unexplained": [put("soak", rises=True, decays=None)],
    "growth": [put("soak", grows=True)],
    "starvation": [put("soak", starved=["soak-1 waited 9000 ms"])],
    "errors-under-load": [put("soak", failed=5)],
    "weak-recovery": [put("", abnormal=Abnormal([tried("hung")]))],
    "bad-input-blamed-on-server": [put("", abnormal=Abnormal([tried("failed")]))],
    "not-finite-passed-on": [put("", abnormal=Abnormal([tried("answered", not_finite=True)]))],
    "scheduling-dominates": [
        put("attribution", parts_ms={"compute": 4.0, "copy": 1.0, "queueing": 1.0, "scheduling": 3.0, "front": 0.5,
                                     "transport": 0.5}),
    ],
    "knee-mispredicted": [put("ramp", knee_foretold=Knee(clients=2, throughput_per_s=120.0, clients_most_power=2))],
    "attribution-open": [put("attribution", unexplained_ms=0.5)],
    "no-benefit": [],
    "pays": [put("", cost_per_hour=0.5)],
    "replay-slower": [],
    "limit-missed": [slower(12.0)],
}  # fmt: skip

SILENT: dict[str, list[Change]] = {
    "outputs-identical": [differ("slightly")],
    "metric-lost": [put("correctness", metric=0.895)],
    "throughput-down": [rate(96.0)],
    "latency-up": [slower(10.4)],
    "decay": [put("soak", rises=True, decays=False, aged_ratios=[1.0] * 8)],
    "machine-slowed": [put("soak", rises=True, decays=None)],
    "rise-unexplained": [put("soak", rises=False, decays=False)],
    "throughput-up-first-later": [rate(150.0)],
    "throughput-flat-device-idle": [put("ramp", busy={"npu": 0.85})],
    "no-dual-bank-gain": [put("", devices=["npu.bank0", "npu.bank1"]), rate(120.0)],
    "errors-under-load": [put("soak", failed=1)],
    "attribution-open": [put("attribution", unexplained_ms=0.19)],
    "no-benefit": [rate(120.0)],
    "pays": [put("", cost_per_hour=0.98)],
    "limit-missed": [slower(10.0)],
}
"""Just short of firing; for rules not named here the ordinary placement is that."""


@pytest.mark.parametrize("code", [code for code in FIRES if code != "replay-slower"])
def test_each_rule_fires(code: str) -> None:
    wanted = msgspec.structs.replace(WANTED, floors=Floors(p95_ms=11.0)) if code == "limit-missed" else WANTED
    assert code in codes(wanted, *FIRES[code])


@pytest.mark.parametrize("code", [code for code in FIRES if code not in QUIET or code in SILENT])
def test_each_rule_is_silent_just_short_of_it(code: str) -> None:
    wanted = msgspec.structs.replace(WANTED, floors=Floors(p95_ms=11.0))
    assert code not in codes(wanted, *SILENT.get(code, []))


def test_recorded_traffic_that_waits_longer_fires_and_offline_only_warns() -> None:
    before, after = seen("a"), seen("b")
    before.replay, after.replay = {"latency_ms_p95": 20.0}, {"latency_ms_p95": 22.0}
    found = {rule.code: rule.effect for rule in fired([before, after], WANTED)}
    assert found["replay-slower"] == "regression"
    offline = msgspec.structs.replace(WANTED, scenario="offline")
    assert {rule.code: rule.effect for rule in fired([before, after], offline)}["replay-slower"] == "warning"
    after.replay = {"latency_ms_p95": 20.5}
    assert "replay-slower" not in {rule.code for rule in fired([before, after], WANTED)}


def test_a_latency_whose_interval_reaches_the_floor_is_too_close_to_call() -> None:
    other = seen("b")
    other.lone = Lone([heard(11, 11)] * 20, interval=Interval(low=10.4, high=11.6))
    assert "latency-up" not in {rule.code for rule in fired([seen("a"), other], WANTED)}


def test_every_rule_is_tried_here() -> None:
    assert len(FIRES) == len(ABSOLUTE) + len(COMPARATIVE)
