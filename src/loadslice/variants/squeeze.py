"""From one source model to a proven variant per target: build, prove, time, choose, keep.

The rules: an artefact is judged on the runtime that serves it, on inputs that nothing was calibrated on or chosen by,
and at the batch sizes it is proposed for; nothing is shipped below its floor, nor when the untuned model is as fast;
every speed-up is against ONNX Runtime as it comes, in turns; what could not be run here says so and is not shipped.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadslice.backends.base import EngineError
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json, sha256_file, write_bytes
from loadslice.spec.variant import (
    Buckets,
    Calibration,
    InputSet,
    InputSets,
    Precision,
    Squeeze,
    Target,
    Throughput,
    Timing,
    Variant,
)
from loadslice.spec.work import StageInputError
from loadslice.variants import accelerators, buckets, cpu, environment, int4, tune
from loadslice.variants import timing as times
from loadslice.variants.bench import UNTUNED, Artefact, Failure, Proof, Workbench, first_line
from loadslice.variants.conclusion import conclude
from loadslice.variants.keep import Keeper
from loadslice.variants.laid_out import lay_out
from loadslice.variants.layers import recovered_share
from loadslice.variants.order import Order
from loadslice.variants.prepare import check_memory

SCHEMA = "squeeze/1"

SAME_SPEED = 0.97
"""Within three per cent times are a draw, and the better answers win."""

SAME_ANSWERS_DB = 60.0
"""A simplified model that differs by more is not used: fp32 kernels alone make 100 dB and more."""


def squeeze(order: Order, tell: Callable[[str], None]) -> Squeeze:
    """Do it.

    Args:
        order: What is asked for.
        tell: Is told what is going on.

    Returns:
        Everything that was tried; files of what was shipped lie in ``order.out``.

    Raises:
        InputError: The model, the inputs, the metric or the place to keep results cannot be used.
        MissingExtraError: A quantiser is not installed.
    """
    check_memory(order.source)
    with tempfile.TemporaryDirectory(prefix="loadslice-squeeze-") as folder:
        bench = lay_out(order, Path(folder), tell)
        proofs: list[Proof] = []
        artefacts, calibration, precision = _artefacts(bench, order.targets)
        for artefact in artefacts:
            for engine in bench.cpu_engines(artefact):
                tell(f"proving {artefact.name} on {engine.backend}")
                proof = bench.prove(artefact, engine)
                if proof is not None:
                    proofs.append(proof)
        return _finish(bench, order, _real(bench, proofs), calibration, precision)


def _artefacts(
    bench: Workbench, targets: Sequence[Target]
) -> tuple[list[Artefact], Calibration | None, Precision | None]:
    found = cpu.precise(bench, targets)
    calibration = precision = None
    if "cpu-int8" in targets and not bench.prepared.heavy:
        bench.notes.append("cpu-int8: no Conv, MatMul or Gemm with stored weights; nothing to quantise.")
    elif "cpu-int8" in targets:
        bench.tell("choosing a calibration set: coverage against random draws")
        made, calibration, precision = _int8(bench)
        found += made
    if "cpu-int4" in targets:
        found += int4.build(bench)
    return found, calibration, precision


def _int8(bench: Workbench) -> tuple[list[Artefact], Calibration | None, Precision | None]:
    """Every INT8 scheme, and the worst layers kept; a tool that fails costs its own candidates and no others."""
    try:
        chosen, ranges, calibration = cpu.calibration(bench)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - quantisers raise anything; the reason is shown
        why = f"calibration fails: {first_line(error)}"
        bench.failures.append(Failure("int8-static", "cpu-int8", cpu.static_scheme(), why))
        return [], None, None
    made = cpu.int8(bench, chosen, ranges)
    plain = next((one for one in made if one.name == "int8-static"), None)
    if plain is None:
        return made, calibration, None
    bench.tell("looking for the layers that lose the most")
    try:
        kept, precision = cpu.keep_worst(bench, plain, ranges)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        bench.notes.append(f"layers could not be ranked: {first_line(error)}")
        return made, calibration, None
    nncf = next((one for one in made if one.name == "int8-nncf"), None)
    lighter = None if nncf is None else cpu.nncf_kept(bench, nncf, chosen, precision.layers)
    return [*made, *kept, *([] if lighter is None else [lighter])], calibration, precision


def _real(bench: Workbench, proofs: Sequence[Proof]) -> list[Proof]:
    """Leave out bf16 where the runtime computed something else, and a fusion that changed the answers."""
    kept = []
    for proof in proofs:
        scheme, target = proof.artefact.scheme, proof.artefact.target
        if target == "cpu-bf16" and proof.computed != "bf16":
            why = f"this processor has no bf16: {proof.engine.backend} computed {proof.computed}."
            bench.failures.append(Failure(proof.name, target, scheme, why))
        elif target == "cpu-fp32" and (level := proof.judged.sqnr_db) is not None and level < SAME_ANSWERS_DB:
            why = f"fusing changed the answers ({level:.0f} dB)."
            bench.failures.append(Failure(proof.name, target, scheme, why))
        else:
            kept.append(proof)
    return kept


def _finish(
    bench: Workbench, order: Order, proofs: list[Proof], calibration: Calibration | None, precision: Precision | None
) -> Squeeze:
    measured = _measure(bench, proofs, order.seconds)
    base, timings, flow, winners, speed = measured
    others = accelerators.build(bench, order.targets, order.recorded)
    found_buckets = _buckets(bench, order)
    lock = environment.lock()
    sets = _sets(bench)
    keeper = Keeper(bench, order, calibration, sets, lock)
    keeper.clear()
    variants = [
        keeper.measured(proof, timings[proof.name], flow.get(proof.name, []), winners, speed) for proof in proofs
    ]
    variants += [keeper.unproven(artefact, recipe) for artefact, recipe in others]
    variants += [keeper.failed(failure) for failure in bench.failures]
    result = Squeeze(
        model=str(order.source),
        sha256=sha256_file(order.source),
        floor=str(bench.judging.floor),
        inputs=sets,
        untuned=base,
        cpu=bench.cpu,
        variants=_with_front(variants),
        calibration=calibration,
        precision=None if precision is None else _with_judged(precision, proofs),
        buckets=found_buckets,
        environment=lock,
        notes=bench.notes,
        conclusion=conclude(variants, str(bench.judging.floor)),
        stamp=keeper.stamp(SCHEMA),
    )
    write_bytes(order.out / "squeeze.json", encode_json(result))
    return result


def _sets(bench: Workbench) -> InputSets:
    pool, choice = bench.pool, bench.choosing.inputs
    return InputSets(
        calibration=InputSet(names=pool.names, sha256=pool.sha256()),
        choice=None if choice is pool else bench.choosing.described(),
        judgement=bench.judging.described(),
    )


def _with_judged(precision: Precision, proofs: Sequence[Proof]) -> Precision:
    """What keeping layers gives back on inputs that the layers were not chosen by, where it became a candidate."""
    found = {
        (len(one.artefact.kept), one.artefact.name): one.judged.cosine
        for one in proofs
        if one.engine.backend == "onnxruntime"
    }
    plain = found.get((0, precision.plain))
    if plain is None:
        return precision
    kept = {count: cosine for (count, _), cosine in found.items() if count}
    steps = [
        msgspec.structs.replace(step, recovered_share_judged=recovered_share(plain, kept[step.kept], 1.0))
        if step.kept in kept
        else step
        for step in precision.keep
    ]
    return msgspec.structs.replace(precision, keep=steps)


class _Measured(NamedTuple):
    untuned: Timing
    timings: dict[str, list[Timing]]
    """By proof, fastest setting first."""
    throughput: dict[str, list[Throughput]]
    winners: dict[str, Proof]
    """By target."""
    speed: dict[str, float]


def _measure(bench: Workbench, proofs: Sequence[Proof], seconds: float) -> _Measured:
    """Time all candidates in turns, then the settings of each target's best."""
    bench.tell(f"timing {len(proofs)} candidates against the untuned model")
    base = tune.untuned(bench)
    contenders = [bench.contender(proof) for proof in proofs]
    try:
        rounds = times.in_turns([*base.contenders, *contenders], seconds / 2)
    finally:
        for one in contenders:
            one.session.close()
    speed = {one.name: one.speedup(base.untuned, base.one_thread).best[0] for one in contenders}
    timings = {
        proof.name: [tune.as_timing(one, base, proof.engine, rounds)]
        for proof, one in zip(proofs, contenders, strict=True)
    }
    untuned = msgspec.structs.replace(
        tune.as_timing(base.untuned, base, UNTUNED, rounds), speedup_vs_untuned=1.0, basis="wall"
    )
    if any(timing[0].basis == "processor" for timing in timings.values()):
        bench.notes.append(
            "other processes held the processors while times were taken: some speed-ups are ratios of processor time, "
            "and throughput is a rehearsal. Run again on a quiet machine."
        )
    winners = _winners(bench, proofs, speed)
    flow: dict[str, list[Throughput]] = {}
    try:
        for proof in winners.values():
            bench.tell(f"tuning {proof.name}")
            timings[proof.name] = tune.settings(bench, proof, base, seconds / 2 / len(winners))
            flow[proof.name] = tune.throughput(bench, proof, base, seconds)
    finally:
        base.close()
    return _Measured(untuned, timings, flow, winners, speed)


