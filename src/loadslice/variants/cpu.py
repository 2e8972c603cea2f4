"""What is built for the processor: the source fused, bf16, and INT8 in every scheme that has won somewhere.

None of the schemes wins everywhere (measured: plain static INT8 on convolutions with ReLU, NNCF on transformers, bf16
on text recognition, block-wise INT4 on decoders), so all that fit the model are built and what they cost is measured.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadslice.backends.base import Session, open_backend
from loadslice.spec.pipeline import Engine
from loadslice.spec.variant import (
    Calibration,
    CalibrationTrial,
    KeepStep,
    LayerSensitivity,
    Precision,
    Scheme,
)
from loadslice.variants import coverage, layers, nncf_tools, ort_tools
from loadslice.variants.bench import Artefact, Workbench
from loadslice.variants.exam import mean_cosine
from loadslice.variants.metrics import Judge, Outputs, differences
from loadslice.variants.prepare import HEAVY
from loadslice.variants.recorded import CALIBRATION_MAX, Recorded

RANDOM_SEEDS = (0, 1, 2)
"""Random calibration sets that coverage is compared with; three show how far chance alone goes."""

SMALLER_SETS = (4, 16)
"""Sizes tried beside the full one: more inputs widen MinMax's ranges, and were a little worse on a text recogniser."""

TRIAL_INPUTS_MAX = 64
RANKING_INPUTS = 6
RECOVERED_ENOUGH = 0.9

SOURCE = Scheme(weight_bits=32, activation_bits=32, tool="none")
FUSED = Scheme(weight_bits=32, activation_bits=32, tool=ort_tools.VERSION)
BF16 = Scheme(weight_bits=16, activation_bits=16, tool="none")
DYNAMIC = Scheme(
    weight_bits=8, activation_bits=8, tool=ort_tools.VERSION, activation_scales="dynamic", per_channel=True,
    symmetric=True, operators=["MatMul", "Gemm"],
)  # fmt: skip
NNCF = Scheme(
    weight_bits=8, activation_bits=8, tool=nncf_tools.VERSION, activation_scales="static", per_channel=True,
    symmetric=True, calibrator="nncf", operators=["all"],
)  # fmt: skip

NNCF_KEPT = (1, 2, 4, 8)
"""Layers that NNCF's scheme is tried without, when it misses the floor with all."""


def static_scheme(operators: Sequence[str] = HEAVY, calibrator: str = "minmax") -> Scheme:
    """ONNX Runtime's QDQ: signed weights per channel, unsigned activations."""
    return Scheme(
        weight_bits=8, activation_bits=8, tool=ort_tools.VERSION, activation_scales="static", per_channel=True,
        symmetric=True, calibrator=calibrator, operators=list(operators),
    )  # fmt: skip


def calibration(bench: Workbench, sizes: int = CALIBRATION_MAX) -> tuple[Recorded, Any, Calibration]:
    """Choose a calibration set by what comes of it.

    Coverage and random draws, of a few sizes, are each calibrated on, the same INT8 model is built from each and run on
    the inputs to choose by; the best is used.

    Returns:
        The set, the ranges taken from it, and the record of the choice.
    """
    exam = bench.choosing
    tried = exam.inputs.take(range(min(len(exam), TRIAL_INPUTS_MAX)))
    source = exam.source[: len(tried)]
    judge = Judge("sqnr_db", source, tried)
    found: list[tuple[float, CalibrationTrial, Recorded, Any]] = []
    for method, seed, indices in _calibration_sets(bench.pool, sizes):
        chosen = bench.pool.take(indices)
        ranges = ort_tools.calibrate(bench.prepared.path, chosen.feeds)
        path = ort_tools.quantise(bench.prepared.path, ranges, bench.folder / "trial.onnx", only=bench.prepared.heavy)
        outputs = _run(bench, path, tried)
        trial = CalibrationTrial(
            method=method,  # type: ignore[arg-type]
            seed=seed,
            inputs=len(chosen),
            sqnr_db=judge.sqnr_db(outputs),
            metric=mean_cosine(source, outputs),
        )
        found.append((judge.mark(outputs), trial, chosen, ranges))
    _, best, chosen, ranges = max(found, key=lambda one: one[0])
    trials = [one[1] for one in found]
    record = Calibration(
        method=best.method, inputs=chosen.names, sha256=chosen.sha256(), trials=trials, finding=_finding(trials)
    )
    return chosen, ranges, record


