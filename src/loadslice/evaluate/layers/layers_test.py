"""Layers on answers that were made for them."""

import numpy as np
import polars as pl
import pytest

from loadslice.evaluate.checks import serving
from loadslice.evaluate.closed_loop import drive
from loadslice.evaluate.layers import abnormal, aged, attribution, correctness, lone, soak
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.slope import Slope
from loadslice.evaluate.wire import Heard, Letter, StageTime, stage_times
from loadslice.spec.journal import EVENT_COLUMNS, REQUEST_COLUMNS, STAGE_COLUMNS, Journal, JournalHead


def subject(url: str, body: bytes, timeout_s: float = 5.0) -> Subject:
    letters = [Letter("x", body, {"x-request-id": "1", "content-type": "text/plain"})]
    return Subject("a", f"{url}/work", letters, {}, None, False, timeout_s)


def heard(number: int) -> Heard:
    stages = (StageTime("s", 0.5, 0.25, 8.0),)
    return Heard("x", f"lone-{number}", 200, whole_ms=10.0, first_ms=9.0, engines=("e",), stages=stages)


def journal() -> Journal:
    """Ten requests: 0.2 ms in the front, 9 ms inside, of which 0.3 ms in a queue."""
    ns = 1_000_000
    requests = pl.DataFrame(
        [
            {
                "tag": tag, "id": f"lone-{tag}", "arrival_ns": 0, "end_ns": 9 * ns, "outcome": "completed",
                "parse_ns": ns // 10, "reply_ns": ns // 10,
            }
            for tag in range(10)
        ],
        schema=REQUEST_COLUMNS,
    )  # fmt: skip
    stages = pl.DataFrame(
        [
            {"tag": tag, "stage": "s", "engine": "e", "enqueued_ns": 0, "dispatched_ns": 3 * ns // 10}
            for tag in range(10)
        ],
        schema=STAGE_COLUMNS,
    )
    head = JournalHead(
        schema="journal/2", pipeline="p", basis="measured", requests=10, outcomes={}, clean=True, span_ns=1,
        pipeline_yaml="",
    )  # fmt: skip
    return Journal(head=head, requests=requests, stages=stages, events=pl.DataFrame(schema=EVENT_COLUMNS))


def test_parts_of_the_latency_add_up_to_it() -> None:
    found = attribution.attribute(lone.Lone([heard(number) for number in range(10)], transport_ms=0.7), journal())
    assert found is not None
    assert found.parts_ms == pytest.approx(
        {"compute": 8.0, "copy": 0.25, "queueing": 0.3, "scheduling": 0.45, "front": 0.2, "transport": 0.7}
    )
    assert found.unexplained_ms == pytest.approx(0.1)
    assert attribution.passed(found) is True


def test_time_that_nobody_explains_is_told_and_does_not_pass() -> None:
    found = attribution.attribute(lone.Lone([heard(number) for number in range(10)], transport_ms=0.1), journal())
    assert found is not None
    assert found.unexplained_share == pytest.approx(0.07)
    assert attribution.passed(found) is False


def test_without_a_journal_what_replies_say_is_attributed_and_not_judged() -> None:
    found = attribution.attribute(lone.Lone([heard(1)], transport_ms=0.5), None)
    assert found is not None
    assert found.parts_ms["queueing"] == 0.5
    assert found.parts_ms["front"] is None
    assert attribution.passed(found) is None


def test_a_server_that_tells_no_stages_cannot_be_attributed() -> None:
    assert attribution.attribute(lone.Lone([Heard("x", status=200, whole_ms=1.0)]), None) is None


def test_the_timing_header_is_read_and_nonsense_in_it_is_left_out() -> None:
    found = stage_times(
        "a;queue=1.5;copy=0.1;compute=2, b;moved, c;queue=x;copy=1;compute=1, ;queue=1;copy=1;compute=1"
    )
    assert found == (StageTime("a", 1.5, 0.1, 2.0),)


@pytest.mark.parametrize(
    ("status", "error", "fate"),
    [
        (200, None, "answered"),
        (400, None, "refused"),
        (429, None, "refused"),
        (503, None, "refused"),
        (500, None, "failed"),
        (302, None, "failed"),
        (None, "hung", "hung"),
        (None, "dropped", "dropped"),
        (200, "too_long", "hung"),
    ],
)
def test_what_becomes_of_bad_input(status: int | None, error: str | None, fate: str) -> None:
    assert abnormal.fate_of(Heard("x", status=status, error=error)) == fate


@pytest.mark.live
def test_a_server_that_blames_itself_for_bad_input_does_not_pass() -> None:
    with serving() as server:
        found = abnormal.measure(subject(server.url, b'200|{"outputs": []}'))
    failed = {one.name for one in found.tried if one.fate == "failed"}
    assert "random bytes" in failed
    assert all(one.recovered for one in found.tried)
    assert found.alive
    assert not abnormal.passed(found)


@pytest.mark.live
def test_lone_requests_are_repeated_until_their_interval_is_small_or_it_is_said() -> None:
    with serving() as server:
        found = lone.measure(subject(server.url, b"200 5|y"), requests=20, repeats=3, for_s=10.0, seed=0)
    assert 1 <= found.repeats <= 3
    assert len(found.heards) == 20 * found.repeats
    assert (found.median_ms or 0) >= 5
    assert found.small or found.repeats == 3


@pytest.mark.live
def test_answers_are_taken_twice_and_compared() -> None:
    body = b'200|{"outputs": [{"name": "y", "data": [1.0, 2.0, null]}]}'
    with serving() as server:
        found, heards = correctness.measure(subject(server.url, body))
    assert len(heards) == 2
    assert found.not_finite == 1
    assert found.repeats_differ == 0
    assert found.metric is None
    assert not correctness.passed(found)


def test_answers_under_load_that_differ_from_lone_ones_are_counted_by_path() -> None:
    found = correctness.Correctness(outputs={"x": {"y": np.arange(16.0)}})
    right = b'{"outputs": [{"name": "y", "data": [%s]}]}' % ",".join(str(float(n)) for n in range(16)).encode()
    wrong = right.replace(b"15.0", b"18.0")
    heards = [Heard("x", status=200, body=body, engines=(engine,)) for body, engine in
              ((right, "npu"), (right, "cpu"), (wrong, "cpu"))]  # fmt: skip
    loaded = correctness.under_load(found, heards, "int8")
    assert loaded["answers"] == 3
    assert loaded["paths"] == {"npu": {"answers": 1, "differing": 0}, "cpu": {"answers": 2, "differing": 1}}


@pytest.mark.parametrize(
    ("slope", "limit", "surely"),
    [(Slope(5, 3, 7), 2.0, True), (Slope(5, 1, 9), 2.0, False), (Slope(-5, -9, -1), 0.0, False), (None, 1.0, None)],
)
def test_a_slope_counts_only_with_its_whole_interval(slope: Slope | None, limit: float, surely: bool | None) -> None:
    assert soak.surely_above(slope, limit) is surely


@pytest.mark.parametrize(
    ("ratios", "older"),
    [
        ([1.2] * 12, True),
        ([1.2] * 10 + [1.04, 1.0], True),  # little against, in two rounds
        ([1.2] * 10 + [0.8, 0.8], False),
        ([1.04] * 12, False),
        # Of a server that had not changed, on a machine with 16 programs for 2 processors.
        ([1.15, 0.93, 1.11, 1.65, 0.96, 1.41, 1.20, 1.18, 0.82, 0.79, 1.43, 1.5], False),
        ([1.2] * 11, None),  # too few rounds
    ],
)
def test_a_server_is_older_only_if_the_rounds_agree(ratios: list[float], older: bool | None) -> None:
    assert aged.is_older(ratios) is older


@pytest.mark.live
def test_an_aged_server_is_told_from_a_fresh_one() -> None:
    with serving(ages_ms=0.5) as old, serving(ages_ms=0.5) as fresh:
        slow, quick = subject(old.url, b"200 1|y"), subject(fresh.url, b"200 1|y")
        drive(slow.line, slow.letters, 8, for_s=60.0, requests_max=100)
        found = aged.ratios(slow, quick, slow.letters, 1, round_s=0.02)
    assert aged.is_older(found) is True


@pytest.mark.live
def test_two_equal_servers_are_equally_old() -> None:
    with serving() as old, serving() as fresh:
        one, other = subject(old.url, b"200 20|y"), subject(fresh.url, b"200 20|y")
        found = aged.ratios(one, other, one.letters, 1, round_s=0.1)
    assert aged.is_older(found) is False


def test_a_gauge_is_found_in_a_metrics_page() -> None:
    page = b'# TYPE a gauge\na 3.0\nb{engine="x"} 2\n'
    assert soak.gauge(page, "a") == 3.0
    assert soak.gauge(page, "b") is None
