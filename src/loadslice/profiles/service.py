"""A whole service squeezed: a variant for every stage, chosen by what the service answers in the end.

A stage's own outputs say little: a detector that draws other boxes may lead to the same text, and small errors of
three stages may add up. So candidates are measured stage by stage, and combinations are judged by the service's final
answers on inputs that nothing was calibrated on. The cheapest combination is tried first; where it misses the floor,
the step to a closer candidate that gives back the most is taken, until the floor is met.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadslice.backends import probe
from loadslice.backends.base import EngineError, Session, open_backend
from loadslice.backends.python_stage import open_python_stage
from loadslice.profiles import service_pipeline, service_rate, service_stage
from loadslice.profiles.chain import Step, close, walk
from loadslice.profiles.service_pipeline import Tuned
from loadslice.profiles.service_stage import WORTH, Option, Subject
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, resolved, stamp
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.service import SCHEMA, Rate, Service, Trial
from loadslice.spec.work import Sample, Work
from loadslice.variants import environment
from loadslice.variants.bench import UNTUNED
from loadslice.variants.keep import TOOLS
from loadslice.variants.metrics import COSINE_MIN, LABELLED_LOSS_MAX, cosine

Scorer = Callable[[list[str], list[str]], tuple[int, int]]
"""(truth, read) -> characters wrong, characters in the truth."""

TEXT = "text"
"""The output that a scorer reads."""


@dataclass(frozen=True)
class Order:
    """What is asked for.

    Attributes:
        pipeline: Checked.
        path: Its file.
        document: The same as YAML gives it.
        samples: Inputs, small and large ones mixed; every second one is held out.
        calls: Names of samples, each as often as traffic brings it, mixed.
        scorer: ``None``: final outputs are compared by cosine.
        seconds: Time for timing, in all.
        tell: Is told what is going on.
    """

    pipeline: Pipeline
    path: Path
    document: Mapping[str, Any]
    samples: Sequence[Sample]
    calls: Sequence[str]
    scorer: Scorer | None
    seconds: float
    tell: Callable[[str], None]


@dataclass
class Judge:
    """Marks a service's final answers on the held-out inputs."""

    samples: Sequence[Sample]
    source: list[Work]
    scorer: Scorer | None
    trials: list[Trial] = field(default_factory=list)

    @property
    def name(self) -> str:
        """See `Service.metric`."""
        return "cosine" if self.scorer is None else "characters"

    def mark(self, steps: Sequence[Step]) -> float:
        """Of the service that ``steps`` are."""
        return self.of([walk(sample, steps)[-1] for sample in self.samples])

    def of(self, answers: Sequence[Work]) -> float:
        """Of answers in the order of the samples."""
        if self.scorer is None:
            return float(
                np.mean([cosine(left.tensors, right.tensors) for left, right in zip(self.source, answers, strict=True)])
            )
        marks = [
            self.scorer(sample.truth if sample.truth is not None else _texts(source), _texts(answer))
            for sample, source, answer in zip(self.samples, self.source, answers, strict=True)
        ]
        wrong, characters = np.sum(marks, axis=0).tolist()
        return float(1 - wrong / max(1, characters))


def squeeze(order: Order, out: Path) -> tuple[Service, dict[str, Any]]:
    """Do it.

    Args:
        order: What is asked for.
        out: Folder that artefacts are kept in.

    Returns:
        The record, and the tuned pipeline as a document that belongs beside the source's file.

    Raises:
        InputError: Nothing to squeeze, too few inputs, a stage refuses one, or a runtime fails.
    """
    try:
        return _squeeze(order, out)
    except EngineError as error:
        raise InputError(f"{order.path}: a runtime failed on what was recorded: {error}") from error