def _winners(bench: Workbench, proofs: Sequence[Proof], speed: dict[str, float]) -> dict[str, Proof]:
    """Per target the fastest that meets the floor; of those as fast, the one with the best answers.

    By the inputs to choose by alone. Trying the next when the judges refuse one would be choosing by the judges. Where
    none meets the floor and few inputs count answers, the closest of those that miss it by one goes before the judges.
    """
    winners: dict[str, Proof] = {}
    for target in dict.fromkeys(proof.artefact.target for proof in proofs):
        good = [one for one in proofs if one.artefact.target == target and bench.choosing.passes(one.chosen)]
        if good:
            fastest = max(speed[one.name] for one in good)
            level = [one for one in good if speed[one.name] >= SAME_SPEED * fastest]
            winners[target] = max(level, key=lambda one: _finite_db(one.chosen.sqnr_db))
            continue
        near = [one for one in proofs if one.artefact.target == target and bench.choosing.nearly_passes(one.chosen)]
        if near:
            winners[target] = max(near, key=lambda one: _finite_db(one.chosen.sqnr_db))
    return winners


def _buckets(bench: Workbench, order: Order) -> Buckets | None:
    bench.tell("choosing shape buckets")
    recorded, runtimes = order.recorded, ("onnxruntime", "openvino")
    try:
        return buckets.measure(
            bench.prepared.path, recorded, bench.judging.inputs, bench.judging.judge,
            lambda path, runtime: tune.load_at(path, runtime, bench), bench.folder, runtimes,
        )  # fmt: skip
    except (InputError, EngineError, StageInputError) as error:
        bench.notes.append(f"shape buckets: {error}")
        return None


def _with_front(variants: Sequence[Variant]) -> list[Variant]:
    """Mark what nothing else measured beats in both speed and quality; fastest first."""

    def beaten(one: Variant) -> bool:
        return any(
            other.speedup_vs_untuned >= one.speedup_vs_untuned
            and _finite_db(other.sqnr_db) >= _finite_db(one.sqnr_db)
            and (
                other.speedup_vs_untuned > one.speedup_vs_untuned or _finite_db(other.sqnr_db) > _finite_db(one.sqnr_db)
            )
            for other in variants
            if other.speedup_vs_untuned is not None and one.speedup_vs_untuned is not None
        )

    marked = [
        msgspec.structs.replace(one, on_front=one.speedup_vs_untuned is not None and not beaten(one))
        for one in variants
    ]
    return sorted(marked, key=lambda one: (not one.shipped, -(one.speedup_vs_untuned or 0.0), one.name))


def _finite_db(level: float | None) -> float:
    """Equal answers are above any level."""
    return float("inf") if level is None else level
