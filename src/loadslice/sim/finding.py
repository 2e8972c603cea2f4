"""What checking a journal comes to, and the promises that every kind of journal makes."""

from collections.abc import Mapping

import msgspec
import polars as pl


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One promise and whether the journal keeps it."""

    promise: str
    held: bool
    figure: str


def is_closed(clean: bool) -> Finding:
    """A run that was not closed lacks what came after its last part, and its totals."""
    return Finding(
        promise="the run was closed in order",
        held=clean,
        figure="clean"
        if clean
        else "not closed: its server still runs, or was killed. What happened after the last part is not here, nor are "
        "totals to compare with; what is here is checked below. Stop the server (SIGTERM) and check again. If it was "
        "killed, start it with another --journal folder: this one stays as it is.",
    )


def adds_up(submitted: int, outcomes: Mapping[str, int], rows: int) -> Finding:
    """What the head of a journal counts is what its table holds."""
    total = sum(outcomes.values())
    return Finding(
        promise="submitted = sum of outcomes",
        held=submitted == total == rows,
        figure=f"{submitted} submitted, {total} outcomes, {rows} rows",
    )


def ended_once(requests: pl.DataFrame, without: int) -> Finding:
    """Every tag stands once, and all but ``without`` rows have an outcome."""
    twice = requests.height - requests["tag"].n_unique()
    return Finding(
        promise="exactly one outcome per request",
        held=twice == without == 0,
        figure=f"{twice} repeated, {without} without",
    )


def goes_forward(events: pl.DataFrame) -> Finding:
    """Events stand in the order in which they happened."""
    backwards = events.filter(pl.col("now_ns") < pl.col("now_ns").shift(1)).height
    return Finding(promise="the clock never goes back", held=backwards == 0, figure=f"{backwards} steps back")
