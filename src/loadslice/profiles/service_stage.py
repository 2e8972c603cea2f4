"""One stage of a service that is squeezed: its recorded rows, its candidates, its buckets and its batch."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from loadslice.backends.base import Session, TensorInfo, open_backend
from loadslice.backends.gather import bucket_of, bucket_shape, gather
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Stage
from loadslice.spec.service import StageCandidate
from loadslice.spec.variant import CpuOffer
from loadslice.spec.work import Work
from loadslice.variants import cpu, timing
from loadslice.variants.bench import Artefact, Failure, Proof, Workbench
from loadslice.variants.buckets import choose
from loadslice.variants.exam import Exam
from loadslice.variants.metrics import Floor
from loadslice.variants.prepare import prepare
from loadslice.variants.recorded import CALIBRATION_MAX, Recorded
from loadslice.variants.timing import Contender

ROWS_MAX = CALIBRATION_MAX
BATCHES = (4, 8, 16)
BUCKETS_MAX = 6
WORTH = 0.03
"""A bucket, a batch or a second runtime must save three per cent: less is noise, and each has a price in latency."""

PASSES = 2

Rows = Sequence[Work]


@dataclass
class Option:
    """One candidate that may be served.

    Attributes:
        proof: The artefact, on one thread of its runtime.
        seen: Its figures.
    """

    proof: Proof
    seen: StageCandidate

    @property
    def name(self) -> str:
        """Unique within its stage."""
        return self.proof.name


@dataclass
class Subject:
    """A model stage and what the service's inputs bring to it.

    Attributes:
        stage: From the pipeline file.
        model: The source file.
        pool: Works of the inputs that may be calibrated on.
        choice: Works of the inputs that candidates are chosen by.
        others: Works of all inputs that are not calibrated on.
        traffic: Works of all inputs, each as often as traffic brings it.
        options: Cheapest first, each next closer to the source.
        candidates: All that were measured.
    """

    stage: Stage
    model: Path
    pool: list[Work] = field(default_factory=list)
    choice: list[Work] = field(default_factory=list)
    others: list[Work] = field(default_factory=list)
    traffic: list[Work] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    candidates: list[StageCandidate] = field(default_factory=list)


def explore(
    subject: Subject, offer: CpuOffer, folder: Path, seconds: float, tell: Callable[[str], None]
) -> list[Failure]:
    """Build, prove and time the candidates of a stage; fills ``options`` and ``candidates``.

    Returns:
        What could not be built or run.

    Raises:
        InputError: None of them could.
    """
    bench = _bench(subject, offer, folder, tell)
    untuned = open_backend("onnxruntime").load(subject.model, Engine(backend="onnxruntime", threads=1))
    panel = [_feeds(subject.stage, untuned, work) for work in _panel(subject.traffic)]
    proofs = [
        proof
        for artefact in _artefacts(bench)
        for engine in bench.cpu_engines(artefact)
        if (proof := bench.prove(artefact, msgspec.structs.replace(engine, threads=1))) is not None
    ]
    if not proofs:
        untuned.close()
        why = f"; {bench.failures[0].name}: {bench.failures[0].why}" if bench.failures else ""
        raise InputError(
            f"stage '{subject.stage.name}': nothing that was made of {subject.model.name} runs on what was "
            f"recorded{why}. See more with `loadslice squeeze {subject.model}`, or leave the stage as it is."
        )
    tell(f"{subject.stage.name}: timing {len(proofs)} candidates")
    base = Contender("untuned", untuned, panel)
    contenders = [
        Contender(proof.name, open_backend(proof.engine.backend).load(proof.artefact.path, proof.engine), panel)
        for proof in proofs
    ]
    try:
        timing.in_turns([base, *contenders], seconds)
    finally:
        for one in (base, *contenders):
            one.session.close()
    seen = [
        StageCandidate(
            name=proof.name,
            backend=proof.engine.backend,
            cpu_ms=round(one.ms_p50[1], 4),
            cpu_speedup=round(one.speedup(base, base).cpu, 3),
            cosine=round(proof.chosen.cosine, 5),
            on_front=False,
        )
        for proof, one in zip(proofs, contenders, strict=True)
    ]
    seen = [msgspec.structs.replace(one, on_front=not _beaten(one, seen)) for one in seen]
    subject.candidates = sorted(seen, key=lambda one: one.cpu_ms)
    found = [Option(proof, one) for proof, one in zip(proofs, seen, strict=True) if one.on_front]
    subject.options = sorted(found, key=lambda one: one.seen.cpu_ms)
    return bench.failures


def bucket_choices(subject: Subject, option: Option) -> tuple[dict[str, list[list[int]]], dict[str, float]]:
    """Where buckets may come from, and what a request's rows cost with each, ms of processor time.

    A runtime prepares every shape it has not met. How often that will be is estimated from the inputs: the share of
    those not calibrated on whose shape, padded as it would be, none of the others has.
    """
    shapes = [(_shape(work)[1:],) for work in subject.traffic]
    sources: dict[str, list[list[int]]] = {"none": []}
    if len(set(shapes)) > 1:
        traffic = choose(shapes, [float(work.items) for work in subject.traffic], BUCKETS_MAX)
        sources["traffic"] = [list(one[0]) for one in traffic]
        if subject.stage.buckets:
            sources["pipeline"] = subject.stage.buckets
    costs: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(PASSES):
        for name, buckets in sources.items():
            costs[name].append(_cost_ms(msgspec.structs.replace(subject.stage, buckets=buckets), subject, option))
    return sources, {name: round(min(values), 4) for name, values in costs.items()}


def batch_costs(subject: Subject, option: Option, stage: Stage) -> dict[int, float]:
    """Rows at most -> processor time of one row, ms; works of one bucket are put together as a server would.

    0 stands for every request alone.
    """
    session = open_backend(option.proof.engine.backend).load(option.proof.artefact.path, option.proof.engine)
    try:
        groups = {size: _batches(stage, subject.traffic, session, size) for size in (0, *BATCHES)}
        for feeds in groups.values():
            for one in feeds:
                session.run(one)
        costs: dict[int, list[float]] = {size: [] for size in groups}
        rows = sum(work.items for work in subject.traffic)
        for _ in range(PASSES):
            for size, feeds in groups.items():
                costs[size].append(_cpu_ms(session, feeds) / rows)
    finally:
        session.close()
    return {size: round(min(values), 4) for size, values in costs.items()}


def _bench(subject: Subject, offer: CpuOffer, folder: Path, tell: Callable[[str], None]) -> Workbench:
    folder.mkdir(parents=True, exist_ok=True)
    session = open_backend("onnxruntime").load(subject.model, Engine(backend="onnxruntime", threads=1))
    try:
        pool, choice = (_recorded(works, session) for works in (subject.pool, subject.choice))
        exam = Exam("cosine", choice, [session.run(feeds) for feeds in choice.feeds], Floor("cosine", -1.0), None)
    finally:
        session.close()
    # Candidates of a stage are all chosen; the whole service's answers judge.
    return Workbench(
        source=subject.model, prepared=prepare(subject.model, folder / "source.onnx"), folder=folder, pool=pool,
        choosing=exam, judging=exam, cpu=offer, tell=lambda text: tell(f"{subject.stage.name}: {text}"), notes=[],
    )  # fmt: skip


def _artefacts(bench: Workbench) -> list[Artefact]:
    """The source on every runtime and in bf16, and INT8; the source's own file is served where nothing was changed."""
    made = cpu.precise(bench, ("cpu-fp32", "cpu-bf16"))
    found = [replace(one, path=bench.source) if one.scheme.tool == "none" else one for one in made]
    if bench.cpu.bf16 is None:
        found = [one for one in found if one.target != "cpu-bf16"]
    if bench.prepared.heavy:
        found += cpu.quick_int8(bench, bench.pool.take(range(min(len(bench.pool), CALIBRATION_MAX))))
    return found


