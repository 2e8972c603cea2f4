"""What is sent for each row of a trace: a body, its headers and the right answer where it is known."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from loadslice.evaluate import infer
from loadslice.evaluate.accuracy import Scorer
from loadslice.evaluate.loadgen import Shot
from loadslice.sim.inputs import Int64s, draw_inputs, have_sizes
from loadslice.spec.errors import InputError
from loadslice.spec.files import read_bytes
from loadslice.spec.functions import load_function
from loadslice.spec.latency import LatencyTable
from loadslice.spec.work import Sample

BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Inputs:
    """Example inputs, by name, and what their module can do with them."""

    samples: dict[str, Sample]
    assign: Callable[[Any], list[str]] | None = None
    """Chooses an input per request from the trace's ``tokens_in``."""
    score: Scorer | None = None
    source: Path | None = field(default=None)
    """The module's file."""
    every_time: bool = False
    """The one sample is sent for every row, whatever the trace calls its input."""

    @property
    def are_tensors(self) -> bool:
        """They are sent as tensors, not as raw bytes."""
        return any(sample.tensors is not None for sample in self.samples.values())


def from_function(reference: str, folder: Path) -> Inputs:
    """Load the inputs a pipeline names as ``module:function``; ``assign`` and ``score`` of that module if it has them.

    Raises:
        InputError: No such function, or it does not give samples.
    """
    function = load_function(reference, folder)
    try:
        made = function()
    except Exception as error:
        raise InputError(f"'{reference}': raised {type(error).__name__}: {error}") from error
    if not isinstance(made, list) or not made or not all(isinstance(sample, Sample) for sample in made):
        raise InputError(f"'{reference}': must return a list of loadslice.spec.work.Sample, at least one.")
    module = sys.modules[function.__module__]
    samples = {sample.name: sample for sample in made}
    if len(samples) != len(made):
        raise InputError(f"'{reference}': two samples have the same name.")
    return Inputs(
        samples,
        assign=getattr(module, "assign", None),
        score=getattr(module, "score", None),
        source=folder / f"{reference.partition(':')[0]}.py",
    )


def from_module(path: Path) -> Inputs:
    """Load the inputs of a Python file with a function ``samples``.

    Raises:
        InputError: As `from_function`.
    """
    if path.suffix != ".py":
        raise InputError(f"--inputs {path}: not a Python file. Give one with a function `samples`, or use --body FILE.")
    return from_function(f"{path.stem}:samples", path.parent)


def from_body(path: Path, content_type: str) -> Inputs:
    """One body for every request.

    Raises:
        InputError: Unreadable or too large.
    """
    sample = Sample(path.name, content_type, read_bytes(path, max_bytes=BODY_BYTES_MAX))
    return Inputs({sample.name: sample}, source=path, every_time=True)


def are_drawn(frame: pl.DataFrame, inputs: Inputs) -> bool:
    """Whether `name_inputs` has to draw: neither the trace nor the inputs module says what a row stands for."""
    chosen = inputs.assign is not None and _knows_tokens(frame)
    return "input" not in frame.columns and len(inputs.samples) > 1 and not chosen


def how_drawn(frame: pl.DataFrame, inputs: Inputs, latency: LatencyTable | None) -> str:
    """What to tell whoever replays a trace whose inputs `are_drawn`; arguments as for `name_inputs`."""
    how = "one, drawn evenly."
    if have_sizes(frame, _sizes(inputs, latency)[1]):
        how = "one of its size, drawn evenly."
    elif "items" in frame.columns and latency is None:
        how = "one, drawn evenly, whatever its `items`: a profile says how large each input is (--profile)."
    return (
        f"the trace names no inputs: each request was given {how} "
        "Name them with `loadslice trace import --map COLUMN=input`, or give the inputs module `assign(tokens_in)`."
    )


def _knows_tokens(frame: pl.DataFrame) -> bool:
    return "tokens_in" in frame.columns and frame["tokens_in"].null_count() == 0


def name_inputs(frame: pl.DataFrame, inputs: Inputs, place: str, latency: LatencyTable | None = None) -> pl.DataFrame:
    """Give every row of a whole trace the name of the input that stands for it, column ``input``.

    Call it on the whole trace before cutting a stretch out: an input module ranks sizes over all it is given. Where
    nothing says what a row stands for, inputs are drawn as the simulator draws them, by a fixed seed: for one trace and
    one profile both give the same.

    Args:
        frame: A whole trace.
        inputs: What can be sent.
        place: The trace's name in errors.
        latency: Profile of these inputs, which says how large each is; ``None``: they are taken as alike.

    Raises:
        InputError: The trace names inputs that are not there, or not in every row; the profile is of other inputs.
    """
    if "input" in frame.columns and not inputs.every_time:
        missing = frame["input"].null_count()
        unknown = frame.filter(~pl.col("input").is_in(list(inputs.samples)))["input"].drop_nulls()
        if missing:
            raise InputError(f"{place}: column 'input' is empty in {missing} rows; name one of the inputs in each.")
        if unknown.len():
            known = ", ".join(list(inputs.samples)[:4])
            raise InputError(
                f"{place}: input '{unknown[0]}' is not one of the {len(inputs.samples)} inputs ({known}, ..)."
            )
        return frame
    if len(inputs.samples) == 1:
        return frame.with_columns(input=pl.lit(next(iter(inputs.samples))))
    if inputs.assign is None or not _knows_tokens(frame):
        names, sizes = _sizes(inputs, latency)
        drawn = draw_inputs(frame, sizes, np.random.default_rng(0))
        return frame.with_columns(input=pl.Series(names, dtype=pl.String).gather(drawn))
    names = inputs.assign(frame["tokens_in"].to_numpy())
    assert len(names) == frame.height
    return frame.with_columns(input=pl.Series(names, dtype=pl.String))


