"""Measures how long each stage takes on each engine of this machine: alone, and with every engine slot busy.

Alone: jobs are run one at a time in shuffled rounds over all engines, so that a machine that changes its pace half-way
changes it for all of them. Contended: every slot of every engine that runs models works through its own jobs
at the same time, which is what a loaded server does; Python stages are then timed beside all of them. Wall time is
what is measured, because waiting for a core is part of what a request waits for.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
import numpy as np

from loadslice.profiles.chain import close
from loadslice.profiles.jobs import Call, Job, Key, collect
from loadslice.profiles.neighbours import Neighbours
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.work import Sample

SAMPLES_MAX = 64
"""Times kept per entry; more are reduced to so many quantiles."""

SCHEMA = "latency/1"
TOOLS = ("onnxruntime", "openvino", "numpy", "opencv-python-headless")

# Shares of the time: alone, models contended, Python stages contended.
_ALONE, _CONTENDED, _PYTHON_CONTENDED = 0.55, 0.35, 0.10
# Quick jobs are run more often: up to this many times a round, or for this long.
_RUNS_MAX, _ROUND_NS = 16, 15_000_000

Times = dict[Key, list[int]]
"""Nanoseconds of every recorded run."""


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

    Returns:
        One entry per stage, engine, rows and shape that the inputs ask for.

    Raises:
        InputError: What `loadslice.profiles.jobs.collect` refuses, nothing to measure on these engines, or a time
            that is not finite.
    """
    if not math.isfinite(seconds):
        raise InputError(f"--seconds {seconds}: must be a finite number of seconds.")
    tell(f"loading {len(pipeline.stages)} stages and walking {len(samples)} inputs through them")
    found = collect(pipeline, folder, samples, on)
    try:
        if not found.jobs:
            engines = ", ".join(on or pipeline.engines)
            raise InputError(f"no stage of '{pipeline.pipeline}' has work on {engines} for these inputs.")
        slots = {name: pipeline.engines[name].max_inflight for name in pipeline.engines}
        runs = _warm_up(found.jobs, slots)
        tell(f"measuring {len(found.jobs)} kinds of work for {seconds:.0f} s")
        with Neighbours() as neighbours:
            alone = _record(runs, 0, seconds * _ALONE, repeats)
        contended = _contended(runs, {job.key for job in found.jobs if job.is_model}, slots, seconds, repeats)
    finally:
        close(found.steps)
    if neighbours.warning is not None:
        tell(neighbours.warning)
    made = stamp(SCHEMA, inputs={} if source is None else {"pipeline": source}, seed=0, tools=TOOLS)
    disturbed = {"other_processes_cpu_pct": round(100 * neighbours.share)}
    return LatencyTable(
        entries=[_entry(job, alone[job.key], contended.get(job.key)) for job in found.jobs],
        inputs=found.inputs,
        pipeline=pipeline.pipeline,
        stamp=msgspec.structs.replace(made, machine=made.machine | disturbed),
    )


