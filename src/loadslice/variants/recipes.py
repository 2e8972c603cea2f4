"""How to build and serve on a GPU, written out where there is none: settings and commands, marked as not run."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadslice.spec.pipeline import Engine
from loadslice.variants.buckets import Shape

Shapes = Mapping[str, Sequence[int]]

UNVERIFIED = "written on a machine without this device; nothing in it was run. Run `loadslice squeeze` there."


def profile_shapes(
    names: Sequence[str], rows: int, shapes: Sequence[Shape], counts: Sequence[float]
) -> dict[str, Shapes]:
    """Least, most frequent and largest recorded shape per input, rows from 1 to ``rows``: TensorRT's profile."""
    common: dict[Shape, float] = {}
    for shape, count in zip(shapes, counts, strict=True):
        common[shape] = common.get(shape, 0.0) + count
    frequent = max(common, key=lambda shape: common[shape])
    sides = list(zip(*shapes, strict=True))
    low = [tuple(min(axis) for axis in zip(*own, strict=True)) for own in sides]
    high = [tuple(max(axis) for axis in zip(*own, strict=True)) for own in sides]
    return {
        "min": {name: [1, *one] for name, one in zip(names, low, strict=True)},
        "opt": {name: [max(1, rows // 2), *one] for name, one in zip(names, frequent, strict=True)},
        "max": {name: [rows, *one] for name, one in zip(names, high, strict=True)},
    }


def gpu_fp16(model: str, shapes: Mapping[str, Shapes]) -> dict[str, Any]:
    """Float16 with ONNX Runtime on CUDA, and CUDA graphs for the fixed shapes."""
    engine = Engine(
        backend="onnxruntime",
        device="cuda",
        precision="fp16",
        options={"use_tf32": 1, "cudnn_conv_algo_search": "EXHAUSTIVE", "arena_extend_strategy": "kSameAsRequested"},
    )
    return {
        "target": "gpu-fp16",
        "verified": False,
        "why_unverified": UNVERIFIED,
        "engine": engine,
        "install": "onnxruntime-gpu in place of onnxruntime",
        "cuda_graphs": {
            "options": {"enable_cuda_graph": 1},
            "needs": "one shape per session and inputs bound to fixed device memory: a session per bucket",
            "shapes": shapes,
        },
        "steps": [
            f"serve {model} with the engine above; a node that CUDA cannot run is refused, not moved to the CPU",
            "compare its answers with the source model's before its speed",
        ],
    }


def gpu_tensorrt(model: str, shapes: Mapping[str, Shapes]) -> dict[str, Any]:
    """TensorRT from the source in float16, its profile taken from recorded shapes; in ONNX Runtime or on its own."""
    text = {kind: ",".join(_sides(name, shape) for name, shape in own.items()) for kind, own in shapes.items()}
    engine = Engine(
        backend="onnxruntime",
        device="tensorrt",
        precision="fp16",
        options={
            "trt_fp16_enable": 1,
            "trt_engine_cache_enable": 1,
            "trt_engine_cache_path": "trt-cache",
            "trt_timing_cache_enable": 1,
            "trt_cuda_graph_enable": 1,
            "trt_profile_min_shapes": text["min"],
            "trt_profile_opt_shapes": text["opt"],
            "trt_profile_max_shapes": text["max"],
        },
    )
    return {
        "target": "gpu-tensorrt",
        "verified": False,
        "why_unverified": UNVERIFIED,
        "engine": engine,
        "install": "onnxruntime-gpu and tensorrt; an engine is tied to GPU, version and profile: build it there",
        "steps": [
            "trtexec --onnx={model} --fp16 --minShapes={min} --optShapes={opt} --maxShapes={max} "
            "--useCudaGraph --timingCacheFile=timing.cache --saveEngine=model.plan".format(model=model, **text),
            "compare its answers with the source model's before its speed",
        ],
        "profile": shapes,
    }


def _sides(name: str, shape: Sequence[int]) -> str:
    return f"{name}:{'x'.join(map(str, shape))}"
