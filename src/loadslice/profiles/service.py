"""A whole service squeezed: a variant for every stage, chosen by what the service answers in the end.

A stage's own outputs say little: a detector that draws other boxes may lead to the same text, and small errors of
three stages may add up. So candidates are measured stage by stage, and combinations are chosen by the service's final
answers on inputs that nothing was calibrated on. The cheapest combination is tried first; where it misses the floor,
the step to a closer candidate that gives back the most is taken, until the floor is met. What was chosen is then judged
once, in the buckets and batches it would be served in, by inputs that chose nothing.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from loadslice.backends import probe
from loadslice.backends.base import EngineError, Session, open_backend
from loadslice.backends.python_stage import open_python_stage
from loadslice.profiles import service_pipeline, service_rate, service_stage
from loadslice.profiles.chain import Step, close, walk
from loadslice.profiles.service_judge import Judge, Scorer
from loadslice.profiles.service_pipeline import Tuned
from loadslice.profiles.service_stage import WORTH, Option, Subject
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, resolved, stamp
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.service import SCHEMA, Rate, Service, ServiceInputs, Trial
from loadslice.spec.work import Sample, Work
from loadslice.variants import environment
from loadslice.variants.bench import UNTUNED
from loadslice.variants.keep import TOOLS
from loadslice.variants.recorded import APART_MIN


@dataclass(frozen=True)
class Order:
    """What is asked for.

    Attributes:
        pipeline: Checked.
        path: Its file.
        document: The same as YAML gives it.
        samples: Inputs, small and large ones mixed; every second one judges.
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