def _recorded(works: Rows, session: Session) -> Recorded:
    """Rows of requests, one by one, as quantisers want them; spread over the requests when there are many."""
    rows = [
        {name: tensor[index : index + 1] for name, tensor in gather([work], None, session.inputs).items()}
        for work in works
        for index in range(work.items)
    ]
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), ROWS_MAX)).astype(int)).tolist()
    return Recorded([f"row-{index}" for index in chosen], [rows[index] for index in chosen], np.ones(len(chosen)), None)


def _panel(works: Rows) -> list[Work]:
    """A small, a middling and a large request."""
    ordered = sorted(works, key=lambda work: sum(tensor.size for tensor in work.tensors.values()))
    return [ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.5, 0.9)]


def shape_in(stage: Stage, session: Session, work: Work) -> list[int] | None:
    """The bucket that a work is padded to."""
    return bucket_shape(stage, bucket_of(stage, work, session.inputs))


def _feeds(stage: Stage, session: Session, *works: Work) -> Mapping[str, np.ndarray]:
    return gather(works, shape_in(stage, session, works[0]), session.inputs)


def _beaten(one: StageCandidate, others: Sequence[StageCandidate]) -> bool:
    return any(
        other.cpu_ms <= one.cpu_ms
        and other.cosine >= one.cosine
        and (other.cpu_ms < one.cpu_ms or other.cosine > one.cosine)
        for other in others
    )


def _cost_ms(stage: Stage, subject: Subject, option: Option) -> float:
    session = open_backend(option.proof.engine.backend).load(option.proof.artefact.path, option.proof.engine)
    try:
        distinct = [_feeds(stage, session, work) for work in (*subject.pool, *subject.others)]
        known = {_shape_of(one) for one in distinct[: len(subject.pool)]}
        unmet = float(np.mean([_shape_of(one) not in known for one in distinct[len(subject.pool) :]]))
        first = _cpu_ms(session, distinct)
        prepared = max(0.0, first - _cpu_ms(session, distinct)) / len(distinct)
        feeds = [_feeds(stage, session, work) for work in subject.traffic]
        again = _cpu_ms(session, feeds) / len(feeds)
    finally:
        session.close()
    return again + unmet * prepared


def _shape(work: Work) -> tuple[int, ...]:
    return tuple(next(iter(work.tensors.values())).shape)


def _shape_of(feeds: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    return tuple(next(iter(feeds.values())).shape)


def grouped(stage: Stage, works: Rows, inputs: Sequence[TensorInfo], rows_max: int) -> list[list[int]]:
    """Indices of works that run together: of one bucket, in their order, as many rows as fit."""
    groups: dict[int, list[list[int]]] = {}
    for index, work in enumerate(works):
        batches = groups.setdefault(bucket_of(stage, work, inputs), [[]])
        if batches[-1] and sum(works[other].items for other in batches[-1]) + work.items > rows_max:
            batches.append([])
        batches[-1].append(index)
    return [batch for batches in groups.values() for batch in batches]


def _batches(stage: Stage, works: Rows, session: Session, rows_max: int) -> list[Mapping[str, np.ndarray]]:
    return [
        _feeds(stage, session, *(works[index] for index in batch))
        for batch in grouped(stage, works, session.inputs, rows_max)
    ]


def _cpu_ms(session: Session, feeds: Sequence[Mapping[str, np.ndarray]]) -> float:
    before = time.process_time_ns()
    for one in feeds:
        session.run(one)
    return (time.process_time_ns() - before) / 1e6
