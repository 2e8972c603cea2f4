"""Measures how long each stage takes on each engine of this machine: alone, and with every engine slot busy, by turns.

Alone: one request after the other walks through the stages, each stage on the thread of an engine slot, as a server
runs them; the order of the walks is drawn anew each round, so that a machine that changes its speed half-way changes it
for all kinds of work. Contended: every slot of every engine that runs models works through its own stages at the same
time, which is what a loaded server does; Python stages are then timed beside all of them. Both take turns
of a second or so: a machine's speed wanders from second to second, and contention is the ratio of the two. Measured one
after the other, the same pair of engines had a contention of 1.35 in the morning and of 1.0 at noon. Wall time is what
is measured, because waiting for a core is part of what a request waits for.
"""

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt

from loadslice.backends.base import EngineError
from loadslice.profiles import drift, twins
from loadslice.profiles.chain import close
from loadslice.profiles.drift import Timing
from loadslice.profiles.jobs import Job, Jobs, Key, Walk, collect
from loadslice.profiles.neighbours import Neighbours
from loadslice.profiles.overdue import STEP_S, Overdue
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.latency import OTHERS, Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.work import Sample, StageError

SAMPLES_MAX = 64
"""Times kept per entry; more are reduced to so many quantiles."""

SCHEMA = "latency/1"
TOOLS = ("onnxruntime", "openvino", "numpy", "opencv-python-headless")

SWITCH_INTERVAL_S = 0.0005
"""As in the server's process: how long one thread may keep the interpreter while another wants it."""

# Shares of the time: alone, models contended, Python stages contended.
_ALONE, _CONTENDED, _PYTHON_CONTENDED = 0.55, 0.35, 0.10

TURN_S = 1.5
"""Alone, contended, and Python stages contended, all in about this time; then again."""

Run = Callable[[Job, int], Timing]
"""Runs a job in a slot of its engine and times it."""


def _say_nothing(_text: str) -> None:
    """For callers that want no progress."""


def measure(
    pipeline: Pipeline,
    folder: Path,
    samples: Sequence[Sample],
    *,
    seconds: float,
    on: Sequence[str] | None = None,
    repeats: int | None = None,
    source: Path | None = None,
    tell: Callable[[str], None] = _say_nothing,
    step_s: float = STEP_S,
) -> LatencyTable:
    """Measure a pipeline's stages on its engines.

    Args:
        pipeline: From `loadslice.spec.pipeline.load`.
        folder: The folder of the pipeline file.
        samples: Example inputs; each is walked through every stage.
        seconds: Time to spend on measuring, loading and warming up not counted; every job is run at least once alone
            and once contended, even when that takes longer.
        on: Engines to measure; ``None``: all.
        repeats: Rounds at most, before the time is up; ``None``: as many as fit.
        source: The pipeline file, to be named in the stamp.
        tell: Is told what is going on.
        step_s: Longest time that loading a model, or one run, may take; then the process ends, see `overdue`.

    Returns:
        One entry per stage, engine, rows and shape that the inputs ask for; of twins, what their sheets say.

    Raises:
        InputError: What `loadslice.profiles.jobs.collect` refuses, nothing to measure on these engines, or a time
            that is not finite.
    """
    if not math.isfinite(seconds):
        raise InputError(f"--seconds {seconds}: must be a finite number of seconds.")
    with Overdue(step_s) as overdue:
        tell(f"loading {len(pipeline.stages)} stages and walking {len(samples)} inputs through them")
        found = collect(pipeline, folder, samples, on, overdue)
        emulated = twins.entries(found.steps, on)
        slots = {name: engine.max_inflight for name, engine in pipeline.engines.items()}
        try:
            if not found.walks and not emulated:
                engines = ", ".join(on or pipeline.engines)
                raise InputError(f"no stage of '{pipeline.pipeline}' has work on {engines} for these inputs.")
            with _switching_as_a_server():
                _warm_up(found, slots, overdue)
                tell(f"measuring {len(found.sources)} kinds of work for {seconds:.0f} s, or until each was run once")
                with Neighbours() as neighbours, _Threads(slots, overdue) as threads:
                    alone, contended = _by_turns(found.walks, slots, threads, seconds, repeats)
        except (StageError, EngineError) as error:
            text = f"pipeline '{pipeline.pipeline}': a stage failed while it was measured: {error}"
            raise InputError(text) from error
        finally:
            close(found.steps)
    if neighbours.warning is not None:
        tell(neighbours.warning)
    made = stamp(SCHEMA, inputs={} if source is None else {"pipeline": source}, seed=0, tools=TOOLS)
    disturbed = {OTHERS: round(100 * neighbours.share)}
    alone_ns, contended_ns = _by_key(alone), _by_key(contended)
    return LatencyTable(
        entries=[
            *(_entry(key, how, alone_ns[key], contended_ns.get(key)) for key, how in found.sources.items()),
            *emulated,
        ],
        inputs=found.inputs,
        drift=drift.within(alone),
        pipeline=pipeline.pipeline,
        stamp=msgspec.structs.replace(made, machine=made.machine | disturbed),
    )


