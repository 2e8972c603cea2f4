"""Variants for devices that are not here: built, their numbers checked on the processor, never called proven.

A GPU's or an NPU's own compiler has the last word on both answers and speed, so none of these is shipped from here.
"""

from collections.abc import Sequence
from typing import Any

from loadslice.backends.base import EngineError, open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.variant import Scheme
from loadslice.spec.work import StageInputError
from loadslice.variants import buckets, ort_tools, recipes
from loadslice.variants.bench import Artefact, Failure, Workbench, first_line
from loadslice.variants.cpu import static_scheme
from loadslice.variants.metrics import Judge
from loadslice.variants.prepare import fix_shapes
from loadslice.variants.recorded import Feeds, Recorded

BATCH_MAX = 16

FP16 = Scheme(
    weight_bits=16,
    activation_bits=16,
    tool=ort_tools.VERSION,
    operators=[f"all but {', '.join(ort_tools.FP16_BLOCKED)}"],
)
TENSORRT = Scheme(weight_bits=16, activation_bits=16, tool="tensorrt, on the target")


def build(bench: Workbench, targets: Sequence[str], recorded: Recorded) -> list[tuple[Artefact, dict[str, Any] | None]]:
    """Artefacts for the GPU and NPU targets among ``targets``, each with its recipe where there is one."""
    shapes = _profile(recorded)
    found: list[tuple[Artefact, dict[str, Any] | None]] = []
    if "gpu-fp16" in targets:
        made = bench.attempt("fp16", "gpu-fp16", FP16, lambda out: ort_tools.to_float16(bench.prepared.path, out))
        if made is not None:
            found.append((made, recipes.gpu_fp16("the .onnx file beside this one", shapes)))
    if "gpu-tensorrt" in targets:
        source = Artefact("tensorrt-source", "gpu-tensorrt", bench.prepared.path, TENSORRT)
        found.append((source, recipes.gpu_tensorrt("the .onnx file beside this one", shapes)))
    if "npu-int8" in targets:
        found += [(one, None) for one in _npu_int8(bench)]
    return found


def judged_on_cpu(bench: Workbench, artefact: Artefact) -> tuple[float | None, float | None, str]:
    """Metric, SQNR and what was run: the artefact's numbers on ONNX Runtime's processor kernels.

    Inputs are padded to a fixed shape where the artefact has one, and judged against the source on the same padding.
    """
    try:
        return _judged(bench, artefact)
    except (InputError, EngineError, StageInputError) as error:
        return None, None, f"not run, {error}"


def _judged(bench: Workbench, artefact: Artefact) -> tuple[float | None, float | None, str]:
    engine, judging = Engine(backend="onnxruntime", threads=bench.cores), bench.judging
    session = open_backend("onnxruntime").load(artefact.path, engine)
    try:
        fixed = tuple(info.shape[1:] for info in session.inputs)
        if all(side is not None for shape in fixed for side in shape) and artefact.target == "npu-int8":
            bucket: buckets.Shape = tuple(tuple(int(side or 0) for side in shape) for shape in fixed)
            inside = [
                index for index, feeds in enumerate(judging.inputs.feeds) if _fits(buckets.shape_of(feeds), bucket)
            ]
            if not inside:
                return None, None, "not run, no judged input fits its shape"
            padded: list[Feeds] = [buckets.padded(judging.inputs.feeds[index], bucket) for index in inside]
            # A row at a time: the file's row dimension is fixed, too.
            padded = [{name: tensor[:1] for name, tensor in feeds.items()} for feeds in padded]
            source = open_backend("onnxruntime").load(bench.source, engine)
            wanted = [source.run(feeds) for feeds in padded]
            source.close()
            few = judging.inputs.take(inside)
            judge = Judge("cosine", wanted, Recorded(few.names, padded, few.counts, None))
            outputs = [session.run(feeds) for feeds in padded]
            said = f"cosine on {len(inside)} inputs padded to {bucket}"
        else:
            judge = judging.judge
            outputs = [session.run(feeds) for feeds in judging.inputs.feeds]
            said = f"{judge.name} on {len(outputs)} inputs"
        return judge.mark(outputs), judge.sqnr_db(outputs), said
    finally:
        session.close()


def _npu_int8(bench: Workbench) -> list[Artefact]:
    """One fixed shape, every operator quantised, and the same with the heavy operators only."""
    counts: dict[buckets.Shape, float] = {}
    pool = bench.pool
    chosen = buckets.choose([buckets.shape_of(feeds) for feeds in pool.feeds], pool.counts.tolist())
    for feeds, count in zip(pool.feeds, pool.counts, strict=True):
        own = chosen[buckets.bucket_of(buckets.shape_of(feeds), chosen)]
        counts[own] = counts.get(own, 0.0) + float(count)
    bucket = max(counts, key=lambda shape: counts[shape])
    names = list(pool.feeds[0])
    fixed = bench.folder / "npu-source.onnx"
    shapes = {name: [1, *sides] for name, sides in zip(names, bucket, strict=True)}
    try:
        fix_shapes(bench.prepared.path, fixed, shapes)
    except Exception as error:  # noqa: BLE001 - shape inference raises anything; the reason is shown
        why = f"the model cannot be fixed at {shapes}: {first_line(error)}"
        bench.failures.append(Failure("npu-int8", "npu-int8", static_scheme(), why))
        return []
    inside = [feeds for feeds in pool.feeds if _fits(buckets.shape_of(feeds), bucket)][:32]
    rows = [{name: tensor[:1] for name, tensor in buckets.padded(feeds, bucket).items()} for feeds in inside]
    found = []
    for all_operators in (True, False):
        name = "npu-int8-all-operators" if all_operators else "npu-int8"
        scheme = static_scheme(["all"]) if all_operators else static_scheme()
        made = bench.attempt(
            name, "npu-int8", scheme,
            lambda out, full=all_operators: ort_tools.quantise(  # type: ignore[misc]
                fixed, ort_tools.calibrate(fixed, rows, all_operators=full), out, all_operators=full),
        )  # fmt: skip
        if made is not None:
            found.append(made)
    return found


def _profile(recorded: Recorded) -> dict[str, recipes.Shapes]:
    shapes = [buckets.shape_of(feeds) for feeds in recorded.feeds]
    return recipes.profile_shapes(list(recorded.feeds[0]), BATCH_MAX, shapes, recorded.counts.tolist())


def _fits(shape: buckets.Shape, bucket: buckets.Shape) -> bool:
    return all(
        side <= room for one, most in zip(shape, bucket, strict=True) for side, room in zip(one, most, strict=True)
    )