def _sizes(inputs: Inputs, latency: LatencyTable | None) -> tuple[list[str], Int64s]:
    """Names and sizes of inputs, in the order in which the simulator knows them."""
    if latency is None or not latency.inputs:
        return list(inputs.samples), np.ones(len(inputs.samples), np.int64)
    known = {work.input: work.size for work in latency.inputs if work.input in inputs.samples}
    for name in inputs.samples:
        if name not in known:
            raise InputError(
                f"the profile knows no input '{name}'. Run `loadslice profile` with the inputs to be sent."
            )
    return list(known), np.array(list(known.values()), np.int64)


def cut(frame: pl.DataFrame, *, from_s: float, for_s: float | None, speed: float, limit: int | None) -> pl.DataFrame:
    """A stretch of a trace at a scaled pace; ``arrival_s`` starts at the stretch's begin, ``row`` numbers the trace.

    Args:
        frame: A whole trace.
        from_s: Begin in recorded seconds.
        for_s: Length in recorded seconds; ``None``: to the end.
        speed: 2 plays twice as fast.
        limit: Requests at most.
    """
    if "row" not in frame.columns:
        frame = frame.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    stretch = frame.filter(pl.col("arrival_s") >= from_s)
    if for_s is not None:
        stretch = stretch.filter(pl.col("arrival_s") < from_s + for_s)
    if limit is not None:
        stretch = stretch.head(limit)
    return stretch.with_columns(arrival_s=(pl.col("arrival_s") - from_s) / speed)


def checked_stretch(
    frame: pl.DataFrame,
    inputs: Inputs,
    place: str,
    *,
    from_s: float,
    for_s: float | None,
    speed: float,
    limit: int | None,
    max_s: float,
    latency: LatencyTable | None = None,
) -> pl.DataFrame:
    """`name_inputs` and `cut`, with what a user may have got wrong refused.

    Args:
        frame: A whole trace.
        inputs: What can be sent.
        place: The trace's name in errors.
        from_s: As in `cut`.
        for_s: As in `cut`.
        speed: As in `cut`.
        limit: As in `cut`.
        max_s: Longest replay allowed, seconds of real time.
        latency: As in `name_inputs`.

    Raises:
        InputError: A number out of range, an empty stretch, or a replay longer than ``max_s``.
    """
    for key, value, low in (("--speed", speed, 0.0), ("--for-s", for_s, 0.0)):
        if value is not None and not (math.isfinite(value) and value > low):
            raise InputError(f"{key} {value}: must be a number above {low:g}.")
    if not (math.isfinite(from_s) and from_s >= 0):
        raise InputError(f"--from-s {from_s}: must be 0 or more.")
    stretch = cut(name_inputs(frame, inputs, place, latency), from_s=from_s, for_s=for_s, speed=speed, limit=limit)
    if stretch.height == 0:
        end_s = last_due_s(frame)
        raise InputError(f"{place}: no requests from {from_s:g} s on for that long; the trace ends at {end_s:.1f} s.")
    last_s = last_due_s(stretch)
    if last_s > max_s:
        raise InputError(
            f"{place}: the replay would last {last_s:.0f} s, more than {max_s:.0f}. "
            "Use --for-s, --limit or --speed, or allow it with --max-s."
        )
    return stretch


def last_due_s(frame: pl.DataFrame) -> float:
    """When the last request is due."""
    return float(frame["arrival_s"].to_numpy()[-1])


def shots(stretch: pl.DataFrame, inputs: Inputs) -> list[Shot]:
    """One request per row of a stretch that `name_inputs` and `cut` made."""
    encoded = {name: encode(inputs.samples[name]) for name in stretch["input"].unique()}
    found = []
    for row in stretch.iter_rows(named=True):
        body, fixed = encoded[row["input"]]
        headers = {**fixed, "x-request-id": str(row["row"])}
        for column, header in (
            ("class", "x-loadslice-priority"),
            ("deadline_ms", "x-loadslice-deadline-ms"),
            ("source", "x-loadslice-source"),
            ("tenant", "x-loadslice-tenant"),
        ):
            if row.get(column) is not None:
                headers[header] = _header_value(str(row[column]))
        found.append(Shot(row["row"], row["arrival_s"], body, headers))
    return found


def encode(sample: Sample) -> tuple[bytes, dict[str, str]]:
    """A sample's body and the headers that go with it every time."""
    named = {"x-loadslice-input": _header_value(sample.name)}
    if sample.tensors is None:
        return sample.body, {"content-type": sample.content_type, **named}
    body, headers = infer.encode(sample.name, sample.tensors)
    return body, {**headers, **named}


def _header_value(text: str) -> str:
    """A recorded value as a header may carry it: no line breaks, no control characters."""
    return "".join(character for character in text if character.isprintable()).strip()
