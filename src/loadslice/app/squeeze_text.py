"""A squeeze for a person."""

from collections.abc import Iterator

from loadslice.spec.variant import Calibration, InputSets, Precision, Squeeze, Throughput, Variant


def lines(result: Squeeze) -> Iterator[str]:
    """One table of all candidates, then what was found on the way."""
    base = result.untuned
    times = f"{base.latency_ms_p50:.2f} ms a run ({base.cpu_ms_p50:.2f} ms of processor time)"
    yield f"untuned: ONNX Runtime as it comes, {times}"
    yield f"floor: {result.floor}"
    if result.inputs is not None:
        yield _inputs(result.inputs)
    yield ""
    width = max((len(one.name) for one in result.variants), default=4)
    yield f"{'variant':{width}}  {'target':12}  {'speed-up':>8}  {'metric':>8}  {'SQNR dB':>7}  kept  "
    for one in result.variants:
        yield _row(one, width)
    yield ""
    yield "speed-up: times as fast as untuned; of each target's best after its threads were tuned."
    yield "front: nothing else that was timed is both faster and better."
    yield "kept: layers left in the model's own precision."
    for one in result.variants:
        yield from _winner(one)
    if result.calibration is not None:
        yield ""
        yield from _calibration(result.calibration)
    if result.precision is not None:
        yield from _precision(result.precision)
    if result.buckets is not None:
        yield ""
        yield f"shape buckets, from {result.buckets.distinct_shapes} recorded shapes: {result.buckets.finding}"
        for bucket in result.buckets.buckets:
            shapes = " ".join(f"{name}={'x'.join(map(str, sides))}" for name, sides in bucket.shapes.items())
            compiled = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in bucket.compile_s.items())
            figures = f"{bucket.share:.0%} of requests, {bucket.padded_share:.0%} padding"
            yield f"  {shapes}: {figures}, compiles in {compiled}"
    yield ""
    yield from result.notes
    yield result.conclusion


def _row(one: Variant, width: int) -> str:
    speed = "-" if one.speedup_vs_untuned is None else f"{one.speedup_vs_untuned:.2f}x"
    metric = "-" if one.metric.variant is None else f"{one.metric.variant:.4f}"
    sqnr = ("equal" if one.metric.variant is not None else "-") if one.sqnr_db is None else f"{one.sqnr_db:.1f}"
    marks = f"{'shipped' if one.shipped else ''}{' front' if one.on_front else ''}".strip()
    said = f"{marks}: {one.why}" if marks else one.why
    return f"{one.name:{width}}  {one.target:12}  {speed:>8}  {metric:>8}  {sqnr:>7}  {len(one.kept_layers):4}  {said}"


def _winner(one: Variant) -> Iterator[str]:
    if not one.shipped or one.engine is None:
        return
    yield ""
    yield f"{one.name}: {one.path}"
    options = "".join(f", {key}: {value}" for key, value in one.engine.options.items())
    engine = f"backend: {one.engine.backend}, threads: {one.engine.threads}, precision: {one.engine.precision}"
    yield f"  engine: {{{engine}{options}}}"
    if one.throughput:
        best = one.throughput[0]
        yield (
            f"  all cores busy: {best.items_per_s:.1f} items/s with {best.streams} streams of {best.threads} threads, "
            f"batch {best.batch} ({best.speedup_vs_untuned:.2f}x untuned{_together(best, one)})"
        )
        for rate in one.throughput:
            if rate.meets_floor is False and rate.streams == best.streams:
                yield f"  not in batches of {rate.batch}{_together(rate, one)}, below the floor"


def _together(rate: Throughput, one: Variant) -> str:
    """What batches do to answers, where that was judged."""
    if rate.metric is None:
        return "" if rate.batch == 1 else "; answers in batches not judged, for no two inputs have one shape"
    return f"; {one.metric.name} {rate.metric:.4f} on {rate.judged_inputs} inputs that ran in such batches"


def _inputs(sets: InputSets) -> str:
    pool, judged = len(sets.calibration.names), len(sets.judgement.names)
    if sets.choice is None:
        return f"inputs: {pool} to calibrate on and choose by, {judged} others that judge what was chosen"
    return f"inputs: {pool} to calibrate on, {len(sets.choice.names)} to choose by, {judged} that judge what was chosen"


def _calibration(found: Calibration) -> Iterator[str]:
    yield f"calibrated on {len(found.inputs)} inputs chosen by {found.method}: {found.finding}"
    yield "  inputs  method    SQNR dB  cosine"
    for trial in found.trials:
        level = "equal" if trial.sqnr_db is None else f"{trial.sqnr_db:.2f}"
        cosine = "-" if trial.metric is None else f"{trial.metric:.4f}"
        yield f"  {trial.inputs:6}  {trial.method:8}  {level:>7}  {cosine}"


def _precision(found: Precision) -> Iterator[str]:
    yield ""
    for one in found.differences[:4]:
        level = "equal" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB in its worst tenth"
        yield f"{found.plain} on {one.category} ({one.inputs}): {level}; the error is {one.kind}"
    named = [one for one in found.layers if one.alone_db is not None][:5]
    if named:
        yield "layers that lose the most: " + ", ".join(f"{one.layer} ({one.alone_db:.1f} dB alone)" for one in named)
    for step in found.keep:
        share = "" if step.recovered_share is None else f", {step.recovered_share:.0%} of the loss recovered"
        if step.recovered_share_judged is not None:
            share += f" ({step.recovered_share_judged:.0%} on the inputs that judge)"
        yield f"  {step.kept} layers kept: cosine {step.cosine:.4f}{share}"