def _calibration_sets(pool: Recorded, most: int) -> list[tuple[str, int | None, list[int]]]:
    """Method, seed and indices of the sets to try: smaller ones once by each method, three draws of the full size."""
    found: list[tuple[str, int | None, list[int]]] = []
    for size in (*SMALLER_SETS, most):
        if size < most and size >= len(pool):
            continue
        found.append(("coverage", None, coverage.by_coverage(pool, size)))
        if size < len(pool):
            seeds = RANDOM_SEEDS if size == most else RANDOM_SEEDS[:1]
            found += [("random", seed, coverage.at_random(pool, size, seed)) for seed in seeds]
    return found


def precise(bench: Workbench, targets: Sequence[str]) -> list[Artefact]:
    """The source, fused, at its own precision and in bf16."""
    found = []
    if "cpu-fp32" in targets:
        found.append(Artefact("fp32-fused", "cpu-fp32", bench.prepared.path, SOURCE))
        if bench.prepared.attention:
            made = bench.attempt("fp32-transformer", "cpu-fp32", FUSED, lambda out: ort_tools.fuse_transformer(
                bench.prepared.path, out))  # fmt: skip
            found += [] if made is None else [made]
    if "cpu-bf16" in targets:
        found.append(Artefact("bf16", "cpu-bf16", bench.prepared.path, BF16))
    return found


def quick_int8(bench: Workbench, chosen: Recorded) -> list[Artefact]:
    """The INT8 schemes that won somewhere and take seconds to build: static, dynamic where products are, NNCF's."""
    model, heavy = bench.prepared.path, bench.prepared.heavy
    made = [
        bench.attempt("int8-static", "cpu-int8", static_scheme(), lambda out: ort_tools.quantise(
            model, ort_tools.calibrate(model, chosen.feeds), out, only=heavy)),
        _nncf(bench, chosen),
    ]  # fmt: skip
    if _multiplies(bench):
        made += [_dynamic(bench), _dynamic_transformer(bench) if bench.prepared.attention else None]
    return [one for one in made if one is not None]


def int8(bench: Workbench, chosen: Recorded, ranges: Any) -> list[Artefact]:
    """Every INT8 scheme that fits the model, none of its layers kept."""
    model, heavy = bench.prepared.path, bench.prepared.heavy
    percentile, operators = static_scheme(calibrator="percentile"), static_scheme(["all"])
    blocks = Scheme(
        weight_bits=8, activation_bits=32, tool=ort_tools.VERSION, symmetric=True, group_size=ort_tools.BLOCK,
        operators=["MatMul"],
    )  # fmt: skip
    weights = Scheme(weight_bits=8, activation_bits=32, tool=nncf_tools.VERSION, per_channel=True, symmetric=True)
    made = [
        bench.attempt("int8-static", "cpu-int8", static_scheme(), lambda out: ort_tools.quantise(
            model, ranges, out, only=heavy)),
        bench.attempt("int8-percentile", "cpu-int8", percentile, lambda out: ort_tools.quantise(
            model, ort_tools.calibrate(model, chosen.feeds, method="percentile"), out, only=heavy)),
        bench.attempt("int8-all-operators", "cpu-int8", operators, lambda out: ort_tools.quantise(
            model, ort_tools.calibrate(model, chosen.feeds, all_operators=True), out, all_operators=True)),
        _nncf(bench, chosen),
    ]  # fmt: skip
    if _multiplies(bench):
        made += [
            _dynamic(bench),
            _dynamic_transformer(bench) if bench.prepared.attention else None,
            bench.attempt("int8-blocks", "cpu-int8", blocks, lambda out: ort_tools.quantise_blocks(model, out, bits=8)),
            bench.attempt("int8-weights", "cpu-int8", weights, lambda out: nncf_tools.compress_weights(
                model, out, bits=8), ".xml"),
        ]  # fmt: skip
    return [one for one in made if one is not None]


