"""Degraded replies: what a stage answers with instead of refusing, made by a function of the user's own.

The function runs on a thread of its own and is waited for only so long: one that is slow, hangs or fails costs its
request the refusal it would have had, and nobody else anything. While too many wait, the next is refused at once.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path

from loadslice.backends.python_stage import StageFunction, open_python_stage
from loadslice.serve.limits import Limits
from loadslice.serve.oip_reply import check_outputs
from loadslice.serve.refusals import HINT_FLOOR_NS, RefusalError
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.work import StageError, Work

log = logging.getLogger(__name__)

THREADS = 2
"""One that hangs leaves the other to answer."""

Answer = asyncio.Future[Work]


class DegradedReplies:
    """Answers for stages that would refuse.

    Args:
        stage_names: By stage index; for logs.
        functions: By stage index.
        limits: How long a reply may take, and how many may wait.
    """

    def __init__(self, stage_names: list[str], functions: Mapping[int, StageFunction], limits: Limits) -> None:
        self.failures = [0] * len(stage_names)
        """Replies that could not be made, by stage."""
        self._stage_names = stage_names
        self._functions = functions
        self._timeout_s = limits.degraded_timeout_s
        self._waiting_max = limits.degraded_waiting_max
        self._waiting = 0
        self._jobs: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, Answer, int, Work] | None] = queue.SimpleQueue()
        # A function that hangs must not keep the process from ending.
        self._threads = [threading.Thread(target=self._run, name="degraded", daemon=True) for _ in range(THREADS)]

    def start(self) -> None:
        """Start the threads, where there is a function."""
        if self._functions:
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """End the threads after what they are doing."""
        for _ in self._threads:
            self._jobs.put(None)

    async def reply(self, stage: int, work: Work, tag: int) -> Work:
        """Ask for the degraded reply to one request.

        Args:
            stage: The one that refused it.
            work: As it stood before that stage; the function may keep it.
            tag: Of the request; for logs.

        Raises:
            RefusalError: 503: the function failed, or was not done in time.
        """
        why = f"{self._waiting} others wait for theirs"
        if self._waiting < self._waiting_max:
            answer: Answer = asyncio.get_running_loop().create_future()
            self._waiting += 1
            answer.add_done_callback(self._answered)
            self._jobs.put((answer.get_loop(), answer, stage, work))
            try:
                return await asyncio.wait_for(asyncio.shield(answer), self._timeout_s)
            except TimeoutError:
                why = f"not done within {self._timeout_s:g} s"
            except StageError as fault:
                why = str(fault)
        self.failures[stage] += 1
        log.warning("request %d: no degraded reply of stage '%s': %s", tag, self._stage_names[stage], why)
        raise RefusalError(
            503, "there is no capacity for this request, and no degraded reply to it", retry_after_ns=HINT_FLOOR_NS
        )

    def _answered(self, answer: Answer) -> None:
        self._waiting -= 1
        if not answer.cancelled():
            answer.exception()  # it may come when nobody waits any more

    def _run(self) -> None:
        """One thread's life."""
        while (job := self._jobs.get()) is not None:
            loop, answer, stage, work = job
            result: Work | StageError
            try:
                result = self._functions[stage](work)
                check_outputs(result.tensors)
            except StageError as fault:
                result = fault
            except BaseException as error:
                # Whatever it is: the thread lives and the request has an answer.
                log.exception("the degraded reply of stage '%s' failed", self._stage_names[stage])
                result = StageError(type(error).__name__)
            try:
                loop.call_soon_threadsafe(_deliver, answer, result)
            except RuntimeError:
                log.debug("degraded replies: the loop has closed")
                return


def _deliver(answer: Answer, result: Work | StageError) -> None:
    if answer.done():
        return
    if isinstance(result, StageError):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def load_degraded(pipeline: Pipeline, folder: Path, limits: Limits) -> DegradedReplies:
    """Find the functions that a pipeline's stages name under ``degraded:``.

    Raises:
        InputError: No such module or function.
    """
    functions = {
        index: open_python_stage(stage.degraded, folder)
        for index, stage in enumerate(pipeline.stages)
        if stage.degraded is not None
    }
    return DegradedReplies([stage.name for stage in pipeline.stages], functions, limits)
