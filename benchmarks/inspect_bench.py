"""What `inspect` says of real models against ground truth that it had no part in.

- Multiply-accumulates: each kernel that one run of ONNX Runtime executed, by the shapes its profiler reports and the
  formulas below; If branches not taken are not in it.
- Parameters: elements of every stored tensor, decoded.
- Peak activations: what the runtime's profiler says the run held of its arena, with only constants folded beforehand,
  as the plan assumes; where the runtime cannot fold a model, unoptimised, and the plan for that.
- Shapes: inferred against executed, for the kernels' first outputs that are the file's.

`python -m benchmarks.inspect_bench` prints the table.
"""

import contextlib
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import numpy_helper

from benchmarks.inspect_models import CASES, Array, Case, fed, found, made
from loadslice.graph.inputs import fix_inputs
from loadslice.graph.inspect import inspect
from loadslice.graph.load import graphs, load
from loadslice.graph.measure import KernelRun, Profile, profile
from loadslice.graph.memory import plan
from loadslice.graph.shapes import constant_attribute_tensor, infer, model_inputs
from loadslice.spec.errors import InputError


@dataclass(frozen=True)
class Row:
    """One figure of one model."""

    model: str
    figure: str
    ours: int | None
    truth: int | None
    how: str

    @property
    def off_pct(self) -> float | None:
        """How far off, of the truth; ``None``: not both are known."""
        if self.ours is None or self.truth is None:
            return None
        return 100 * abs(self.ours - self.truth) / max(self.truth, 1)


def executed_macs(run: Sequence[KernelRun]) -> int:
    """Multiply-accumulates of one run's kernels, by the shapes they ran at."""
    return sum(_macs(kernel) for kernel in run)


def _macs(kernel: KernelRun) -> int:
    shapes, out = kernel.inputs, kernel.outputs[0] if kernel.outputs else ()
    if kernel.op in {"Conv", "ConvInteger"}:
        return math.prod(out) * math.prod(shapes[1][1:])
    if kernel.op == "QLinearConv":
        return math.prod(out) * math.prod(shapes[3][1:])
    if kernel.op == "ConvTranspose":
        return math.prod(shapes[0]) * math.prod(shapes[1][1:])
    if kernel.op in {"MatMul", "MatMulInteger", "QLinearMatMul"}:
        return math.prod(out) * shapes[0][-1]
    if kernel.op == "FusedMatMul":
        return math.prod(shapes[0]) * out[-1]
    if kernel.op == "Gemm":
        return math.prod(shapes[1]) * out[0]
    if kernel.op == "LSTM":
        steps, batch, width = shapes[0]
        directions, rows, _ = shapes[1]
        return steps * batch * directions * rows * (width + rows // 4)
    return 0


def stored_elements(model: onnx.ModelProto) -> int:
    """Elements of every tensor the file stores, wherever."""
    total = 0
    for graph, _ in graphs(model.graph):
        tensors = list(graph.initializer)
        for node in graph.node:
            if node.op_type == "Constant":
                tensors += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
                plain = constant_attribute_tensor(node)
                tensors += [plain] if plain is not None else []
        total += sum(int(numpy_helper.to_array(tensor).size) for tensor in tensors)
    return total


def rows(case: Case, path: Path) -> Iterator[Row]:
    """A model's figures beside the truth."""
    feeds = fed(case)
    shapes = {name: list(array.shape) for name, array in feeds.items()}
    ours = inspect(path, shapes, [], feeds)
    model = load(path, weights=True)
    yield Row(case.name, "parameters", ours.parameters, stored_elements(model), "stored tensors decoded")
    fix_inputs(model, shapes)
    plain = profile(path, model, feeds, optimise="none", threads=1, warmup=0, runs=1, prepack=False)
    yield Row(case.name, "MACs", ours.macs, executed_macs(plain.runs[0]), f"{plain.runtime}, kernels that ran")
    folded, ran = _folded(path, model, feeds, plain)
    body = infer(model, shapes, feeds)
    arena = plan(body, [info.name for info in model_inputs(model.graph)], folded=folded)
    how = f"{ran.runtime} profiler, {'constants folded' if folded else 'unoptimised'}"
    yield Row(case.name, "activations", arena.arena_bytes if arena is not None else None, ran.arena_bytes, how)


def _folded(path: Path, model: onnx.ModelProto, feeds: dict[str, Array], plain: Profile) -> tuple[bool, Profile]:
    with contextlib.suppress(InputError):
        return True, profile(path, model, feeds, optimise="fold", threads=1, warmup=0, runs=1)
    return False, plain


def table() -> tuple[list[Row], list[str]]:
    """Every figure of every model that is there, and the names of those that are not."""
    logging.getLogger().setLevel(logging.ERROR)  # the quantiser gives advice on the root logger
    done: list[Row] = []
    absent = []
    for case in CASES:
        path = found(case)
        if path is None:
            absent.append(case.name)
            continue
        with tempfile.TemporaryDirectory(prefix="loadslice-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done += rows(case, made(case, path, Path(folder)))
    return done, absent


def run() -> dict[str, float | int | str]:
    """The worst disagreement of each kind, in per cent of the truth."""
    done, absent = table()
    figures: dict[str, float | int | str] = {"models": len({row.model for row in done}), "models_absent": len(absent)}
    for figure in ("parameters", "MACs", "activations"):
        known = [row for row in done if row.figure == figure]
        off = [row.off_pct for row in known if row.off_pct is not None]
        key = figure.lower()
        figures[f"{key}_off_pct_worst"] = max(off, default=0.0)
        figures[f"{key}_exact"] = sum(value == 0 for value in off)
        figures[f"{key}_unknown"] = len(known) - len(off)
    return figures


if __name__ == "__main__":
    all_rows, left_out = table()
    for row in all_rows:
        off = "unknown" if row.off_pct is None else f"{row.off_pct:.3f} %"
        print(f"{row.model:<52}{row.figure:<12}{row.ours!s:>14}{row.truth!s:>14}{off:>10}  {row.how}")
    print(f"not installed: {', '.join(left_out) or 'none'}")
