"""Which work each row of a trace becomes."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest

from loadslice.sim.traffic import Intake
from loadslice.spec.latency import InputWork, LatencyTable, StageWork
from loadslice.spec.pipeline import Engine, Pipeline, Stage, check

PIPELINE = check(
    Pipeline(
        version=1, pipeline="p", engines={"a": Engine(backend="twin")},
        stages=[Stage(name="find", variant="v", engine="a"), Stage(name="read", variant="w", engine="a")],
    ),
    "test",
)  # fmt: skip
ROWS = 4000


def profile(*lines: int) -> LatencyTable:
    """Inputs that are one page each, and so many lines."""
    return LatencyTable(
        entries=[],
        inputs=[
            InputWork(
                input=f"page{number}",
                stages=[StageWork(stage="find", items=1), StageWork(stage="read", items=count)],
            )
            for number, count in enumerate(lines)
        ],
    )


def trace(items: Sequence[int | None]) -> pl.DataFrame:
    """Rows a millisecond apart."""
    return pl.DataFrame(
        {"arrival_s": np.arange(len(items)) / 1000, "items": items}, schema_overrides={"items": pl.Int32}
    )


def lines_of(intake: Intake, part: pl.DataFrame) -> list[int]:
    traffic = intake.lower(part)
    found: list[int] = traffic.items[traffic.work, 1].tolist()
    return found


def test_rows_that_say_their_size_are_given_inputs_of_that_size() -> None:
    intake = Intake(PIPELINE, profile(3, 1, 3, 9), seed=1)
    items = [1, 3, 9] * ROWS
    drawn = intake.lower(trace(items))
    assert drawn.items[drawn.work, 1].tolist() == items
    of_three = drawn.work[1::3]
    assert np.bincount(of_three, minlength=4)[[0, 2]] == pytest.approx([ROWS / 2] * 2, rel=0.1)
    assert any("of its size" in warning for warning in intake.warnings)
    assert not any("nearest" in warning for warning in intake.warnings)


def test_sizes_that_no_input_has_are_the_nearest_and_unknown_ones_are_any_and_both_are_drawn_alike_in_parts() -> None:
    whole = trace([4, None, 100, 2] * ROWS)
    intake = Intake(PIPELINE, profile(3, 1, 3, 9), seed=1)
    found = lines_of(intake, whole)
    assert set(found[0::4]) == {3}
    assert set(found[1::4]) == {1, 3, 9}
    assert set(found[2::4]) == {9}
    assert any("1, 3, 9 items: other sizes were taken as the nearest" in warning for warning in intake.warnings)
    parts = Intake(PIPELINE, profile(3, 1, 3, 9), seed=1)
    assert [one for part in whole.iter_slices(1003) for one in lines_of(parts, part)] == found


def test_a_profile_of_one_size_only_says_that_the_traces_sizes_were_not_used() -> None:
    intake = Intake(PIPELINE, profile(2, 2), seed=1)
    assert set(lines_of(intake, trace([1, 2, 4]))) == {2}
    assert any("'items' was not used: every input of the profile has 2 items." in text for text in intake.warnings)


def test_where_every_input_is_one_row_a_request_of_many_items_is_many_rows() -> None:
    intake = Intake(PIPELINE, profile(1, 1), seed=1)
    parts = trace([1, 2, 4, 4, 3, None]).iter_slices(3)
    assert [lines_of(intake, part) for part in parts] == [[1, 2, 4], [4, 3, 1]]
    (warning,) = intake.warnings
    assert "each request was taken as `items` rows" in warning
