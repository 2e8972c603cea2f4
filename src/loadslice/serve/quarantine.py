"""Requests that may have ended an engine's process: tried again alone, and after the second time not at all.

Rules of this file: whoever ran when a process ended is under suspicion; a suspect runs alone and no two suspects run on
a process at the same time, so that the second end of a process is the fault of one request; that request fails, and
those that were with it have lost nothing but time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from loadslice.backends.isolated.host import EngineLostError, EngineProcess
from loadslice.serve.request import Batch, Request
from loadslice.serve.runners import Runner
from loadslice.spec.outcome import Outcome
from loadslice.spec.work import StageError, Work

CRASHES_MAX = 2
"""After so many the request is at fault: it was alone the last time."""

HOLD_S = 10.0
"""How long a batch waits for its engine's process to be back before its engine counts as lost."""

LOOK_S = 0.1
"""How often a batch that waits looks whether anybody still waits for it."""


def run_guarded(runner: Runner, batch: Batch, slot: int, process: EngineProcess, tell_lost: Callable[[], None]) -> None:
    """Run a batch on an engine whose process may end under it; fills in what `Runner.run` does.

    Args:
        runner: Runs it.
        batch: Is changed.
        slot: Where.
        process: Of the engine.
        tell_lost: Called when the process has ended and the batch waits for the next one.

    Raises:
        EngineLostError: The process has ended and this batch is not held for its return, or it does not return.
        EngineError: The runtime failed.
    """
    if not batch.held:
        try:
            runner.run(batch, slot)
        except EngineLostError as lost:
            if lost.while_running:
                raise  # who was in it is blamed on the loop, before any of them can be sent elsewhere
            # It was never there for this batch: another one is waited for as if it had been held from the start.
        else:
            return
    results: dict[int, Work | StageError] = {}
    clean = [index for index, request in enumerate(batch.requests) if not request.crashes]
    groups = deque([clean] if clean else [])
    groups.extend([index] for index, request in enumerate(batch.requests) if request.crashes)
    while groups:
        group = groups.popleft()
        if len(group) == 1 and batch.requests[group[0]].crashes >= CRASHES_MAX:
            results[group[0]] = StageError(
                f"this request has ended the engine's process {CRASHES_MAX} times and is not tried again."
            )
            continue
        _wait(process, batch.requests)
        try:
            results.update(zip(group, _run_group(runner, batch, group, slot, process), strict=True))
        except EngineLostError as lost:
            if lost.while_running:
                blame([batch.requests[index] for index in group])
            if not _is_wanted(batch.requests):
                raise
            tell_lost()
            groups.extendleft([index] for index in reversed(group))
    batch.results = [results[index] for index in range(len(batch.requests))]


def _run_group(
    runner: Runner, batch: Batch, group: Sequence[int], slot: int, process: EngineProcess
) -> list[Work | StageError]:
    part = replace(
        batch,
        requests=[batch.requests[index] for index in group],
        passages=[batch.passages[index] for index in group],
        works=[batch.works[index] for index in group],
        results=[],
        copy_ns=0,
        compute_ns=0,
        _rows=-1,
    )
    if any(request.crashes for request in part.requests):
        with process.alone:
            runner.run(part, slot)
    else:
        runner.run(part, slot)
    batch.copy_ns += part.copy_ns
    batch.compute_ns += part.compute_ns
    return part.results


def _wait(process: EngineProcess, requests: Sequence[Request]) -> None:
    """Wait until the process is there.

    Raises:
        EngineLostError: It takes too long, or nobody waits any more.
    """
    for _ in range(round(HOLD_S / LOOK_S)):
        if process.ready.wait(LOOK_S):
            return
        if not _is_wanted(requests):
            break
    raise EngineLostError(f"engine '{process.name}': its process does not come back.")


def _is_wanted(requests: Sequence[Request]) -> bool:
    return any(request.outcome is Outcome.NONE for request in requests)


def blame(requests: Sequence[Request]) -> None:
    """Note that an engine's process ended while it had these."""
    for request in requests:
        request.crashes += 1
