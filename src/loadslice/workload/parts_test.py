"""A trace read in parts is the trace read whole."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loadslice.spec.errors import InputError
from loadslice.workload import trace as trace_file
from loadslice.workload.parts import in_parts

ROWS = 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    draws = np.random.default_rng(2)
    frame = pl.DataFrame(
        {
            "arrival_s": np.cumsum(draws.exponential(0.01, ROWS)),
            "items": draws.integers(1, 9, ROWS),
            "source": pl.Series([None] * 700 + ["app"] * 300, dtype=pl.String),
            "tenant": pl.Series([None] * ROWS, dtype=pl.String),
        }
    )
    frame.write_parquet(tmp_path / "trace.parquet", row_group_size=128)
    return tmp_path / "trace.parquet"


@pytest.mark.parametrize("rows", [1, 300, ROWS, 10 * ROWS])
def test_parts_put_together_are_the_whole(path: Path, rows: int) -> None:
    whole = trace_file.read(path).frame
    parts = in_parts(path)
    assert parts.rows == ROWS
    assert parts.span_s == whole["arrival_s"][-1] - whole["arrival_s"][0]
    frames = list(parts.frames(rows))
    assert max(frame.height for frame in frames) <= rows
    assert pl.concat([frame.select(whole.columns) for frame in frames]).equals(whole)
    assert all(set(frame.columns) == set(whole.columns) for frame in frames)


def test_a_time_that_falls_between_two_parts_is_named_with_its_row(path: Path) -> None:
    frame = pl.read_parquet(path).with_columns(
        pl.when(pl.int_range(pl.len()) == 300).then(0.0).otherwise("arrival_s").alias("arrival_s")
    )
    frame.write_parquet(path)
    with pytest.raises(InputError, match=r"arrival_s 0.0 is earlier than the row before.*\(row 301\)"):
        list(in_parts(path).frames(300))


def test_a_value_that_is_none_is_named_with_its_row_in_the_file(path: Path) -> None:
    frame = pl.read_parquet(path).with_columns(
        pl.when(pl.int_range(pl.len()) == 650).then(-1).otherwise("items").alias("items")
    )
    frame.write_parquet(path)
    with pytest.raises(InputError, match=r"items -1 is negative.*\(row 651\)"):
        list(in_parts(path).frames(300))


def test_a_file_that_is_cut_off_is_one_readable_line(path: Path) -> None:
    stored = path.read_bytes()
    path.write_bytes(stored[:1000] + bytes(1000) + stored[2000:])
    with pytest.raises(InputError, match="not a readable Parquet file"):
        list(in_parts(path).frames())


def test_times_that_are_text_are_one_readable_line(path: Path) -> None:
    pl.read_parquet(path).with_columns(pl.col("arrival_s").cast(pl.String)).write_parquet(path)
    with pytest.raises(InputError, match="'arrival_s' holds String"):
        list(in_parts(path).frames())