def _nncf(bench: Workbench, chosen: Recorded) -> Artefact | None:
    return bench.attempt("int8-nncf", "cpu-int8", NNCF, lambda out: nncf_tools.quantise(
        bench.prepared.path, chosen.feeds, out, attention=bench.prepared.attention), ".xml")  # fmt: skip


def nncf_kept(
    bench: Workbench, plain: Artefact, chosen: Recorded, ranked: Sequence[LayerSensitivity]
) -> Artefact | None:
    """NNCF's scheme without the fewest of the worst layers with which it meets the floor.

    Args:
        bench: In progress.
        plain: NNCF's with all layers.
        chosen: The calibration set.
        ranked: Layers, the worst first.

    Returns:
        ``None``: it meets the floor with all layers, or without any of the numbers tried.
    """
    exam = bench.choosing

    def passes(made: Artefact) -> bool:
        return exam.passes(exam.marks(_run(bench, made.path, exam.inputs, bench.cpu_engines(made)[0])))

    if passes(plain):
        return None
    for count in NNCF_KEPT:
        worst = [one.layer for one in ranked[:count]]
        made = bench.attempt(f"int8-nncf-keep{count}", "cpu-int8", NNCF, lambda out, worst=worst: nncf_tools.quantise(  # type: ignore[misc]
            bench.prepared.path, chosen.feeds, out, attention=bench.prepared.attention, keep=worst), ".xml",
            kept=worst)  # fmt: skip
        if made is None or passes(made):
            return made
    return None


def _dynamic(bench: Workbench) -> Artefact | None:
    return bench.attempt(
        "int8-dynamic", "cpu-int8", DYNAMIC, lambda out: ort_tools.quantise_dynamic(bench.prepared.path, out)
    )


def _dynamic_transformer(bench: Workbench) -> Artefact | None:
    """Fused first: what stands between the products is then one operator, too."""

    def make(out: Path) -> Path:
        fused = ort_tools.fuse_transformer(bench.prepared.path, bench.folder / "transformer.onnx")
        return ort_tools.quantise_dynamic(fused, out)

    return bench.attempt("int8-dynamic-transformer", "cpu-int8", DYNAMIC, make)


def keep_worst(bench: Workbench, plain: Artefact, ranges: Any) -> tuple[list[Artefact], Precision]:
    """The three steps on plain static INT8: how its output differs, which layers do it, what keeping them gives back.

    All of it on the inputs to choose by.

    Returns:
        The first rung of the ladder that gives back half of what was lost and the first that meets the floor (or the
        best there is), with the record of all.
    """
    exam = bench.choosing
    outputs = _run(bench, plain.path, exam.inputs)
    differs = differences(exam.source, outputs, exam.inputs)
    ranked = layers.rank(
        bench.prepared, plain.path, ranges, exam.inputs.feeds[:RANKING_INPUTS], lambda path: _open(bench, path)
    )
    lost = mean_cosine(exam.source, outputs)
    steps: list[KeepStep] = [_step(bench, 0, outputs, lost)]
    made: list[tuple[KeepStep, Artefact]] = []
    for count in layers.rungs(len(ranked)):
        artefact = _kept(bench, ranked, count, ranges)
        if artefact is None:
            continue
        steps.append(_step(bench, count, _run(bench, artefact.path, exam.inputs), lost))
        made.append((steps[-1], artefact))
        enough = (steps[-1].recovered_share or 0.0) >= RECOVERED_ENOUGH or steps[-1].recovered_share is None
        if enough and (steps[-1].metric or 0.0) >= exam.floor.least:
            break
    half = next((one for step, one in made if (step.recovered_share or 0.0) >= 0.5), None)
    good = next((one for step, one in made if step.metric is not None and step.metric >= exam.floor.least), None)
    best = max(made, key=lambda pair: pair[0].recovered_share or 0.0)[1] if made else None
    wanted = {one.name: one for one in (half, good or best) if one is not None}
    return list(wanted.values()), Precision(plain=plain.name, differences=differs, layers=ranked, keep=steps)


