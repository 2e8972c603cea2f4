import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from loadslice.serve.degraded import THREADS, DegradedReplies, load_degraded
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Pipeline, Stage
from loadslice.spec.work import StageError, Work

LIMITS = Limits(degraded_timeout_s=0.1, degraded_waiting_max=THREADS + 1)


def asked(function, times: int = 1) -> tuple[list[object], DegradedReplies]:
    """What each of several askers got, and the replies' account."""
    replies = DegradedReplies(["s"], {0: function}, LIMITS)

    async def run() -> list[object]:
        replies.start()
        asking = (replies.reply(0, Work({"x": np.ones(1)}), tag) for tag in range(times))
        return await asyncio.gather(*asking, return_exceptions=True)

    try:
        return asyncio.run(run()), replies
    finally:
        replies.stop()


def test_the_function_gets_the_work_as_it_stood_and_its_result_is_the_reply() -> None:
    (result,), replies = asked(lambda work: Work({"y": work.tensors["x"] + 1}))
    assert result.tensors["y"].tolist() == [2]
    assert replies.failures == [0]


@pytest.mark.parametrize("error", [StageError("own words"), ValueError("secret"), SystemExit(1)])
def test_a_function_that_fails_costs_its_request_a_refusal_and_says_nothing_to_the_client(error) -> None:
    def fails(_: Work) -> Work:
        raise error

    (refusal,), replies = asked(fails)
    assert isinstance(refusal, RefusalError)
    assert (refusal.status, refusal.retry_after_ns > 0) == (503, True)
    assert "secret" not in refusal.text
    assert "own words" not in refusal.text
    assert replies.failures == [1]


def test_a_result_without_a_form_on_the_wire_is_no_reply() -> None:
    (refusal,), _ = asked(lambda work: Work({"y": np.zeros(1, np.complex64)}))
    assert isinstance(refusal, RefusalError)


def test_functions_that_hang_are_not_waited_for_and_only_so_many_wait() -> None:
    gate = threading.Event()
    taken = []

    def hangs(work: Work) -> Work:
        taken.append(work)
        assert gate.wait(20)
        return work

    results, replies = asked(hangs, times=5)
    gate.set()
    assert all(isinstance(result, RefusalError) for result in results)
    assert len(taken) == THREADS
    assert replies.failures == [5]


def test_a_function_that_is_not_there_is_one_readable_line(tmp_path: Path) -> None:
    stage = Stage(name="s", python="own:s", engine="e", degraded="own:other")
    (tmp_path / "own.py").write_text("def s(work):\n    return work\n", encoding="utf-8")
    pipeline = Pipeline(version=1, pipeline="p", engines={"e": Engine(backend="python")}, stages=[stage])
    with pytest.raises(InputError, match="has no function 'other'"):
        load_degraded(pipeline, tmp_path, Limits())
