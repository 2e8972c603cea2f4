import itertools

import pytest

from loadslice.serve.refusals import RefusalError, of_outcome, retry_headers
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.work import StageError, StageInputError


@pytest.mark.parametrize(
    ("outcome", "reason", "status", "hinted"),
    [
        (Outcome.REJECTED, Reason.QUEUE_FULL, 429, True),
        (Outcome.REJECTED, Reason.TABLE_FULL, 429, True),
        (Outcome.REJECTED, Reason.RETRY_BUDGET, 429, True),
        (Outcome.REJECTED, Reason.DRAINING, 503, True),
        (Outcome.SHED, Reason.QUEUE_FULL, 503, True),
        (Outcome.SHED, Reason.DISPLACED, 503, True),
        (Outcome.SHED, Reason.HOPELESS, 503, True),
        (Outcome.EXPIRED, Reason.DEADLINE, 504, False),
        (Outcome.EXPIRED, Reason.STAGE_TIMEOUT, 504, False),
        (Outcome.FAILED, Reason.INELIGIBLE, 422, False),
        (Outcome.FAILED, Reason.ENGINE_FAILED, 502, False),
        (Outcome.FAILED, Reason.ENGINE_DOWN, 502, False),
        (Outcome.FAILED, Reason.STAGE_FAILED, 500, False),
        (Outcome.CANCELLED, Reason.CLIENT_GONE, 503, True),
    ],
)
def test_each_outcome_has_its_status_and_those_that_pass_have_a_hint(outcome, reason, status, hinted) -> None:
    refusal = of_outcome(outcome, reason, 0, None)
    assert refusal.status == status
    assert (refusal.retry_after_ns is not None) == hinted
    if refusal.retry_after_ns is not None:
        assert int(retry_headers(refusal.retry_after_ns)["Retry-After"]) >= 1


def test_no_reason_is_without_a_reply() -> None:
    placements = {Reason.PREFERRED, Reason.FAILOVER, Reason.RETRY, Reason.RULE, Reason.FASTEST, Reason.CHEAPEST}
    unanswered = {Reason.NONE, Reason.DEGRADED, *placements}
    for outcome, reason in itertools.product(
        set(Outcome) - {Outcome.COMPLETED, Outcome.NONE}, set(Reason) - unanswered
    ):
        assert isinstance(of_outcome(outcome, reason, 0, None), RefusalError)


def test_a_stage_says_whose_fault_it_is() -> None:
    def status(fault: StageError) -> int:
        return of_outcome(Outcome.FAILED, Reason.STAGE_FAILED, 0, fault).status

    assert status(StageInputError("not an image")) == 400
    assert status(StageInputError("not this type", unsupported_type=True)) == 415
    assert status(StageError("broken")) == 500


def test_what_a_broken_stage_says_stays_inside() -> None:
    refusal = of_outcome(Outcome.FAILED, Reason.STAGE_FAILED, 0, StageError("KeyError at /home/somebody/x.py"))
    assert refusal.text == "a stage failed on this request"


def test_hints_are_rounded_up() -> None:
    assert retry_headers(1_000_000_001) == {"Retry-After": "2", "x-loadslice-retry-after-ms": "1001"}
    assert retry_headers(1) == {"Retry-After": "1", "x-loadslice-retry-after-ms": "1"}
