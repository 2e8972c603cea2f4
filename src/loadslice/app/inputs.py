"""Which example input stands for which row of a trace."""

from pathlib import Path

import polars as pl

from loadslice.spec.errors import InputError
from loadslice.spec.functions import call_function
from loadslice.spec.pipeline import Pipeline


def with_inputs(frame: pl.DataFrame, pipeline: Pipeline, folder: Path) -> pl.DataFrame:
    """Name an input for every row, where the trace does not and the pipeline's inputs module knows how.

    Args:
        frame: Trace rows.
        pipeline: Its ``inputs`` names ``module:function``; ``module:assign`` maps prompt sizes to input names.
        folder: Folder of the pipeline file.

    Returns:
        The frame, with a column ``input`` when it could be had.

    Raises:
        InputError: The module is there and broken.
    """
    if "input" in frame.columns or pipeline.inputs is None or "tokens_in" not in frame.columns:
        return frame
    if frame["tokens_in"].null_count():
        return frame
    reference = f"{pipeline.inputs.partition(':')[0]}:assign"
    try:
        names = call_function(reference, folder, frame["tokens_in"].to_numpy())
    except InputError as error:
        if "has no function" in str(error):
            return frame
        raise
    return frame.with_columns(pl.Series("input", list(names), dtype=pl.String))
