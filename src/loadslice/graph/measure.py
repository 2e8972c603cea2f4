"""What ONNX Runtime itself says of a model: its shapes, its answers, the time and memory of each of its kernels.

Optional: needs onnxruntime.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

# Read when the native library starts; its uploader is on by default since 1.29.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import numpy.typing as npt
import onnx

from loadslice.graph.inputs import fed_shape, numpy_type
from loadslice.graph.load import load
from loadslice.graph.shapes import infer, model_inputs
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.inspection import ShapeCheck


def observe(path: Path, shapes: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Run a model once, unoptimised, on zeros, and report the shape of every top-level tensor.

    Args:
        path: An `.onnx` file.
        shapes: Shape of every input that is not fixed.

    Returns:
        Tensor name to shape; tensors of subgraphs and sequences are not seen.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: An input has no shape, or the runtime refuses the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "Observing shapes") from error
    model = load(path, weights=True)
    try:
        feeds = {info.name: np.zeros(fed_shape(info, shapes), numpy_type(info)) for info in model_inputs(model.graph)}
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    present = {info.name for info in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in present:
                model.graph.output.append(onnx.ValueInfoProto(name=name))
                present.add(name)
    options = _plain_options(onnxruntime)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [info.name for info in session.get_outputs()]
        values = session.run(names, feeds)
    except Exception as error:  # onnxruntime's own exceptions have no common base
        raise InputError(f"{path}: ONNX Runtime cannot run it: {str(error).splitlines()[0]}") from error
    found = {name: value.shape for name, value in zip(names, values, strict=True) if isinstance(value, np.ndarray)}
    return found | {name: value.shape for name, value in feeds.items()}


def outputs(model: onnx.ModelProto, feeds: dict[str, npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
    """What a model answers, unoptimised: the reference a rewrite is held to.

    Args:
        model: With its weights in it.
        feeds: Every input.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: The runtime refuses the model or the input.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "Proving a rewrite") from error
    options = _plain_options(onnxruntime)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [info.name for info in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))
    except Exception as error:  # onnxruntime's own exceptions have no common base
        raise InputError(f"ONNX Runtime cannot run it: {str(error).splitlines()[0]}") from error


def check(path: Path, shapes: dict[str, list[int]]) -> ShapeCheck:
    """Compare every inferred shape with an observed one; see `observe` for arguments and errors."""
    observed = observe(path, shapes)
    env = infer(load(path), shapes).env
    disagree = [name for name, shape in observed.items() if env[name].shape != shape]
    return ShapeCheck(
        runtime=f"onnxruntime {metadata.version('onnxruntime')}", tensors=len(observed), disagree=disagree
    )


Optimise = Literal["none", "fold", "all"]
"""``none``: the kernels are the file's nodes; ``fold``: less what depends on weights alone; ``all``: its default."""

_NOT_FOLDING_TEXT = """Level1_RuleBasedTransformer DoubleQDQPairsRemover ConstantSharing CommonSubexpressionElimination
MatMulAddFusion ReshapeFusion SliceConcatToSpaceToDepthFusion GeluFusionL1 LayerNormFusionL1 QDQPropagationTransformer
WeightBiasQuantization WhereDummyDq TransposeOptimizer ConstantFoldingDQ"""
_NOT_FOLDING = _NOT_FOLDING_TEXT.split()
"""ONNX Runtime 1.32's basic optimisations other than constant folding."""

Shapes = tuple[tuple[int, ...], ...]

Feeds = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One execution of one kernel, as the runtime's profiler recorded it."""

    name: str
    op: str
    begin_us: int
    dur_us: int
    live_bytes: int | None
    """Requested from the arena and not given back when the kernel ended; ``None``: this runtime does not say."""
    gained_bytes: int | None
    """By how much the kernel changed that."""
    inputs: Shapes = ()
    """Shapes of the inputs that are there, in order."""
    outputs: Shapes = ()

    @property
    def end_us(self) -> int:
        """On the profiler's clock."""
        return self.begin_us + self.dur_us


