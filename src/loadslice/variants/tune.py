"""Threads, graph level, streams and batch of a variant on this machine, each timed against the untuned model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from loadslice.backends.base import Session, open_backend
from loadslice.spec.pipeline import Engine
from loadslice.spec.variant import Throughput, Timing
from loadslice.variants import timing
from loadslice.variants.bench import UNTUNED, Proof, Workbench
from loadslice.variants.exam import Exam, Marks
from loadslice.variants.recorded import Feeds
from loadslice.variants.timing import Contender
from loadslice.variants.together import judge_together, takes_rows

GRAPH_LEVELS = ("extended",)
"""Tried beside "all", which is the default: its layout changes usually win and sometimes lose."""

BATCHES = (1, 4, 16)
WINDOW_S_MIN, WINDOW_S_MAX, WINDOWS_IN_TIME = 0.02, 0.4, 75
"""Of throughput: long enough for a few runs, and together not more than about the time given."""
WINDOWS = 3


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and all."""
    counts = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*counts, cores]


@dataclass(frozen=True)
class Base:
    """The untuned model.

    Attributes:
        untuned: As the runtime comes: what every speed-up is against.
        one_thread: On one thread that does not spin: what processor time is compared with.
    """

    untuned: Contender
    one_thread: Contender

    @property
    def contenders(self) -> list[Contender]:
        """Both."""
        return [self.untuned, self.one_thread]

    def again(self) -> "Base":
        """The same sessions without the times taken so far."""
        return Base(*(Contender(one.name, one.session, one.panel) for one in self.contenders))

    def close(self) -> None:
        """Free the models."""
        for one in self.contenders:
            one.session.close()


def untuned(bench: Workbench) -> Base:
    """The untuned model, ready to be timed."""
    backend = open_backend("onnxruntime")
    one_thread = Engine(backend="onnxruntime", threads=1)
    return Base(
        Contender("untuned", backend.load(bench.source, UNTUNED), bench.panel()),
        Contender("untuned on one thread", backend.load(bench.source, one_thread), bench.panel()),
    )


def as_timing(contender: Contender, base: Base, engine: Engine, rounds: int) -> Timing:
    """A contender's figures after `loadslice.variants.timing.in_turns`."""
    wall_ms, cpu_ms = contender.ms_p50
    speed = contender.speedup(base.untuned, base.one_thread)
    value, basis = speed.best
    return Timing(
        engine=engine,
        batch=int(next(iter(contender.panel[0].values())).shape[0]),
        latency_ms_p50=round(wall_ms, 4),
        cpu_ms_p50=round(cpu_ms, 4),
        speedup_vs_untuned=round(value, 3),
        basis=basis,
        cpu_speedup_vs_untuned=round(speed.cpu, 3),
        rounds=rounds,
        clean_rounds=speed.clean_rounds,
    )


def settings(bench: Workbench, proof: Proof, base: Base, seconds: float) -> list[Timing]:
    """Time one artefact at every thread count and graph level worth trying; the fastest first."""
    engines = [msgspec.structs.replace(proof.engine, threads=count) for count in thread_counts(bench.cores)]
    if proof.engine.backend == "onnxruntime":
        engines += [
            msgspec.structs.replace(proof.engine, options=proof.engine.options | {"graph_optimization_level": level})
            for level in GRAPH_LEVELS
        ]
    backend = open_backend(proof.engine.backend)
    contenders = [
        Contender(f"setting {index}", backend.load(proof.artefact.path, engine), bench.panel())
        for index, engine in enumerate(engines)
    ]
    again = base.again()
    try:
        rounds = timing.in_turns([*again.contenders, *contenders], seconds)
    finally:
        for one in contenders:
            one.session.close()
    found = [as_timing(one, again, engine, rounds) for one, engine in zip(contenders, engines, strict=True)]
    return sorted(found, key=lambda one: -one.speedup_vs_untuned)


def throughput(bench: Workbench, proof: Proof, base: Base, seconds: float) -> list[Throughput]:
    """Items per second with every core busy: many one-thread streams, or one stream of all threads; rows or batches.

    Windows of the untuned model and of each setting alternate; medians are compared.

    Args:
        bench: Its cores are shared out.
        proof: An artefact that runs and has been judged.
        base: The untuned model.
        seconds: Time for all of it.

    Returns:
        One for each way, the quickest first, but those last that miss the floor when rows share a batch.
    """
    cores = bench.cores
    window_s = min(max(seconds / WINDOWS_IN_TIME, WINDOW_S_MIN), WINDOW_S_MAX)
    found = []
    judged: dict[int, tuple[Exam, Marks] | None] = {}
    for streams, threads in {(cores, 1), (1, cores)}:
        engine = msgspec.structs.replace(proof.engine, threads=threads, max_inflight=streams)
        session = open_backend(proof.engine.backend).load(proof.artefact.path, engine)
        try:
            sizes = BATCHES if takes_rows(session, base.untuned.panel[0]) else BATCHES[:1]
            for size in sizes:
                if size not in judged:
                    judged[size] = judge_together(session, bench.judging, size) if size > 1 else None
                rate = _against(session, repeated(base.untuned.panel, size), base, window_s, streams, threads, size)
                found.append(_with_marks(rate, judged[size]))
        finally:
            session.close()
    # What misses the floor in company is the last that anybody should serve.
    return sorted(found, key=lambda one: (one.meets_floor is False, -one.items_per_s))


def repeated(panel: Sequence[Feeds], size: int) -> list[Feeds]:
    """The panel's inputs, repeated along the rows: for times, which do not depend on what the rows hold."""
    return [{name: np.repeat(tensor, size, axis=0) for name, tensor in feeds.items()} for feeds in panel]


def _with_marks(rate: Throughput, judged: tuple[Exam, Marks] | None) -> Throughput:
    if judged is None:
        return rate
    exam, marks = judged
    return msgspec.structs.replace(rate, metric=marks.metric, judged_inputs=len(exam), meets_floor=exam.passes(marks))


def _against(
    session: Session,
    panel: Sequence[Feeds],
    base: Base,
    window_s: float,
    streams: int,
    threads: int,
    size: int,
) -> Throughput:
    own, theirs = [], []
    for _ in range(WINDOWS):
        theirs.append(
            timing.items_per_s(base.untuned.session, base.untuned.panel, streams * threads, window_s, one_slot=True)
        )
        own.append(timing.items_per_s(session, panel, streams, window_s, one_slot=streams == 1))
    return Throughput(
        streams=streams,
        threads=threads,
        batch=size,
        items_per_s=round(float(np.median(own)), 3),
        speedup_vs_untuned=round(float(np.median(np.divide(own, theirs))), 3),
    )


def load_at(path: Path, runtime: str, bench: Workbench) -> Session:
    """A file in a runtime with all threads, bf16 where OpenVINO has it: what a bucket would be served with."""
    precision = "bf16" if runtime == "openvino" and bench.cpu.bf16 else "fp32"
    return open_backend(runtime).load(path, Engine(backend=runtime, threads=bench.cores, precision=precision))  # type: ignore[arg-type]