@dataclass(frozen=True)
class _Judges:
    """Who chooses, who judges, and what was tried on the way."""

    choosing: Judge
    judging: Judge
    trials: list[Trial]


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
        judges, inputs = _fill(order, source, subjects)
        if not inputs.choice:
            notes.append(
                f"{len(order.samples)} example inputs are too few to choose by a part of their own: combinations were "
                f"chosen by the {len(inputs.calibration)} that were calibrated on, which flatter them. "
                f"Give {APART_MIN} or more."
            )
        with tempfile.TemporaryDirectory(prefix="loadslice-service-") as scratch:
            for subject in subjects:
                share = order.seconds / 2 / len(subjects)
                failures = service_stage.explore(subject, offer, Path(scratch) / subject.stage.name, share, order.tell)
                notes += [f"{subject.stage.name}: {one.name}: {one.why}" for one in failures]
            chosen = _choose(order, subjects, judges)
            settled = {one.stage.name: _settled(order, one, chosen[one.stage.name]) for one in subjects}
            tuned = _as_served(order, settled, judges)
            files = service_pipeline.keep(tuned, out)
            load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
            order.tell("judging what was chosen")
            mark = _run(order, tuned, judges.judging)
            untuned, best, wall, cpu = _rates(order, source, tuned)
    finally:
        close(source)
    made = service_pipeline.document(order.document, tuned, files, best[0], resolved(order.path).parent)
    record = Service(
        pipeline=str(order.path), metric=judges.judging.name, floor=judges.judging.floor,
        source_metric=judges.judging.source_mark, tuned_metric=mark,
        judged_inputs=len(judges.judging.samples), inputs=inputs, stages=[
            service_pipeline.choice(one.stage.name, tuned[one.stage.name], files, one.candidates) for one in subjects
        ],
        trials=judges.trials, untuned=untuned, tuned=best, throughput_speedup=wall, cpu_speedup=cpu,
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


def _fill(order: Order, source: Sequence[Step], subjects: Sequence[Subject]) -> tuple[_Judges, ServiceInputs]:
    """Divide the inputs, and give each stage the works that the untuned service brings to it."""
    at = {step.stage.name: index for index, step in enumerate(source)}
    found = {sample.name: walk(sample, source) for sample in order.samples}
    judged = order.samples[1::2]
    pool, choice = order.samples[0::4], order.samples[2::4]
    if len(order.samples) < APART_MIN:
        pool, choice = order.samples[0::2], []

    def works(samples: Sequence[Sample] | Sequence[str], stage: Stage) -> list[Work]:
        names = [one if isinstance(one, str) else one.name for one in samples]
        return [work for name in names if (work := found[name][at[stage.name]]).items]

    for subject in subjects:
        subject.pool = works(pool, subject.stage)
        subject.choice = works(choice or pool, subject.stage)
        subject.others = works([*choice, *judged], subject.stage)
        subject.traffic = works(order.calls, subject.stage)
    empty = [one.stage.name for one in subjects if not (one.pool and one.choice and one.others and one.traffic)]
    if empty:
        raise InputError(f"{order.path}: the example inputs bring no rows to stage '{empty[0]}'. Give more of them.")
    choosing, judging = (
        Judge(samples, [found[sample.name][-1] for sample in samples], order.scorer)
        for samples in (choice or pool, judged)
    )
    used = ServiceInputs(
        calibration=[one.name for one in pool], choice=[one.name for one in choice],
        judgement=[one.name for one in judged],
    )  # fmt: skip
    return _Judges(choosing, judging, []), used


def _choose(order: Order, subjects: Sequence[Subject], judges: _Judges) -> dict[str, Option]:
    """The cheapest combination found that meets the floor; see the module's first lines."""
    floor = judges.choosing.floor
    at = {one.stage.name: 0 for one in subjects}
    by_name = {one.stage.name: one for one in subjects}

    def picked(places: dict[str, int]) -> dict[str, Option]:
        return {name: by_name[name].options[place] for name, place in places.items()}

    def marked(options: dict[str, Option]) -> float:
        bare = {name: Tuned(option, [], "none", {}, 1, {}) for name, option in options.items()}
        return _tried(order, bare, judges)

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


def _tried(order: Order, tuned: Mapping[str, Tuned], judges: _Judges) -> float:
    """A combination's mark on the inputs to choose by; written down."""
    mark = _run(order, tuned, judges.choosing)
    names = {name: one.option.name for name, one in tuned.items()}
    buckets, rows = any(one.buckets for one in tuned.values()), {name: one.batch for name, one in tuned.items()}
    judges.trials.append(Trial(variants=names, metric=mark, buckets=buckets, rows=rows))
    how = f"{', in buckets' if buckets else ''}{', in batches' if max(rows.values()) > 1 else ''}"
    order.tell(f"{judges.choosing.name} {mark:.4f} with {', '.join(names.values())}{how}")
    return mark


def _as_served(order: Order, tuned: dict[str, Tuned], judges: _Judges) -> dict[str, Tuned]:
    """Buckets and batches as far as the answers bear them.

    Padding may change answers, and so does company where scales are taken as rows come.
    """
    alone = {name: replace(one, batch=1) for name, one in tuned.items()}
    bare = {name: replace(one, buckets=[], buckets_from="none") for name, one in alone.items()}
    for way in (tuned, alone):
        if _tried(order, way, judges) >= judges.choosing.floor:
            return way
    return bare


def _run(order: Order, tuned: Mapping[str, Tuned], judge: Judge) -> float:
    loaded = {}
    for name, one in tuned.items():
        engine = one.option.proof.engine
        stage = msgspec.structs.replace(_bare(order, name), buckets=one.buckets)
        loaded[name] = (stage, open_backend(engine.backend).load(one.option.proof.artefact.path, engine))
    steps = _steps(order, loaded)
    try:
        return judge.mark(steps, {name: one.batch for name, one in tuned.items()})
    finally:
        close(steps)


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
    order: Order, source: Sequence[Step], tuned: dict[str, Tuned]
) -> tuple[list[Rate], list[Rate], float, float]:
    """Untuned and tuned rates, and the ratios of the best of both: requests per second and processor time."""
    cores = probe.usable_cores()
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
    return [one.rate for one in untuned], [one.rate for one in contenders], wall, cpu


def _at(order: Order, tuned: dict[str, Tuned], streams: int, threads: int) -> list[Step]:
    loaded = {}
    for name, one in tuned.items():
        engine = msgspec.structs.replace(one.option.proof.engine, threads=threads, max_inflight=streams)
        stage = msgspec.structs.replace(_bare(order, name), buckets=one.buckets)
        loaded[name] = (stage, open_backend(engine.backend).load(one.option.proof.artefact.path, engine))
    return _steps(order, loaded)
