"""Evidence from metrics: what a live server shows, put together by hand."""

import numpy as np
import pytest

from loadslice.evaluate.diagnose import from_scrapes
from loadslice.evaluate.diagnose.rule import ask
from loadslice.evaluate.diagnose.rules import RULES
from loadslice.evaluate.scrape import Scrape
from loadslice.evaluate.watch.sensors import Sensed

DESCRIBED = {
    "host": {"backend": "python", "device": None, "slots": 2},
    "gpu": {"backend": "onnxruntime", "device": "CUDA", "slots": 1},
}


def scrape(at_s: float, **figures: float) -> Scrape:
    """Two engines after each other; keyword names are those of `KEYS`."""
    return Scrape(at_s, {KEYS[name]: value for name, value in figures.items()} | UP)


UP = {("loadslice_engine_up", (("engine", engine),)): 1.0 for engine in DESCRIBED}
KEYS = {
    "completed": ("loadslice_requests_total", (("outcome", "completed"), ("reason", "none"))),
    "expired": ("loadslice_requests_total", (("outcome", "expired"), ("reason", "deadline"))),
    "denied": ("loadslice_requests_total", (("outcome", "rejected"), ("reason", "retry_budget"))),
    "inside": ("loadslice_requests_inside", ()),
    "queue_gpu": ("loadslice_engine_queue_length", (("engine", "gpu"),)),
    "queue_host": ("loadslice_engine_queue_length", (("engine", "host"),)),
    "batches_gpu": ("loadslice_engine_batches_total", (("engine", "gpu"),)),
    "busy_gpu": ("loadslice_engine_busy_seconds_total", (("engine", "gpu"),)),
    "busy_host": ("loadslice_engine_busy_seconds_total", (("engine", "host"),)),
}


def found(scrapes, sensed=None, rollout=None, described=DESCRIBED):
    sensed = [None] * len(scrapes) if sensed is None else sensed
    findings, looked = ask(RULES, from_scrapes.evidence(scrapes, sensed, rollout, described))
    return {one.rule: one for one in findings}, {one.rule: one for one in looked}


def steady(seconds=20, rate=50, busy=0.7, **more):
    return [
        scrape(float(s), completed=rate * s, busy_gpu=busy * s, batches_gpu=rate * s, inside=3, queue_gpu=1, **more)
        for s in range(seconds + 1)
    ]


def test_a_steady_server_has_no_findings_and_says_what_metrics_cannot_tell() -> None:
    findings, looked = found(steady())
    assert findings == {}
    assert "journal" in looked["shape-change"].why
    assert looked["queue-growth"].looked
    assert looked["avalanche"].looked


def test_an_engine_of_python_stages_is_not_called_idle_and_one_of_models_is() -> None:
    findings, _ = found(steady(busy=0.1, busy_host=0.01))
    assert findings["low-utilisation"].figures["engine"] == "gpu"
    assert findings["low-utilisation"].figures["utilisation"] == pytest.approx(0.1)


def test_what_a_server_lost_is_named_though_it_was_before_the_first_look() -> None:
    lost = {
        ("loadslice_engine_downs_total", (("engine", "gpu"),)): 3.0,
        ("loadslice_requests_total", (("outcome", "failed"), ("reason", "engine_down"))): 37.0,
        ("loadslice_front_refusals_total", (("status", "415"),)): 20.0,
    }
    scrapes = [Scrape(one.at_s, one.values | lost) for one in steady(13)]
    findings, _ = ask(RULES, from_scrapes.evidence(scrapes, [None] * 14))
    assert [one.rule for one in findings[:4]] == ["engine-lost", "requests-lost", "requests-lost", "low-utilisation"]
    assert findings[0].figures == {"engine": "gpu", "downs": 3, "is_down": 0, "down_s": None}
    assert findings[1].symptom == f"37 of {13 * 50 + 57} requests failed (engine_down)"
    assert "none of it lost in the 13.0 s" in findings[1].evidence
    assert "refused (HTTP 415)" in findings[2].symptom
    scrapes[-1].values["loadslice_engine_up", (("engine", "host"),)] = 0.0
    assert ask(RULES, from_scrapes.evidence(scrapes, [None] * 14))[0][0].symptom == "engine 'host' is down"


def test_a_look_that_is_too_short_says_how_many_it_takes() -> None:
    _, looked = found(steady(5))
    assert "9 looks at a server or more" in looked["queue-growth"].why
    assert "a course over time of 5 steps" in looked["queue-growth"].why


def test_an_avalanche_on_a_live_server_begins_at_the_queue_that_rose_first() -> None:
    scrapes, completed, expired, denied, queue = [], 0.0, 0.0, 0.0, 1.0
    for second in range(40):
        ill = second >= 10
        completed += 10 if ill else 50
        expired += 30 if ill and second >= 12 else 0
        denied += 40 if ill and second >= 13 else 0
        queue = min(200.0, queue + 30) if ill else 1.0
        scrapes.append(
            scrape(
                float(second),
                completed=completed,
                expired=expired,
                denied=denied,
                inside=queue,
                queue_gpu=queue,
                queue_host=0.0,
                busy_gpu=0.9 * second,
                batches_gpu=completed,
            )
        )
    one = found(scrapes)[0]["avalanche"]
    assert one.figures["first_engine"] == "gpu"
    assert one.figures["first_what"] == "queue"
    assert 8 <= one.figures["first_at_s"] <= 11
    assert one.figures["retries_share"] > 0.3
    assert one.basis == "measured"


def sensed(power_w: float, utilisation: float) -> Sensed:
    return Sensed(60.0, power_w, 1, power_limit_w=300.0, gpu_utilisation=utilisation)


def test_a_card_at_its_limit_under_load_is_at_the_wall_and_one_below_it_is_not() -> None:
    scrapes = steady(3)
    wall, _ = found(scrapes, [sensed(120, 0.1), *[sensed(297, 0.98)] * 3])
    assert wall["power-wall"].figures["drawn_w"] == pytest.approx(297)
    assert "the driver" in wall["power-wall"].evidence
    assert "power-wall" not in found(scrapes, [sensed(240, 0.98)] * 4)[0]
    absent = Sensed(None, None, 1, absent={"power_w": "no energy counter"})
    assert "no energy counter" in found(scrapes, [absent] * 4)[1]["power-wall"].why


@pytest.mark.parametrize(("decision", "fires"), [("fail", True), ("pass", False)])
def test_a_rollout_whose_answers_differ_is_a_loss_of_precision_or_more(decision, fires) -> None:
    figures = {"pairs": 100, "different": 40, "distance_max": 0.2}
    rollout = {"analysis": {"outputs": {"decision": decision, "figures": figures}}}
    assert ("int8-loss" in found(steady(3), rollout=rollout)[0]) is fires


def test_a_restart_between_two_looks_is_no_negative_load() -> None:
    scrapes = steady(10)
    anew = [Scrape(one.at_s + 11, one.values) for one in steady(10)]
    evidence = from_scrapes.evidence([*scrapes, *anew], [None] * 22)
    assert evidence.timeline is not None
    assert (evidence.timeline.arrivals >= 0).all()
    assert np.isfinite(evidence.timeline.busy).all()
