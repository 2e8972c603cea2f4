"""`loadslice portrait`."""

from pathlib import Path
from typing import Any

import click

from loadslice.app.output import Finite, emit, json_option, keep, out_option
from loadslice.spec import budget as budgets
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.portrait import ModelDimension
from loadslice.workload import importing, utilisation, words
from loadslice.workload import portrait as portraits

PRECISIONS: dict[str, Any] = {
    "float32": "fp32", "fp32": "fp32", "float16": "fp16", "fp16": "fp16", "bfloat16": "fp16", "bf16": "fp16",
    "int8": "int8", "uint8": "int8", "int4": "int4", "uint4": "int4",
}  # fmt: skip
"""Element types of ONNX -> precision classes of the waterline; bfloat16 has the width of fp16."""


@click.command(
    epilog="Example: loadslice portrait examples/ocr/traffic.parquet --budget examples/ocr/budget.yaml --json"
)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), help="ONNX model: turns the waterline into FLOP/s.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="Input shape of the model; may repeat."
)
@click.option("--utilisation", "samples", type=click.Path(path_type=Path), help="Sampled resources, CSV or JSONL.")
@click.option("--budget", type=click.Path(path_type=Path), help="Budget file: objective, power, people.")
@click.option("--latency-ms", type=Finite(min=0, min_open=True), help="Latency wanted for every request.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16", "int8", "int4"]),
    help="Lowest precision that still answers right.",
)
@click.option(
    "--answer-token-ms",
    type=Finite(min=0.001, max=60_000),
    default=50.0,
    show_default=True,
    help="Pace of a language model's answers, for the KV that is held.",
)
@click.option("--cache-tokens", type=click.IntRange(0, 10**12), help="A prefix cache to try on a trace with blocks.")
@json_option
@out_option
def command(
    trace: Path,
    model: Path | None,
    shapes: tuple[str, ...],
    samples: Path | None,
    budget: Path | None,
    latency_ms: float | None,
    precision: Any,
    answer_token_ms: float,
    cache_tokens: int | None,
    as_json: bool,
    out: Path | None,
) -> None:
    """What does my load look like?

    TRACE is a trace file, or a log in any format that `loadslice trace import` reads.
    """
    loaded = importing.load(trace)
    context = portraits.Context(
        model=None if model is None else _inspected(model, shapes),
        utilisation=None if samples is None else utilisation.read(samples),
        budget=None if budget is None else budgets.load(budget),
        latency_budget_ms=latency_ms,
        precision=precision,
        answer_token_ms=answer_token_ms,
        cache_tokens=cache_tokens,
    )
    inputs = {"trace": trace, "model": model, "utilisation": samples, "budget": budget}
    files = {name: path for name, path in inputs.items() if path is not None and path.is_file()}
    made = stamp(portraits.SCHEMA, inputs=files, tools=("polars", "numpy"))
    portrait = portraits.portray(loaded, trace.name, made, context)
    keep(portrait, out, "portrait.json")
    emit(portrait, as_json=as_json, text=lambda: words.portrait_lines(portrait))


def _inspected(model: Path, shapes: tuple[str, ...]) -> ModelDimension:
    from loadslice.graph.inspect import inspect

    found = inspect(model, dict(_shape(text) for text in shapes), ())
    # A run at the inspected shape carries as many items as the batch dimension says; 1 unless a shape was given.
    rows = next((shape[0] for shape in found.shapes.values() if shape), 1)
    return ModelDimension(
        model=model.name,
        sha256=found.sha256,
        parameters=found.parameters,
        weight_bytes=found.weight_bytes,
        flop_per_item=None if found.flops is None else found.flops / max(1, rows),
        intensity_flop_per_byte=found.intensity_flop_per_byte,
        precision=PRECISIONS.get(found.precision or ""),
    )


def _shape(text: str) -> tuple[str, list[int]]:
    name, _, sides = text.rpartition("=")
    parts = sides.split("x")
    if not name or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape {text}: expected NAME=1x3x640x640.")
    return name, [int(part) for part in parts]