def _squeeze(order: Order, out: Path) -> tuple[Service, dict[str, Any]]:
    models = [stage for stage in order.pipeline.stages if stage.model is not None]
    if not models or any(stage.from_ is not None or stage.to is not None for stage in models):
        raise InputError(f"{order.path}: squeezing a service needs stages of whole models; see `loadslice squeeze -h`.")
    if len(order.samples) < 4:
        raise InputError(f"{order.path}: {len(order.samples)} example inputs; at least four are needed.")
    out.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    offer = environment.cpu_offer(environment.lock())
    subjects = [Subject(stage, resolve_model(stage.model or "", order.path.parent)) for stage in models]
    order.tell("running the untuned service on all inputs")
    source = _untuned(order, subjects)
    try:
        judge = _fill(order, source, subjects)
        with tempfile.TemporaryDirectory(prefix="loadslice-service-") as scratch:
            for subject in subjects:
                share = order.seconds / 2 / len(subjects)
                failures = service_stage.explore(subject, offer, Path(scratch) / subject.stage.name, share, order.tell)
                notes += [f"{subject.stage.name}: {one.name}: {one.why}" for one in failures]
            own = judge.of(judge.source)
            floor = own - LABELLED_LOSS_MAX if judge.scorer is not None else COSINE_MIN
            chosen = _choose(order, subjects, judge, floor)
            tuned = {one.stage.name: _settled(order, one, chosen[one.stage.name]) for one in subjects}
            files = service_pipeline.keep(tuned, out)
            load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
            untuned, best, wall, cpu, mark = _rates(order, source, tuned, judge)
    finally:
        close(source)
    made = service_pipeline.document(order.document, tuned, files, best[0], resolved(order.path).parent)
    record = Service(
        pipeline=str(order.path), metric=judge.name, floor=floor, source_metric=own, tuned_metric=mark,
        judged_inputs=len(judge.samples), stages=[
            service_pipeline.choice(one.stage.name, tuned[one.stage.name], files, one.candidates) for one in subjects
        ],
        trials=judge.trials, untuned=untuned, tuned=best, throughput_speedup=wall, cpu_speedup=cpu,
        load_average_1m=load, cpu=offer, notes=notes,
        stamp=stamp(SCHEMA, inputs={"pipeline": order.path}, tools=TOOLS),
    )  # fmt: skip
    return record, made


def _untuned(order: Order, subjects: Sequence[Subject]) -> list[Step]:
    """Every stage as it comes: no buckets, no batches."""
    backend = open_backend("onnxruntime")
    sessions = {one.stage.name: backend.load(one.model, UNTUNED) for one in subjects}
    return _steps(order, {name: (_bare(order, name), session) for name, session in sessions.items()})


def _bare(order: Order, name: str) -> Stage:
    stage = next(one for one in order.pipeline.stages if one.name == name)
    return msgspec.structs.replace(stage, buckets=[], batch={}, accept={}, engine="squeezed", engines=None)


def _steps(order: Order, loaded: dict[str, tuple[Stage, Session]]) -> list[Step]:
    steps = []
    for stage in order.pipeline.stages:
        if stage.python is not None:
            steps.append(Step(stage, open_python_stage(stage.python, order.path.parent), {}))
        else:
            bare, session = loaded[stage.name]
            steps.append(Step(bare, None, {"squeezed": session}))
    return steps


def _fill(order: Order, source: Sequence[Step], subjects: Sequence[Subject]) -> Judge:
    """Give each stage the works that the untuned service brings to it."""
    at = {step.stage.name: index for index, step in enumerate(source)}
    answers = []
    found: dict[str, list[Work]] = {}
    for number, sample in enumerate(order.samples):
        works = found[sample.name] = walk(sample, source)
        for subject in subjects:
            work = works[at[subject.stage.name]]
            if work.items:
                (subject.held_out if number % 2 else subject.pool).append(work)
        if number % 2:
            answers.append(works[-1])
    for subject in subjects:
        works = [found[name][at[subject.stage.name]] for name in order.calls]
        subject.traffic = [work for work in works if work.items]
    empty = [one.stage.name for one in subjects if not (one.pool and one.held_out and one.traffic)]
    if empty:
        raise InputError(f"{order.path}: the example inputs bring no rows to stage '{empty[0]}'. Give more of them.")
    return Judge([sample for number, sample in enumerate(order.samples) if number % 2], answers, order.scorer)


def _choose(order: Order, subjects: Sequence[Subject], judge: Judge, floor: float) -> dict[str, Option]:
    """The cheapest combination found that meets the floor; see the module's first lines."""
    at = {one.stage.name: 0 for one in subjects}
    by_name = {one.stage.name: one for one in subjects}

    def picked(places: dict[str, int]) -> dict[str, Option]:
        return {name: by_name[name].options[place] for name, place in places.items()}

    def marked(options: dict[str, Option]) -> float:
        return _mark(order, options, judge)

    best = marked(picked(at))
    while best < floor:
        steps = [{**at, name: place + 1} for name, place in at.items() if place + 1 < len(by_name[name].options)]
        if not steps:
            break
        marks = [marked(picked(one)) for one in steps]
        # Of those that meet the floor the cheapest; while none does, the one that gives back the most.
        good = [one for one, mark in zip(steps, marks, strict=True) if mark >= floor]
        if good:
            at = min(good, key=lambda one: sum(option.seen.cpu_ms for option in picked(one).values()))
            break
        best, at = max(zip(marks, steps, strict=True), key=lambda pair: pair[0])
    return _one_runtime(subjects, picked(at), marked, floor)


