import os
import signal
import subprocess
import sys
import threading

import pytest

from loadslice.evaluate import loadgen
from loadslice.evaluate.checks import serving

pytestmark = pytest.mark.live


def shots(bodies: list[str], gap_s: float = 0.0) -> list[loadgen.Shot]:
    return [
        loadgen.Shot(row, row * gap_s, body.encode(), {"x-request-id": str(row)}) for row, body in enumerate(bodies)
    ]


def test_each_status_is_the_outcome_of_the_contract() -> None:
    statuses = [200, 429, 503, 504, 502, 500, 400, 413, 422, 418]
    with serving() as server:
        run = loadgen.drive(f"{server.url}/work", shots([str(status) for status in statuses]), loadgen.Limits())
    assert [answer.outcome for answer in run.answers] == [
        *("completed", "rejected", "shed", "expired", "failed", "failed", "failed", "failed", "failed", "failed")
    ]
    assert [answer.status for answer in run.answers] == statuses
    assert run.answers[7].reason == "http_413"
    assert run.answers[0].engine == "cpu0"


def test_a_slow_server_does_not_slow_the_sending() -> None:
    # Ten requests 20 ms apart at a server that takes 400 ms each: a closed loop would need 4 s.
    with serving() as server:
        run = loadgen.drive(f"{server.url}/work", shots(["200 400"] * 10, gap_s=0.02), loadgen.Limits())
    for answer in run.answers:
        assert answer.sent_s is not None
        assert answer.done_s is not None
        assert 0 <= answer.sent_s - answer.due_s < 0.15
        assert answer.done_s - answer.due_s >= 0.4
    assert max(answer.done_s or 0 for answer in run.answers) < 2


def test_a_request_beyond_the_connection_limit_is_refused_by_name_not_delayed() -> None:
    with serving() as server:
        run = loadgen.drive(f"{server.url}/work", shots(["200 300"] * 5), loadgen.Limits(connections=2))
    assert [answer.reason for answer in run.answers].count("connection_limit") == 3
    assert [answer.outcome for answer in run.answers].count("completed") == 2
    assert len(server.ids) == 2


def test_an_answer_that_does_not_come_in_time_fails_with_its_reason() -> None:
    with serving() as server:
        run = loadgen.drive(f"{server.url}/work", shots(["200 900", "200"]), loadgen.Limits(timeout_s=0.2))
    assert [(answer.outcome, answer.reason) for answer in run.answers] == [
        ("failed", "client_timeout"),
        ("completed", None),
    ]


def test_an_answer_longer_than_the_limit_fails() -> None:
    with serving() as server:
        run = loadgen.drive(f"{server.url}/work", shots(["200|" + "x" * 5000]), loadgen.Limits(answer_bytes=1000))
    assert run.answers[0].reason == "answer_too_long"


def test_when_the_server_goes_away_every_request_still_has_an_outcome() -> None:
    with serving(close_after=5) as server:
        run = loadgen.drive(f"{server.url}/work", shots(["200"] * 200, gap_s=0.005), loadgen.Limits())
    assert run.gone
    assert not run.interrupted
    assert all(answer.outcome for answer in run.answers)
    assert {answer.reason for answer in run.answers} >= {"connection_refused", "server_gone"}
    assert sum(answer.outcome == "completed" for answer in run.answers) < 200


def test_an_interrupt_keeps_what_was_measured_and_cancels_the_rest() -> None:
    # In a process of its own: libraries that ran in this one may hold signals below Python.
    here = "from loadslice.evaluate.loadgen_test import interrupted; interrupted()"
    ended = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "kept\n"), ended.stderr


def interrupted() -> None:
    """Interrupt a run in this process; say so when all is as it should be."""
    seen = []

    def interrupt_after_three(answer: loadgen.Answer) -> None:
        seen.append(answer.row)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    with serving() as server:
        run = loadgen.drive(
            f"{server.url}/work",
            shots(["200"] * 3 + ["200 5000"] + ["200"] * 50, gap_s=0.02),
            loadgen.Limits(),
            on_answer=interrupt_after_three,
        )
    assert run.interrupted
    assert [answer.outcome for answer in run.answers[:3]] == ["completed"] * 3
    assert all(answer.outcome for answer in run.answers)
    assert run.answers[-1].reason == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before
    print("kept")
