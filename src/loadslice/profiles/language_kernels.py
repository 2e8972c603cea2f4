"""A language engine on a GPU that is not here: its steps from a table of measured kernels, labelled as modelled.

The table (`kernel_tables`) times the operators of one layer by number of tokens; a step is all layers with so many
tokens, prompts' and decoding sequences' alike. What the table lacks is added from the device's own figures: attention
over what came before, and reading the output layer. No runtime, no sampling, no call around the kernels is in it.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadslice.profiles.kernel_tables import kernels_of
from loadslice.profiles.language_fit import Kind, Taken, fitted, step_times
from loadslice.spec.device import Device
from loadslice.spec.errors import InputError
from loadslice.spec.language import LanguageEngine
from loadslice.spec.language_profile import SHAPE_ROWS, EngineTimes

TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
HALF = 2
"""Bytes of a number in fp16."""
ATTENTION_SHARE = 0.4
"""Of a GPU's fp16 peak that attention over a prompt reaches, as FlashAttention 2 reports (Dao 2023, 50 to 73 % of an
A100 at long prompts, less at short ones)."""


class Model(NamedTuple):
    """Of the table's rows."""

    width: int
    kv_width: int
    vocabulary: int


def kernel_engine(path: Path, device: Device, layers: int, engine: LanguageEngine) -> EngineTimes:
    """Steps of a language engine on a GPU.

    Args:
        path: A ``mlp.csv`` of Vidur.
        device: That it was measured on, with an fp16 peak and a bandwidth.
        layers: Of the whole model.
        engine: As the language file has it.

    Raises:
        InputError: Not such a table, or a device without those figures.
    """
    if device.bandwidth_bytes_per_s is None or "fp16" not in device.peak_ops_per_s:
        raise InputError(f"device '{device.name}': has no bandwidth or no fp16 peak in the catalogue.")
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row.get("num_tensor_parallel_workers") == "1"]
    if not rows or "time_stats.mlp_up_proj.median" not in rows[0]:
        raise InputError(f"{path}: not a table of Vidur's transformer kernels (no time_stats.mlp_up_proj.median).")
    first = rows[0]
    width = int(first["n_embd"])
    model = Model(width, width * int(first["n_kv_head"]) // int(first["n_head"]), int(first["vocab_size"]))
    by_tokens = {int(row["num_tokens"]): row for row in rows}
    bandwidth = device.bandwidth_bytes_per_s.value
    output_ms = model.width * model.vocabulary * HALF / bandwidth * 1e3

    def step(tokens: int) -> Taken:
        nearest = min(by_tokens, key=lambda known: abs(known - tokens))
        row = by_tokens[nearest]
        layer_ms = sum(float(row[f"time_stats.{kernel.column}.median"]) for kernel in kernels_of(row, nearest))
        return Taken(layers * layer_ms + output_ms, layers * layer_ms)

    taken = {Kind(tokens, 0, 0): [step(tokens)] for tokens in TOKENS if tokens <= max(by_tokens)}
    taken |= {Kind(0, rows_, 0): [step(rows_)] for rows_ in SHAPE_ROWS[1:] if rows_ <= max(engine.seats, 1)}
    fit = fitted(taken)
    kv_bytes = 2 * layers * model.kv_width * HALF
    attend_ns = kv_bytes / bandwidth * 1e9
    prompt_attend_ns = 4 * layers * model.width / (device.peak_ops_per_s["fp16"].value * ATTENTION_SHARE) * 1e9
    spread = [
        float(row[f"time_stats.{kernel.column}.std"]) ** 2
        for row in (by_tokens[min(by_tokens)],)
        for kernel in kernels_of(row, min(by_tokens))
    ]
    total_ms = (step(min(by_tokens)).compute_ms) / layers
    relative_sd = sum(spread) ** 0.5 / max(1e-9, total_ms)
    cost = msgspec.structs.replace(
        fit.cost, attend_ns=attend_ns, prompt_attend_ns=prompt_attend_ns, relative_sd=relative_sd
    )
    return EngineTimes(
        backend=engine.backend,
        basis="modelled",
        source=(
            f"kernels of {path.parent.name} on {device.name}, {layers} layers (microsoft/vidur, MIT); "
            f"attention as reading KV at the device's bandwidth, over prompts at {ATTENTION_SHARE:.0%} of its fp16 peak"
        ),
        threads=engine.threads,
        cost=cost,
        shape=fit.shape,
        noise=[],
        fit_error_p50=fit.error_p50,
        fit_error_max=fit.error_max,
        adopt_us_per_token=None,
        kv_bytes_per_token=kv_bytes,
        memory_bytes=None,
        steps=step_times(taken),
    )


def stated_engine(engine: LanguageEngine) -> EngineTimes:
    """An engine whose costs the language file states.

    Raises:
        InputError: It states none.
    """
    if engine.cost is None:
        raise InputError(
            "what an engine's steps cost is not known. Run `loadslice profile` on the language file and give what it "
            "wrote with --profile, or give every engine its `cost` in the file."
        )
    return EngineTimes(
        backend=engine.backend,
        basis="modelled",
        source="cost as the language file states it",
        threads=engine.threads,
        cost=engine.cost,
        shape=[1.0] * len(SHAPE_ROWS),
        noise=[],
        fit_error_p50=None,
        fit_error_max=None,
        adopt_us_per_token=None,
        kv_bytes_per_token=None,
        memory_bytes=None,
        steps=[],
    )