def _one_runtime(
    subjects: Sequence[Subject], chosen: dict[str, Option], marked: Callable[[dict[str, Option]], float], floor: float
) -> dict[str, Option]:
    """Leave a second runtime out where it saves next to nothing: its threads compete with the first one's."""
    total = sum(option.seen.cpu_ms for option in chosen.values())
    main = max(chosen.values(), key=lambda option: option.seen.cpu_ms).proof.engine.backend
    others = {}
    for subject in subjects:
        name = subject.stage.name
        same = [one for one in subject.options if one.proof.engine.backend == main]
        at_least = chosen[name].seen.cosine
        close_enough = [one for one in same if one.seen.cosine >= at_least] or same
        others[name] = chosen[name] if chosen[name] in same or not same else close_enough[0]
    if sum(option.seen.cpu_ms for option in others.values()) > (1 + WORTH) * total or others == chosen:
        return chosen
    return others if marked(others) >= floor else chosen


def _mark(order: Order, options: dict[str, Option], judge: Judge, tuned: dict[str, Tuned] | None = None) -> float:
    loaded = {}
    for name, option in options.items():
        stage = _bare(order, name)
        if tuned is not None:
            stage = msgspec.structs.replace(stage, buckets=tuned[name].buckets)
        loaded[name] = (
            stage,
            open_backend(option.proof.engine.backend).load(option.proof.artefact.path, option.proof.engine),
        )
    steps = _steps(order, loaded)
    try:
        mark = judge.mark(steps)
    finally:
        close(steps)
    names = {name: option.name for name, option in options.items()}
    judge.trials.append(Trial(variants=names, metric=mark))
    order.tell(f"{judge.name} {mark:.4f} with {', '.join(names.values())}")
    return mark


def _settled(order: Order, subject: Subject, option: Option) -> Tuned:
    """Buckets and batch of a stage whose candidate is chosen."""
    order.tell(f"{subject.stage.name}: buckets and batches for {option.name}")
    sources, costs = service_stage.bucket_choices(subject, option)
    cheapest = min(costs, key=lambda name: costs[name])
    where = cheapest if costs[cheapest] < (1 - WORTH) * costs["none"] else "none"
    stage = msgspec.structs.replace(_bare(order, subject.stage.name), buckets=sources[where])
    batches = service_stage.batch_costs(subject, option, stage)
    best = min(batches, key=lambda size: batches[size])
    size = best if batches[best] < (1 - WORTH) * batches[0] else 0
    return Tuned(option, sources[where], where, costs, max(1, size), batches)  # type: ignore[arg-type]


def _rates(
    order: Order, source: Sequence[Step], tuned: dict[str, Tuned], judge: Judge
) -> tuple[list[Rate], list[Rate], float, float, float]:
    """Untuned and tuned rates, the ratios of the best of both, and the tuned service's mark with its buckets."""
    cores = probe.usable_cores()
    options = {name: one.option for name, one in tuned.items()}
    mark = _mark(order, options, judge, tuned)
    untuned = [service_rate.Setting(source, callers, 1, cores) for callers in sorted({1, 2 * cores})]
    contenders = [
        service_rate.Setting(_at(order, tuned, *shape), shape[0], *shape) for shape in {(cores, 1), (1, cores)}
    ]
    by_name = {sample.name: sample for sample in order.samples}
    order.tell(f"calling the service without a pause, {len(untuned) + len(contenders)} settings by turns")
    try:
        service_rate.measure([*untuned, *contenders], [by_name[name] for name in order.calls], order.seconds / 2)
    finally:
        for one in contenders:
            close(one.steps)
    base = max(untuned, key=lambda one: one.requests_per_s)
    contenders.sort(key=lambda one: -one.requests_per_s)
    wall, cpu = contenders[0].against(base)
    return [one.rate for one in untuned], [one.rate for one in contenders], wall, cpu, mark


def _at(order: Order, tuned: dict[str, Tuned], streams: int, threads: int) -> list[Step]:
    loaded = {}
    for name, one in tuned.items():
        engine = msgspec.structs.replace(one.option.proof.engine, threads=threads, max_inflight=streams)
        stage = msgspec.structs.replace(_bare(order, name), buckets=one.buckets)
        loaded[name] = (stage, open_backend(engine.backend).load(one.option.proof.artefact.path, engine))
    return _steps(order, loaded)


def _texts(work: Work) -> list[str]:
    found = work.tensors.get(TEXT)
    if found is None:
        raise InputError(f"the inputs module has a `score`, which reads texts; the answer has no output '{TEXT}'.")
    return [str(line) for line in found.tolist()]
