"""What was measured before a plan is made: portrait, inspections and squeezes, read for the decision."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from loadslice.graph.devices import catalogue
from loadslice.spec import portrait as portraits
from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_json, resolve_model
from loadslice.spec.inspection import Inspection
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.portrait import Portrait
from loadslice.spec.variant import Squeeze


class Evidence(NamedTuple):
    """Files, read."""

    portrait: Portrait | None
    inspections: list[Inspection]
    npus: list[str]
    """Devices of the inspections that are NPUs."""
    squeezes: list[Squeeze]


def read(portrait: Path | None, inspections: Sequence[Path], squeezes: Sequence[Path]) -> Evidence:
    """Read what there is.

    Raises:
        InputError: A file that is none of its kind.
    """
    found: list[Inspection] = []
    for path in inspections:
        # A study keeps those of all its models in one file.
        read = decode_json(path, Inspection | list[Inspection])  # type: ignore[arg-type]
        found += read if isinstance(read, list) else [read]
    return Evidence(
        portraits.load(portrait) if portrait is not None else None,
        found,
        _npus(found),
        [decode_json(path, Squeeze) for path in squeezes],
    )


def of_models(pipeline: Pipeline, folder: Path) -> list[Inspection]:
    """Inspections of a pipeline's models as their files are, for a plan that was given none: they count parameters.

    Args:
        pipeline: Stages without a file are nobody's to inspect; then there is no inspection of any.
        folder: Of the pipeline file.
    """
    from loadslice.graph.inspect import inspect

    files = [stage.model for stage in pipeline.stages if stage.python is None]
    try:
        return (
            [inspect(resolve_model(file, folder), {}, []) for file in files if file is not None] if all(files) else []
        )
    except InputError:
        return []  # a plan needs times, not models: a file that is not here leaves its questions open


def rows_p99(frame: pl.DataFrame) -> float | None:
    """Rows that 99 of 100 requests do not exceed; ``None``: the trace does not say."""
    if "items" not in frame.columns:
        return None
    value = frame["items"].quantile(0.99, interpolation="higher")
    return None if value is None else float(value)


def _npus(inspections: Sequence[Inspection]) -> list[str]:
    """NPUs by the catalogue; what it does not know and a vendor's compiler or table was asked about is one, too."""
    known = catalogue()
    names = dict.fromkeys(name for one in inspections for name in one.devices)
    return [
        name
        for name in names
        if (known[name].kind == "npu" if name in known else any(_asked(one, name) for one in inspections))
    ]


def _asked(inspection: Inspection, name: str) -> bool:
    return name in inspection.devices and inspection.devices[name].source is not None
