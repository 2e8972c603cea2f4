"""Tables of measured GPU kernels that others published, read as observations to calibrate on.

Two are known. Vidur's ``mlp.csv`` (microsoft/vidur, MIT) times the operators of one transformer layer by number of
tokens, in fp16; aiconfigurator's ``gemm_perf.txt`` (NVIDIA, Apache-2.0, last in 0.4.0) times matrix products by m, n, k
and precision. Both are kernels alone: no call around them.
"""

import csv
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from loadslice.graph.op_class import demand
from loadslice.profiles.calibration import Observation
from loadslice.spec.device import Device, PeakPrecision
from loadslice.spec.errors import InputError
from loadslice.spec.inspection import NodeCost

TOKENS = (1, 8, 64, 256, 1024, 4096)
"""Of the hundreds of rows of a table: from one token, bound by memory, to a prefill, bound by arithmetic."""

LAYER = ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008))
"""(n, k) of the products of a layer with 4096 channels; (n, k) that a table lacks is replaced by its nearest."""

_HALF = 2
"""Bytes of a number in fp16."""


class Kernel(NamedTuple):
    """One operator of a layer."""

    column: str
    op: str
    macs: int
    moved: int
    """Numbers read and written."""


def kernels_of(row: dict[str, str], tokens: int) -> Iterator[Kernel]:
    """Operators of one layer, by a row of Vidur's table."""
    width, inner = int(row["n_embd"]), int(row["n_expanded_embd"])
    heads, kv_heads = int(row["n_head"]), int(row["n_kv_head"])
    gated = row["use_gated_mlp"] == "True"
    queries = width + 2 * width * kv_heads // heads
    up = (2 if gated else 1) * inner

    def product(column: str, inputs: int, outputs: int) -> Kernel:
        return Kernel(column, "MatMul", tokens * inputs * outputs, tokens * (inputs + outputs) + inputs * outputs)

    yield Kernel("input_layernorm", "LayerNormalization", 0, 2 * tokens * width)
    yield product("attn_pre_proj", width, queries)
    yield Kernel("attn_rope", "Mul", 0, 4 * tokens * width)
    yield product("attn_post_proj", width, width)
    if "time_stats.post_attention_layernorm.median" in row:
        yield Kernel("post_attention_layernorm", "LayerNormalization", 0, 2 * tokens * width)
    yield product("mlp_up_proj", width, up)
    yield Kernel("mlp_act", "Mul", 0, tokens * (up + inner))
    yield product("mlp_down_proj", inner, width)
    yield Kernel("add", "Add", 0, 3 * tokens * width)


def transformer_layers(path: Path, device: Device, family: str) -> Iterator[Observation]:
    """One observation for each of `TOKENS`: a whole layer on one GPU, the sum of its kernels' medians.

    Args:
        path: A ``mlp.csv`` of Vidur.
        device: That it was measured on, with an fp16 peak and a bandwidth.
        family: Of the model.

    Raises:
        InputError: Not such a table.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row.get("num_tensor_parallel_workers") == "1"]
    if not rows or "time_stats.mlp_up_proj.median" not in rows[0]:
        raise InputError(f"{path}: not a table of Vidur's transformer kernels (no time_stats.mlp_up_proj.median).")
    for tokens in TOKENS:
        found = next((row for row in rows if int(row["num_tokens"]) == tokens), None)
        if found is None:
            continue
        kernels = list(kernels_of(found, tokens))
        known = [f"time_stats.{kernel.column}" for kernel in kernels]
        total_ms = sum(float(found[f"{column}.median"]) for column in known)
        spread_ms = sum(float(found[f"{column}.std"]) ** 2 for column in known) ** 0.5
        yield _observed(
            device,
            family,
            f"layer of {family}, {tokens} tokens",
            [_node(kernel.op, kernel.macs, kernel.moved) for kernel in kernels],
            total_ms,
            "microsoft/vidur 7d47513 (MIT), data/profiling/compute",
            cv=spread_ms / total_ms,
        )


DTYPES: dict[PeakPrecision, str] = {"fp16": "float16", "fp8": "fp8", "int8": "sq"}
"""As ``gemm_perf.txt`` names them; ``sq`` quantises weights and activations."""


def products(path: Path, device: Device, precision: PeakPrecision = "fp16") -> Iterator[Observation]:
    """One observation for each of `TOKENS`: the matrix products of one layer with 4096 channels.

    Args:
        path: A ``gemm_perf.txt`` of aiconfigurator.
        device: That it was measured on, with a peak at the precision and a bandwidth.
        precision: One of `DTYPES`.

    Raises:
        InputError: Not such a table.
    """
    times: dict[tuple[int, int, int], float] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if row.get("gemm_dtype") == DTYPES[precision]:
                times[int(row["m"]), int(row["n"]), int(row["k"])] = float(row["latency"])
    if not times:
        raise InputError(f"{path}: not a table of matrix products (no rows with gemm_dtype {DTYPES[precision]}).")
    shapes = {(n, k) for _, n, k in times}
    layer = [min(shapes, key=partial(_apart, want)) for want in LAYER]
    for tokens in TOKENS:
        if all((tokens, n, k) in times for n, k in layer):
            nodes = [_node("MatMul", tokens * n * k, tokens * (n + k) + n * k) for n, k in layer]
            yield _observed(
                device,
                "products",
                f"products of a layer, {tokens} tokens",
                nodes,
                sum(times[tokens, n, k] for n, k in layer),
                f"aiconfigurator 0.4.0 (NVIDIA, Apache-2.0), {'/'.join(path.parts[-4:-1])}",
                precision=precision,
            )


def _apart(want: tuple[int, int], have: tuple[int, int]) -> float:
    """How many times larger or smaller one shape is, per side."""
    return sum(max(a / b, b / a) for a, b in zip(have, want, strict=True))


def _node(op: str, macs: int, numbers: int) -> NodeCost:
    return NodeCost(
        name=op,
        op=op,
        times=1,
        macs=macs,
        flops=2 * macs,
        bytes=numbers * _HALF,
        weight_bytes=0,
        output_shapes=[],
    )


def _observed(
    device: Device,
    family: str,
    model: str,
    nodes: Iterable[NodeCost],
    time_ms: float,
    source: str,
    cv: float | None = None,
    precision: PeakPrecision = "fp16",
) -> Observation:
    asked = demand(device, "fp16", nodes, precision)
    return Observation(
        kind="gpu",
        device=device.name,
        family=family,
        model=model,
        precision=precision,
        roofline_ms={kind: round(ms, 6) for kind, ms in asked.roofline_ms.items()},
        launches=asked.launches,
        whole=False,
        time_ms=round(time_ms, 6),
        cv=None if cv is None else round(cv, 4),
        source=source,
    )