def _kept(bench: Workbench, ranked: Sequence[LayerSensitivity], count: int, ranges: Any) -> Artefact | None:
    worst = [one.layer for one in ranked[:count]]
    others = [name for name in bench.prepared.heavy if name not in worst]
    return bench.attempt(
        f"int8-keep{count}", "cpu-int8", static_scheme(),
        lambda out: ort_tools.quantise(bench.prepared.path, ranges, out, only=others), kept=worst,
    )  # fmt: skip


def _step(bench: Workbench, count: int, outputs: Sequence[Outputs], plain_cosine: float) -> KeepStep:
    marks = bench.choosing.marks(outputs)
    return KeepStep(
        kept=count,
        sqnr_db=marks.sqnr_db,
        metric=marks.metric,
        cosine=marks.cosine,
        recovered_share=layers.recovered_share(plain_cosine, marks.cosine, 1.0),
    )


def _open(bench: Workbench, path: Path) -> Session:
    return open_backend("onnxruntime").load(path, Engine(backend="onnxruntime", threads=bench.cores))


def _run(bench: Workbench, path: Path, inputs: Recorded, engine: Engine | None = None) -> list[Outputs]:
    session = _open(bench, path) if engine is None else open_backend(engine.backend).load(path, engine)
    try:
        return [session.run(feeds) for feeds in inputs.feeds]
    finally:
        session.close()


def _multiplies(bench: Workbench) -> bool:
    return any(kind in {"MatMul", "Gemm"} for kind in bench.prepared.kinds.values())


def _finding(trials: Sequence[CalibrationTrial]) -> str:
    """Whether the choice of inputs and their number mattered, in words."""
    most = max(trial.inputs for trial in trials)
    return f"{_choice(most, trials)} {_sizes(most, trials)}".strip()


def _choice(most: int, trials: Sequence[CalibrationTrial]) -> str:
    """Whether coverage beat chance: only when it is better than every random draw of as many inputs."""
    covered = next(trial for trial in trials if trial.method == "coverage" and trial.inputs == most)
    drawn = [
        trial.sqnr_db
        for trial in trials
        if trial.method == "random" and trial.inputs == most and trial.sqnr_db is not None
    ]
    if not drawn:
        return "all inputs that may be calibrated on were used: there was nothing to choose."
    if covered.sqnr_db is None:
        return "the quantised model equals the source on these inputs."
    spread = f"random {min(drawn):.2f} to {max(drawn):.2f} dB (median {np.median(drawn):.2f})"
    said = f"coverage {covered.sqnr_db:.2f} dB, {spread}, {covered.inputs} inputs each"
    if covered.sqnr_db > max(drawn):
        return f"coverage beat every random draw: {said}."
    if covered.sqnr_db < min(drawn):
        return f"every random draw beat coverage: {said}."
    return f"no difference beyond chance: {said}."


def _sizes(most: int, trials: Sequence[CalibrationTrial]) -> str:
    """What fewer inputs cost, against how far draws of the full size differ among themselves."""
    by_size: dict[int, list[float]] = {}
    for trial in trials:
        if trial.sqnr_db is not None:
            by_size.setdefault(trial.inputs, []).append(trial.sqnr_db)
    if len(by_size) < 2 or most not in by_size:
        return ""
    figures = ", ".join(f"{size}: {max(values):.2f}" for size, values in sorted(by_size.items()))
    if len(by_size[most]) < 2:
        return f"Best by number of inputs, dB: {figures}; one set of {most} does not say how far chance goes."
    lost = max(by_size[most]) - max(max(values) for size, values in by_size.items() if size < most)
    chance = max(by_size[most]) - min(by_size[most])
    verdict = "more helped" if lost > chance else "fewer were better" if lost < -chance else "no difference"
    return f"Best by number of inputs, dB: {figures}; {verdict} beyond chance ({chance:.2f} dB between sets of {most})."