def _warm_up(jobs: Sequence[Job], slots: dict[str, int]) -> list[tuple[Key, Call]]:
    """Run every job once in every slot, for runtimes prepare a shape when they first meet it.

    Returns:
        One round: each job as often as its pace allows, its examples in turn.
    """
    runs: list[tuple[Key, Call]] = []
    for job in jobs:
        took_ns = 0
        for slot in range(slots[job.key.engine] if job.is_model else 1):
            job.calls[0](slot)
            took_ns = _timed(job.calls[0], slot)
        count = max(1, min(_RUNS_MAX, _ROUND_NS // max(took_ns, 1)))
        # An entry that stands for many examples must hear most of them within a few rounds.
        count = max(count, min(_RUNS_MAX, len(job.calls))) if not job.is_model else count
        runs += [(job.key, _in_turn(job.calls))] * count
    return runs


def _in_turn(calls: list[Call]) -> Call:
    """A call that takes the next example each time. Threads may share it; which one gets which does not matter."""
    position = 0

    def call(slot: int) -> object:
        nonlocal position
        position += 1
        return calls[position % len(calls)](slot)

    return call


def _timed(call: Call, slot: int) -> int:
    start_ns = time.perf_counter_ns()
    call(slot)
    return time.perf_counter_ns() - start_ns


def _record(
    runs: list[tuple[Key, Call]],
    slot: int,
    seconds: float,
    repeats: int | None,
    stopped: Callable[[], bool] = lambda: False,
) -> Times:
    """Time runs in shuffled rounds until time or rounds are up; the first round is always finished."""
    times: Times = {}
    deadline_ns = time.perf_counter_ns() + round(seconds * 1e9)
    for rounds, key, call in _shuffled(runs, slot):
        if stopped() or rounds == repeats or (rounds > 0 and time.perf_counter_ns() >= deadline_ns):
            break
        times.setdefault(key, []).append(_timed(call, slot))
    return times


def _shuffled(runs: list[tuple[Key, Call]], seed: int) -> Iterator[tuple[int, Key, Call]]:
    """All runs, engine by engine, in a new order each round, without end, with the number of rounds completed.

    Engines take turns by the round and not by the run: a worker of the server has the caches to itself, too.
    """
    draw = np.random.default_rng(seed)
    of_engine = list(_by_engine(runs).values())
    for rounds in itertools.count():
        for engine in draw.permutation(len(of_engine)):
            own = of_engine[engine]
            for index in draw.permutation(len(own)):
                yield rounds, *own[index]


def _by_engine(runs: list[tuple[Key, Call]]) -> dict[str, list[tuple[Key, Call]]]:
    of_engine: dict[str, list[tuple[Key, Call]]] = {}
    for key, call in runs:
        of_engine.setdefault(key.engine, []).append((key, call))
    return of_engine


def _contended(
    runs: list[tuple[Key, Call]],
    models: set[Key],
    slot_counts: dict[str, int],
    seconds: float,
    repeats: int | None,
) -> Times:
    """All slots of the engines that run models at work at once; then the Python stages beside them."""
    of_engine = _by_engine([(key, call) for key, call in runs if key in models])
    slots = [_Slot(number, own) for name, own in of_engine.items() for number in range(slot_counts[name])]
    python = [(key, call) for key, call in runs if key not in models]
    times: Times = {}
    if len(slots) > 1:
        with _Load(slots, seconds * _CONTENDED, repeats) as load:
            load.wait()
        for taken in load.times():
            for key, taken_ns in taken.items():
                times.setdefault(key, []).extend(taken_ns)
    if slots and python:
        with _Load(slots, 0.0, 1) as load:
            times |= _record(python, 0, seconds * _PYTHON_CONTENDED, repeats)
        load.times()  # a slot that failed left the others less to contend with: its error is ours
    return times


class _Slot(NamedTuple):
    """One engine slot and what it runs, round after round."""

    number: int
    runs: list[tuple[Key, Call]]


class _Load:
    """Keeps every slot busy on a thread of its own from entry to exit.

    A slot records its runs until its time is up. It then goes on without recording until the block ends, so that no
    other slot's last run finds the machine quieter than its first.
    """

    def __init__(self, slots: list[_Slot], seconds: float, repeats: int | None) -> None:
        self._slots = slots
        self._seconds = seconds
        self._repeats = repeats
        self._stop = threading.Event()
        self._recorded = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(len(slots))
        self._futures: list[Future[Times]] = []

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

    def times(self) -> list[Times]:
        """What each slot recorded, after the block has ended; raises what a slot raised."""
        return [future.result() for future in self._futures]

    def _work(self, slot: _Slot) -> Times:
        try:
            times = _record(slot.runs, slot.number, self._seconds, self._repeats, self._stop.is_set)
        finally:
            self._recorded.release()
        for _, _, call in _shuffled(slot.runs, slot.number):
            if self._stop.is_set():
                break
            call(slot.number)
        return times


def _entry(job: Job, alone_ns: list[int], contended_ns: list[int] | None) -> Entry:
    key = job.key
    return Entry(
        variant=key.variant,
        engine=key.engine,
        batch=key.rows,
        shape=None if key.shape is None else list(key.shape),
        latency_ms=_milliseconds(alone_ns),
        contended_ms=None if contended_ns is None else _milliseconds(contended_ns),
        n=len(alone_ns),
        basis="measured",
        source=job.source,
    )


def _milliseconds(times_ns: list[int]) -> Milliseconds:
    times_ms = np.sort(np.array(times_ns)) / 1e6
    p50, p90, p99 = (round(float(value), 4) for value in np.quantile(times_ms, (0.5, 0.9, 0.99)))
    kept = times_ms
    if len(times_ms) > SAMPLES_MAX:
        kept = np.quantile(times_ms, (np.arange(SAMPLES_MAX) + 0.5) / SAMPLES_MAX)
    return Milliseconds(p50=p50, p90=p90, p99=p99, samples=[round(float(value), 4) for value in kept])