@dataclass(frozen=True, slots=True)
class Profile:
    """Runs of one model under the runtime's profiler."""

    runtime: str
    model: onnx.ModelProto
    """The graph that ran, after the runtime's own optimisations; without its weights' values."""
    runs: list[list[KernelRun]]
    """For each run its kernels in execution order, those inside control flow among them."""
    run_us: list[int]
    """Each run as a whole."""

    @property
    def arena_bytes(self) -> int | None:
        """Most that the last run held of what it allocated itself, between kernels: their scratch is not in it."""
        last = self.runs[-1]
        live = [kernel.live_bytes for kernel in last if kernel.live_bytes is not None]
        if not last or len(live) != len(last) or last[0].gained_bytes is None:
            return None
        return max(live) - (live[0] - last[0].gained_bytes)


def profile(
    path: Path,
    model: onnx.ModelProto,
    feeds: Feeds,
    *,
    optimise: Optimise,
    threads: int,
    warmup: int,
    runs: int,
    prepack: bool = True,
) -> Profile:
    """Run a model under ONNX Runtime's profiler, on the CPU.

    Args:
        path: For errors.
        model: With its weights in it.
        feeds: Every input.
        optimise: What the runtime may change in the graph.
        threads: For one kernel.
        warmup: Runs before the ones that count.
        runs: That count.
        prepack: Let kernels keep weights in an order of their own; the shapes of such weights are then not reported.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        InputError: The runtime refuses the model or the input.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "Measuring a model") from error
    options = onnxruntime.SessionOptions() if optimise == "all" else _plain_options(onnxruntime)
    if optimise == "fold":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # The planned arena would hold everything from the start; without it each kernel's own share is seen.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", "0" if prepack else "1")
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="loadslice-") as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        options.optimized_model_filepath = str(Path(folder) / "ran.onnx")
        try:
            onnxruntime.disable_telemetry_events()
            session = onnxruntime.InferenceSession(
                model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_NOT_FOLDING if optimise == "fold" else [],
            )
            for _ in range(warmup + runs):
                session.run(None, dict(feeds))
            events = json.loads(Path(session.end_profiling()).read_bytes())
        except Exception as error:  # onnxruntime's own exceptions have no common base, protobuf's size limit neither
            raise InputError(f"{path}: ONNX Runtime cannot run it: {str(error).splitlines()[0]}") from error
        ran = onnx.load(str(Path(folder) / "ran.onnx"), load_external_data=False)
    kernels, run_us = _by_run(events)
    return Profile(f"onnxruntime {metadata.version('onnxruntime')}", ran, kernels[warmup:], run_us[warmup:])


def _by_run(events: list[dict[str, Any]]) -> tuple[list[list[KernelRun]], list[int]]:
    whole = sorted((e for e in events if e.get("name") == "model_run"), key=lambda e: e["ts"])
    nodes = sorted((e for e in events if e.get("cat") == "Node"), key=lambda e: (e["ts"], -e["dur"]))
    found: list[list[KernelRun]] = [[] for _ in whole]
    place = 0
    for event in nodes:
        if not event["name"].endswith("_kernel_time"):
            continue
        while place + 1 < len(whole) and event["ts"] >= whole[place + 1]["ts"]:
            place += 1
        said = event["args"]
        live, gained = (said.get(f"mem_{key}") for key in ("bytes_requested_in_use", "requested_in_use_delta"))
        found[place].append(
            KernelRun(
                name=event["name"].removesuffix("_kernel_time"),
                op=said["op_name"],
                begin_us=event["ts"],
                dur_us=event["dur"],
                live_bytes=int(live) if live is not None else None,
                gained_bytes=int(gained) if gained is not None else None,
                inputs=_shapes(said.get("input_type_shape", [])),
                outputs=_shapes(said.get("output_type_shape", [])),
            )
        )
    return found, [event["dur"] for event in whole]


def _shapes(entries: list[dict[str, list[int]]]) -> Shapes:
    return tuple(tuple(shape) for entry in entries for shape in entry.values())


def _plain_options(onnxruntime: Any) -> Any:
    """A session whose kernels are the file's nodes, one thread, silent."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options