@contextmanager
def _switching_as_a_server() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def _warm_up(found: Jobs, slots: dict[str, int], overdue: Overdue) -> None:
    """Run every kind of work in every slot, for runtimes prepare a shape when they first meet it."""
    first = {job.key: job for walk in reversed(found.walks) for job in walk}
    for job in first.values():
        for slot in range(slots[job.key.engine] if job.is_model else 1):
            for _ in range(2):
                overdue.begin(job.key)
                job.call(slot)
    overdue.end()


class _Threads:
    """One thread per engine slot, as a server has: a stage finds the caches of whichever core takes it up."""

    def __init__(self, slots: dict[str, int], overdue: Overdue) -> None:
        self.overdue = overdue
        self._pools = {
            (name, slot): ThreadPoolExecutor(1, f"{name}.{slot}") for name in slots for slot in range(slots[name])
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools.values():
            pool.shutdown()

    def timed(self, job: Job, slot: int) -> Timing:
        """Run a job on the slot's thread."""
        return self._pools[job.key.engine, slot].submit(self.run, job, slot).result()

    def run(self, job: Job, slot: int) -> Timing:
        """Run it on this thread."""
        self.overdue.begin(job.key)
        start_ns = time.perf_counter_ns()
        job.call(slot)
        took_ns = time.perf_counter_ns() - start_ns
        self.overdue.end()
        return Timing(job.key, start_ns, took_ns)


def _by_turns(
    walks: Sequence[Walk], slots: dict[str, int], threads: _Threads, seconds: float, repeats: int | None
) -> tuple[list[Timing], list[Timing]]:
    """Times alone and contended."""
    alone, contended = _Recording(walks, slots, repeats), _Contended(walks, slots, repeats)
    turns = max(1, round(seconds / TURN_S))
    for turn in range(turns):
        is_last = turn == turns - 1
        alone.go_on(threads.timed, seconds * _ALONE / turns, to_the_end=is_last)
        contended.go_on(threads, seconds / turns, to_the_end=is_last)
    return alone.timings, contended.timings()


class _Recording:
    """Times walks in shuffled rounds, on from where it stopped, and every kind of work at least once in the end.

    Args:
        walks: What to time.
        slots: Of each engine; walks take them in turn.
        repeats: Rounds at most.
        seed: Start of the shuffling.
    """

    def __init__(self, walks: Sequence[Walk], slots: dict[str, int], repeats: int | None, *, seed: int = 0) -> None:
        self.timings: list[Timing] = []
        self._slots = slots
        self._repeats = repeats
        self._missing = {job.key for walk in walks for job in walk}
        self._walks = _shuffled(walks, seed)
        self._next = next(self._walks) if walks else None

    def go_on(self, run: Run, seconds: float, *, to_the_end: bool, stopped: Callable[[], bool] = lambda: False) -> None:
        """Time for a while.

        Args:
            run: Runs and times one job.
            seconds: Time to spend.
            to_the_end: Stay until no kind of work is missing.
            stopped: Asked before each walk; ends the recording whatever is missing.
        """
        deadline_ns = time.perf_counter_ns() + round(seconds * 1e9)
        while self._next is not None and not stopped():
            rounds, number, walk = self._next
            is_late = time.perf_counter_ns() >= deadline_ns
            if rounds == self._repeats or (is_late and not (to_the_end and self._missing)):
                return
            if not is_late or not self._missing.isdisjoint(job.key for job in walk):
                self.timings += [run(job, number % self._slots[job.key.engine]) for job in walk]
                self._missing.difference_update(job.key for job in walk)
            self._next = next(self._walks)


def _shuffled(walks: Sequence[Walk], seed: int) -> Iterator[tuple[int, int, Walk]]:
    """All walks in a new order each round, without end, with the rounds completed and the walks taken."""
    draw = np.random.default_rng(seed)
    number = 0
    for rounds in itertools.count():
        for index in draw.permutation(len(walks)):
            yield rounds, number, walks[index]
            number += 1


class _Contended:
    """All slots of the engines that run models at work at once; then the Python stages beside them.

    Args:
        walks: What to time.
        slot_counts: Of each engine.
        repeats: Rounds at most.
    """

    def __init__(self, walks: Sequence[Walk], slot_counts: dict[str, int], repeats: int | None) -> None:
        self._slots: list[_Slot] = []
        for name, count in slot_counts.items():
            own = _only(walks, lambda job, name=name: job.is_model and job.key.engine == name)  # type: ignore[misc]
            if own:
                self._slots += [
                    _Slot(number, own, _Recording(own, {name: 1}, repeats, seed=number)) for number in range(count)
                ]
        python = _only(walks, lambda job: not job.is_model)
        self._python = _Recording(python if self._slots else [], slot_counts, repeats)
        self._has_python = bool(python and self._slots)

    def go_on(self, threads: _Threads, seconds: float, *, to_the_end: bool) -> None:
        """Time for a while, as `_Recording.go_on`; raises what a slot raised."""
        if len(self._slots) > 1:
            with _Load(self._slots, threads, seconds * _CONTENDED, to_the_end=to_the_end) as load:
                load.wait()
            load.check()
        if self._has_python:
            with _Load(self._slots, threads, None) as load:
                self._python.go_on(threads.timed, seconds * _PYTHON_CONTENDED, to_the_end=to_the_end)
            load.check()  # a slot that failed left the others less to contend with

    def timings(self) -> list[Timing]:
        """What was recorded."""
        return [timing for one in (*(slot.recording for slot in self._slots), self._python) for timing in one.timings]


def _only(walks: Sequence[Walk], wanted: Callable[[Job], bool]) -> list[Walk]:
    kept = [[job for job in walk if wanted(job)] for walk in walks]
    return [walk for walk in kept if walk]


class _Slot(NamedTuple):
    """One engine slot and what it runs, round after round."""

    number: int
    walks: list[Walk]
    recording: _Recording


class _Load:
    """Keeps every slot busy on a thread of its own from entry to exit.

    A slot goes on with its recording until its time is up. It then goes on without until the block ends, so that no
    other slot's last run finds the machine quieter than its first.

    Args:
        slots: What to run.
        threads: Run and time it.
        seconds: Of recording; ``None``: it records nothing.
        to_the_end: Record until no kind of work is missing.
    """

    def __init__(
        self, slots: list[_Slot], threads: _Threads, seconds: float | None, *, to_the_end: bool = False
    ) -> None:
        self._slots = slots
        self._threads = threads
        self._seconds = seconds
        self._to_the_end = to_the_end
        self._stop = threading.Event()
        self._recorded = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(len(slots))
        self._futures: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._futures = [self._pool.submit(self._work, slot) for slot in self._slots]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def wait(self) -> None:
        """Until every slot has recorded what it had to, or failed."""
        for _ in self._slots:
            self._recorded.acquire()

    def check(self) -> None:
        """After the block has ended, raises what a slot raised."""
        for future in self._futures:
            future.result()

    def _work(self, slot: _Slot) -> None:
        def run(job: Job, _turn: int) -> Timing:
            return self._threads.run(job, slot.number)

        try:
            if self._seconds is not None:
                slot.recording.go_on(run, self._seconds, to_the_end=self._to_the_end, stopped=self._stop.is_set)
        finally:
            self._recorded.release()
        for _, _, walk in _shuffled(slot.walks, slot.number):
            for job in walk:
                if self._stop.is_set():
                    return
                self._threads.run(job, slot.number)


def _by_key(timings: Sequence[Timing]) -> dict[Key, list[int]]:
    taken_ns: dict[Key, list[int]] = {}
    for timing in timings:
        taken_ns.setdefault(timing.key, []).append(timing.took_ns)
    return taken_ns


def _entry(key: Key, source: str, alone_ns: list[int], contended_ns: list[int] | None) -> Entry:
    return Entry(
        variant=key.variant,
        engine=key.engine,
        batch=key.rows,
        shape=None if key.shape is None else list(key.shape),
        latency_ms=milliseconds(np.array(alone_ns) / 1e6),
        contended_ms=None if contended_ns is None else milliseconds(np.array(contended_ns) / 1e6),
        n=len(alone_ns),
        basis="measured",
        source=source,
    )


def milliseconds(times_ms: npt.NDArray[np.float64]) -> Milliseconds:
    """Measured times as percentiles and at most `SAMPLES_MAX` samples."""
    times_ms = np.sort(times_ms)
    p50, p90, p99 = (round(float(value), 4) for value in np.quantile(times_ms, (0.5, 0.9, 0.99)))
    kept = times_ms
    if len(times_ms) > SAMPLES_MAX:
        kept = np.quantile(times_ms, (np.arange(SAMPLES_MAX) + 0.5) / SAMPLES_MAX)
    return Milliseconds(p50=p50, p90=p90, p99=p99, samples=[round(float(value), 4) for value in kept])
