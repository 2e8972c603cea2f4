"""Measures how long each stage takes on each engine of this machine: alone, and with every engine slot busy.

Alone: one request after the other walks through the stages, each stage on the thread of an engine slot, as a server
runs them; the order of the walks is drawn anew each round, so that a machine that changes its speed half-way changes it
for all kinds of work. Contended: every slot of every engine that runs models works through its own stages at the same
time, which is what a loaded server does; Python stages are then timed beside all of them. Wall time is what is
measured, because waiting for a core is part of what a request waits for.
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
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
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
        One entry per stage, engine, rows and shape that the inputs ask for; of twins, what their sheets say.

    Raises:
        InputError: What `loadslice.profiles.jobs.collect` refuses, nothing to measure on these engines, or a time
            that is not finite.
    """
    if not math.isfinite(seconds):
        raise InputError(f"--seconds {seconds}: must be a finite number of seconds.")
    tell(f"loading {len(pipeline.stages)} stages and walking {len(samples)} inputs through them")
    found = collect(pipeline, folder, samples, on)
    emulated = twins.entries(found.steps, on)
    alone: list[Timing] = []
    contended: list[Timing] = []
    slots = {name: engine.max_inflight for name, engine in pipeline.engines.items()}
    try:
        if not found.walks and not emulated:
            engines = ", ".join(on or pipeline.engines)
            raise InputError(f"no stage of '{pipeline.pipeline}' has work on {engines} for these inputs.")
        with _switching_as_a_server():
            _warm_up(found, slots)
            tell(f"measuring {len(found.sources)} kinds of work for {seconds:.0f} s")
            with Neighbours() as neighbours, _Threads(slots) as threads:
                if found.walks:
                    alone = _record(found.walks, slots, threads.timed, seconds * _ALONE, repeats)
            contended = _contended(found.walks, slots, seconds, repeats)
    except (StageError, EngineError) as error:
        raise InputError(f"pipeline '{pipeline.pipeline}': a stage failed while it was measured: {error}") from error
    finally:
        close(found.steps)
    if neighbours.warning is not None:
        tell(neighbours.warning)
    made = stamp(SCHEMA, inputs={} if source is None else {"pipeline": source}, seed=0, tools=TOOLS)
    disturbed = {"other_processes_cpu_pct": round(100 * neighbours.share)}
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


def _warm_up(found: Jobs, slots: dict[str, int]) -> None:
    """Run every kind of work in every slot, for runtimes prepare a shape when they first meet it."""
    first = {job.key: job for walk in reversed(found.walks) for job in walk}
    for job in first.values():
        for slot in range(slots[job.key.engine] if job.is_model else 1):
            job.call(slot)
            job.call(slot)


def _timed(job: Job, slot: int) -> Timing:
    start_ns = time.perf_counter_ns()
    job.call(slot)
    return Timing(job.key, start_ns, time.perf_counter_ns() - start_ns)


class _Threads:
    """One thread per engine slot, as a server has: a stage finds the caches of whichever core takes it up."""

    def __init__(self, slots: dict[str, int]) -> None:
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
        return self._pools[job.key.engine, slot].submit(_timed, job, slot).result()


def _record(
    walks: Sequence[Walk],
    slots: dict[str, int],
    run: Run,
    seconds: float,
    repeats: int | None,
    *,
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Timing]:
    """Time walks in shuffled rounds until time or rounds are up, but every kind of work at least once.

    Args:
        walks: Not empty.
        slots: Of each engine; walks take them in turn.
        run: Runs and times one job.
        seconds: Time to spend.
        repeats: Rounds at most.
        seed: Start of the shuffling.
        stopped: Asked before each walk; ends the recording whatever is missing.
    """
    timings: list[Timing] = []
    missing = {job.key for walk in walks for job in walk}
    deadline_ns = time.perf_counter_ns() + round(seconds * 1e9)
    for rounds, number, walk in _shuffled(walks, seed):
        late = time.perf_counter_ns() >= deadline_ns
        if stopped() or rounds == repeats or (late and not missing):
            break
        if late and missing.isdisjoint(job.key for job in walk):
            continue
        timings += [run(job, number % slots[job.key.engine]) for job in walk]
        missing.difference_update(job.key for job in walk)
    return timings


def _shuffled(walks: Sequence[Walk], seed: int) -> Iterator[tuple[int, int, Walk]]:
    """All walks in a new order each round, without end, with the rounds completed and the walks taken."""
    draw = np.random.default_rng(seed)
    number = 0
    for rounds in itertools.count():
        for index in draw.permutation(len(walks)):
            yield rounds, number, walks[index]
            number += 1


def _contended(walks: Sequence[Walk], slot_counts: dict[str, int], seconds: float, repeats: int | None) -> list[Timing]:
    """All slots of the engines that run models at work at once; then the Python stages beside them."""
    slots = []
    for name, count in slot_counts.items():
        own = _only(walks, lambda job, name=name: job.is_model and job.key.engine == name)  # type: ignore[misc]
        slots += [_Slot(name, number, own) for number in range(count) if own]
    python = _only(walks, lambda job: not job.is_model)
    timings: list[Timing] = []
    if len(slots) > 1:
        with _Load(slots, seconds * _CONTENDED, repeats) as load:
            load.wait()
        timings += load.timings()
    if slots and python:
        with _Load(slots, 0.0, 1) as load, _Threads(slot_counts) as threads:
            timings += _record(python, slot_counts, threads.timed, seconds * _PYTHON_CONTENDED, repeats)
        load.timings()  # a slot that failed left the others less to contend with: its error is ours
    return timings


def _only(walks: Sequence[Walk], wanted: Callable[[Job], bool]) -> list[Walk]:
    kept = [[job for job in walk if wanted(job)] for walk in walks]
    return [walk for walk in kept if walk]


class _Slot(NamedTuple):
    """One engine slot and what it runs, round after round."""

    engine: str
    number: int
    walks: list[Walk]


class _Load:
    """Keeps every slot busy on a thread of its own from entry to exit.

    A slot records its walks until its time is up. It then goes on without recording until the block ends, so that no
    other slot's last run finds the machine quieter than its first.
    """

    def __init__(self, slots: list[_Slot], seconds: float, repeats: int | None) -> None:
        self._slots = slots
        self._seconds = seconds
        self._repeats = repeats
        self._stop = threading.Event()
        self._recorded = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(len(slots))
        self._futures: list[Future[list[Timing]]] = []

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

    def timings(self) -> list[Timing]:
        """What the slots recorded, after the block has ended; raises what a slot raised."""
        return [timing for future in self._futures for timing in future.result()]

    def _work(self, slot: _Slot) -> list[Timing]:
        def run(job: Job, _turn: int) -> Timing:
            return _timed(job, slot.number)

        seed, only = slot.number, {slot.engine: 1}
        try:
            timings = _record(slot.walks, only, run, self._seconds, self._repeats, seed=seed, stopped=self._stop.is_set)
        finally:
            self._recorded.release()
        for _, _, walk in _shuffled(slot.walks, seed):
            for job in walk:
                if self._stop.is_set():
                    return timings
                job.call(slot.number)
        return timings


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
