import contextlib
import json
import logging
import os
import sys

import msgspec
import pytest

from loadslice.serve import logs
from loadslice.serve.request import Passage, Request
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline, check

PIPELINE = check(
    msgspec.yaml.decode(
        """
version: 1
pipeline: p
engines: {a: {backend: python}, b: {backend: python}}
stages:
  - {name: first, python: "m:f", engines: [a, b]}
  - {name: second, python: "m:g", engine: b}
""",
        type=Pipeline,
    ),
    "p",
)
MS = 1_000_000


def ended(outcome: Outcome = Outcome.COMPLETED, reason: Reason = Reason.NONE, took_ms: int = 30) -> Request:
    request = Request(
        None, 0, 1, 10**15, "api", -1, 0, "mine", None, 100 * MS, lambda _: None, 1, "shop", 0,
        tag=7, arrival_ns=101 * MS, outcome=outcome, reason=reason, end_ns=(100 + took_ms) * MS, stage=1,
    )  # fmt: skip
    request.passages = [
        Passage(0, 1, Reason.PREFERRED, 0, 1, 101 * MS, 102 * MS, 103 * MS, 2 * MS, 5 * MS, 110 * MS, 4),
        Passage(1, 1, Reason.PREFERRED, 0, 1, 110 * MS),
    ]
    return request


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_story_has_every_stage_and_unknown_is_null() -> None:
    told = logs.story(PIPELINE, ended(Outcome.EXPIRED, Reason.DEADLINE))
    assert (told["outcome"], told["reason"], told["ended_at_stage"], told["took_ms"]) == (
        "expired", "deadline", "second", 30.0
    )  # fmt: skip
    first, second = told["stages"]
    assert first == {
        "stage": "first", "engine": "b", "placed": "preferred", "queue_ms": 2.0, "copy_ms": 2.0, "compute_ms": 5.0,
        "batch_rows": 4,
    }  # fmt: skip
    assert (second["queue_ms"], second["compute_ms"], second["batch_rows"]) == (20.0, None, None)
    json.dumps(told)


@pytest.mark.parametrize(
    ("slow_ms", "request_", "is_told"),
    [
        (None, ended(), False),
        (None, ended(Outcome.SHED, Reason.HOPELESS), True),
        (30, ended(), True),
        (31, ended(), False),
    ],
)
def test_only_what_failed_or_was_slow_is_told(slow_ms, request_: Request, is_told: bool, caplog) -> None:
    with caplog.at_level(logging.WARNING, "loadslice.request"):
        logs.Stories(slow_ms).ended(PIPELINE, request_, 0)
    assert bool(caplog.records) is is_told


def test_a_flood_is_bounded_and_what_was_left_out_is_counted(caplog) -> None:
    clock = Clock()
    stories = logs.Stories(None, clock)
    with caplog.at_level(logging.WARNING, "loadslice.request"):
        for _ in range(1000):
            stories.ended(PIPELINE, ended(Outcome.SHED, Reason.HOPELESS), 0)
        assert len(caplog.records) == logs.STORIES_AT_ONCE
        clock.now_s = 1.0
        stories.ended(PIPELINE, ended(Outcome.SHED, Reason.HOPELESS), 0)
    last = caplog.records[-1]
    assert last.story["left_out_before"] == 1000 - logs.STORIES_AT_ONCE
    assert "900 others were left out" in last.getMessage()


def test_a_line_of_text_begins_with_its_time() -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "said %d", (3,), None)
    record.created, record.msecs = 1_764_000_000.25, 250.0
    assert logs.Lines().format(record) == "2025-11-24T16:00:00.250Z WARNING x: said 3"


def test_json_lines_are_one_line_each_whatever_they_hold(caplog) -> None:
    formatter = logs.JsonLines()
    record = logging.LogRecord("x", logging.WARNING, "f", 1, 'two\nlines "quoted" \u2028 %s', ("é",), None)
    record.story = {"id": "a\nb"}
    line = formatter.format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert told["message"] == 'two\nlines "quoted" \u2028 é'
    assert told["request"] == {"id": "a\nb"}
    try:
        raise ValueError("boom")
    except ValueError:
        failed = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), __import__("sys").exc_info())
    assert "boom" in json.loads(formatter.format(failed))["exception"]


def test_lines_of_one_kind_do_not_fill_the_log_and_others_are_not_touched() -> None:
    clock = Clock()
    thinned = logs.Thinned(clock)
    written = []

    def say(name: str, words: str, *values: object) -> None:
        record = logging.LogRecord(name, logging.WARNING, "", 0, words, values, None)
        if thinned.filter(record):
            written.append(record.getMessage())

    for number in range(1000):
        say("workers", "request %d failed", number)
    assert len(written) == logs.LINES_AT_ONCE
    say("workers", "engine %s is down", "a")
    assert written[-1] == "engine a is down"
    clock.now_s += 1.0
    say("workers", "request %d failed", 1000)
    assert written[-1] == "request 1000 failed; 950 like it were left out"
    for number in range(1000):
        say("loadslice.request", "%s", number)
    assert len(written) == logs.LINES_AT_ONCE + 2 + 1000, "stories have a limit of their own"
    for number in range(3 * logs.KINDS_MAX):
        say("library", f"made up {number}")
    assert len(thinned._kinds) <= logs.KINDS_MAX


@pytest.mark.parametrize("formatter", [logs.Lines(), logs.JsonLines()])
@pytest.mark.parametrize("end", ["\n", "\r", "\x1b[2J", "\x85", "\x9b", "\u2028", "\u202e", "\U000e0001", "\ud800"])
def test_what_a_client_sends_writes_no_lines_of_its_own(formatter, end: str) -> None:
    hostile = f"id{end}2026-11-30T00:00:00 ERROR loadslice: all is lost"
    try:
        raise ValueError(hostile)
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 30, "", 0, "request %s", (hostile,), sys.exc_info())
    first, *others = formatter.format(record).split("\n")
    assert all(text.isprintable() for text in (first, *others))
    assert all(text.startswith("  ") for text in others)
    if isinstance(formatter, logs.JsonLines):
        assert json.loads(first)["message"] == f"request {hostile}"


def test_whoever_does_not_read_stops_nobody_and_is_told_how_much_was_left_out() -> None:
    reading, writing = os.pipe()
    handler = logs.Unwaiting(writing)
    handler.setFormatter(logs.Lines())

    def say(text: str) -> None:
        handler.emit(logging.getLogger("x").makeRecord("x", 30, "", 0, text, (), None))

    for number in range(100):
        say(f"{number} " + "x" * 10_000)
    read = b""
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        while part := os.read(reading, 1 << 20):
            read += part
    assert 2 < read.count(b"WARNING") < 20
    say("at last")
    read += os.read(reading, 1 << 20)
    *whole, told, last = read.decode().splitlines()
    kept = [line for line in whole if line.endswith("x" * 10_000)]
    assert f"{100 - len(kept)} lines were left out or cut off" in told
    assert last.endswith("x: at last")
    os.close(reading)
    say("to nobody")
    os.close(writing)
