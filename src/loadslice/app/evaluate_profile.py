"""The profile a ramp is predicted from: measured alone, then brought to how single requests found the machine."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadslice.evaluate.layers.lone import Lone
from loadslice.evaluate.wire import Heard, StageTime
from loadslice.policy.estimate import typical_ms
from loadslice.sim.crowding import shared_threads
from loadslice.spec.latency import Entry, LatencyTable, Milliseconds
from loadslice.spec.pipeline import Pipeline, Stage
from loadslice.spec.twin import dilation, twins

QUANTILES = np.linspace(0, 1, 64)

Float64s = npt.NDArray[np.float64]


def as_found(table: LatencyTable, lone: Lone, pipeline: Pipeline) -> LatencyTable:
    """A profile as single requests through the server found it.

    Each stage's times are scaled by what it took of single requests over what the profile says of the same inputs, for
    a shared machine is not as fast now as a minute ago. What those requests spent beside their stages becomes the
    hand-over to workers (less what a batch waited for company, which the core decides) and the time outside.

    Args:
        table: From a profile.
        lone: Single requests of the same server.
        pipeline: As it is served.
    """
    heards = [heard for heard in lone.heards if heard.completed and heard.stages]
    if not heards:
        return table
    windows = _windows(pipeline)
    handover_ms = np.array([_handover_ms(time, heard, windows) for heard in heards for time in heard.stages])
    spent_ms = [sum(time.queue_ms + time.copy_ms + time.compute_ms for time in heard.stages) for heard in heards]
    outside_ms = np.array([(heard.whole_ms or 0.0) - ms for heard, ms in zip(heards, spent_ms, strict=True)])
    emulated = bool(twins(pipeline))
    compute_s = sum(_threads_s(time, heard, pipeline) for heard in heards for time in heard.stages)
    # With twins this processor does a device's work too; what it used says nothing about the front.
    cpu_ms = None if emulated else max(0.0, 1000 * (lone.cpu_s - compute_s) / len(lone.heards))
    entries = _scaled(table, heards, pipeline)
    if dilation(pipeline) > 1:
        # Dilated, host stages rest for most of their time: they hardly contend for the processor.
        entries = [msgspec.structs.replace(entry, contended_ms=None) for entry in entries]
    return msgspec.structs.replace(
        table,
        entries=entries,
        overhead_ms=_samples(outside_ms),
        handover_ms=_samples(handover_ms),
        overhead_cpu_ms=cpu_ms,
    )


def _windows(pipeline: Pipeline) -> dict[tuple[str, str], float]:
    return {
        (stage.name, engine): batch.window_ms
        for stage in pipeline.stages
        for engine, batch in stage.batch.items()
        if batch.size > 1
    }


def _handover_ms(time: StageTime, heard: Heard, windows: dict[tuple[str, str], float]) -> float:
    engine = _engine(time, heard)
    return max(0.0, time.queue_ms - windows.get((time.stage, engine), 0.0))


def _threads_s(time: StageTime, heard: Heard, pipeline: Pipeline) -> float:
    """Processor time of one stage of one request, as `study_rehearsal.in_engines_s` counts it."""
    engine = _engine(time, heard)
    threads = shared_threads(pipeline, engine) if engine in pipeline.engines else 1
    return (time.copy_ms + time.compute_ms) / 1000 * threads


def _engine(time: StageTime, heard: Heard) -> str:
    """The engine that served a stage; replies name engines in order of their stages."""
    place = heard.stages.index(time)
    return heard.engines[place] if place < len(heard.engines) else ""


def _scaled(table: LatencyTable, heards: Sequence[Heard], pipeline: Pipeline) -> list[Entry]:
    stages = {stage.name: stage for stage in pipeline.stages}
    ratios: dict[tuple[str, str], list[float]] = {}
    for heard in heards:
        for time in heard.stages:
            stage, engine = stages.get(time.stage), _engine(time, heard)
            expected_ms = _expected_ms(table, stage, engine, heard.input) if stage is not None else None
            if stage is not None and expected_ms and engine not in twins(pipeline):
                ratios.setdefault((stage.variant_id, engine), []).append((time.compute_ms + time.copy_ms) / expected_ms)
    medians = {key: float(np.median(values)) for key, values in ratios.items()}
    return [_times(entry, medians.get((entry.variant, entry.engine), 1.0)) for entry in table.entries]


def _expected_ms(table: LatencyTable, stage: Stage, engine: str, name: str) -> float | None:
    """What the profile says of one input at one stage."""
    work = next((one for known in table.inputs if known.input == name for one in known.stages
                 if one.stage == stage.name), None)  # fmt: skip
    own = [entry for entry in table.entries if entry.variant == stage.variant_id and entry.engine == engine]
    if work is None or not own:
        return None
    fits = [entry for entry in own if entry.batch == work.items and entry.shape in (None, work.shape)]
    return typical_ms(fits[0].latency_ms) if fits else None


def _times(entry: Entry, ratio: float) -> Entry:
    if ratio <= 0 or ratio == 1:
        return entry
    contended = None if entry.contended_ms is None else _stretched(entry.contended_ms, ratio)
    return msgspec.structs.replace(entry, latency_ms=_stretched(entry.latency_ms, ratio), contended_ms=contended)


def _stretched(times: Milliseconds, ratio: float) -> Milliseconds:
    values = {key: getattr(times, key) for key in ("p50", "p90", "p99", "mean")}
    return msgspec.structs.replace(
        times,
        samples=None if times.samples is None else [value * ratio for value in times.samples],
        **{key: None if value is None else value * ratio for key, value in values.items()},
    )


def _samples(values_ms: Float64s) -> Milliseconds:
    return Milliseconds(samples=[round(float(value), 4) for value in np.quantile(np.maximum(values_ms, 0), QUANTILES)])
