import logging
from collections.abc import Callable

import pytest

from loadslice.serve.logs_test import PIPELINE, Clock, ended
from loadslice.serve.loss_log import EVERY_S, Losses
from loadslice.spec.outcome import Outcome, Reason


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> tuple[Losses, Clock, list[tuple[float, Callable[[], None]]]]:
    caplog.set_level(logging.WARNING, "loadslice.requests")
    clock, asked = Clock(), []
    return Losses(lambda after_s, act: asked.append((after_s, act)), clock), clock, asked


def test_a_flood_of_refusals_is_one_line_after_a_second_and_one_a_minute(watched, caplog) -> None:
    losses, clock, asked = watched
    for _ in range(100):
        losses.ended(PIPELINE, ended(), 0)
    assert asked == []
    for _ in range(30):
        losses.ended(PIPELINE, ended(Outcome.REJECTED, Reason.QUEUE_FULL), 0)
    losses.ended(PIPELINE, ended(Outcome.EXPIRED, Reason.DEADLINE), 0)
    assert caplog.records == []
    ((after_s, tell),) = asked
    assert after_s == 1.0
    clock.now_s = 1.0
    tell()
    assert caplog.messages == [
        "31 of 131 requests did not complete in 1 s: 30 rejected (queue_full), 1 expired (deadline)"
    ]
    clock.now_s = 2.0
    for _ in range(5):
        losses.ended(PIPELINE, ended(Outcome.EXPIRED, Reason.DEADLINE), 0)
    assert asked[1][0] == pytest.approx(EVERY_S - 1)
    clock.now_s = 61.0
    asked[1][1]()
    assert caplog.messages[1:] == ["5 of 5 requests did not complete in 59 s: 5 expired (deadline)"]


def test_a_minute_in_which_all_is_well_has_no_line(watched, caplog) -> None:
    losses, _, asked = watched
    losses.ended(PIPELINE, ended(), 0)
    losses.tell()
    assert (caplog.records, asked) == ([], [])
