import resource
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from loadslice.spec.errors import InputError
from loadslice.workload import trace

ROWS = pl.DataFrame(
    {
        "arrival_s": [0.0, 0.5, 2.0],
        "items": [1, None, 3],
        "class": ["critical", None, "sheddable"],
        "stage_ms.decode": [0.1, 0.2, 0.3],
        "blocks": [[1, 2], [], [3]],
    }
)
META = {"format": "csv", "source": "x.csv", "start_utc": "2024-03-04T00:00:00+00:00", "tick_ms": 3.5, "notes": ["a"]}


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    written = trace.Trace(trace.conform(ROWS, "x"), META)
    trace.write(written, tmp_path / name)
    found = trace.read(tmp_path / name)
    assert found.meta == META
    assert found.frame.select(sorted(found.frame.columns)).equals(written.frame.select(sorted(written.frame.columns)))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_large_trace_can_be_scanned_without_its_rows(tmp_path: Path) -> None:
    trace.write(trace.Trace(trace.conform(ROWS, "x"), META), tmp_path / "t.parquet")
    lazy, meta = trace.scan(tmp_path / "t.parquet")
    assert lazy.select(pl.len()).collect().item() == 3
    assert meta == META


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("arrival_s", [0.0, None, 2.0], "is missing (row 2)"),
        ("arrival_s", [0.0, float("nan"), 2.0], "is not finite (row 2)"),
        ("arrival_s", [0.0, float("inf"), 2.0], "is not finite (row 2)"),
        ("arrival_s", [-1.0, 0.0, 2.0], "-1.0 is negative (row 1)"),
        ("arrival_s", [1.0, 0.0, 2.0], "is earlier than the row before"),
        ("arrival_s", [0.0, 1.7e12, 1.8e12], "is it in seconds?"),
        ("arrival_s", ["0", "1", "2"], "holds String, expected Float64"),
        ("items", [1, -1, 1], "items -1 is negative"),
        ("items", [1.0, 1.5, 1.0], "1.5 is not a whole number (row 2)"),
        ("items", [1, 2**40, 1], "is no Int32 (row 2)"),
        ("latency_ms", [1.0, float("nan"), 1.0], "latency_ms nan"),
        ("stage_ms.x", [1.0, -1.0, 1.0], "stage_ms.x -1.0 is negative"),
        ("class", ["critical", "vip", None], "'vip' is not one of critical_plus"),
        ("colour", [1, 2, 3], "unknown column 'colour'"),
    ],
)
def test_a_row_no_trace_may_hold_is_one_line_that_names_it(column: str, values: list[object], says: str) -> None:
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0, 2.0]}).with_columns(pl.Series(column, values, strict=False))
    with pytest.raises(InputError) as caught:
        trace.conform(frame, "t.parquet")
    assert says in str(caught.value)
    assert str(caught.value).startswith("t.parquet")
    assert "\n" not in str(caught.value)


def test_a_column_without_a_value_is_unknown_and_left_out() -> None:
    frame = ROWS.with_columns(tokens_in=pl.lit(None))
    assert "tokens_in" not in trace.conform(frame, "x").columns


def test_sort_puts_rows_in_order_instead_of_refusing_them() -> None:
    assert trace.conform(ROWS.reverse(), "x", sort=True)["arrival_s"].to_list() == [0.0, 0.5, 2.0]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_a_damaged_parquet_file_is_one_readable_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a readable Parquet file") as caught:
        trace.read(path)
    assert "\n" not in str(caught.value)


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    found = trace.Trace(ROWS, {})
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for name, says in (
        ("t.csv", "named .parquet"),
        ("folder.parquet", "not a file"),
        ("file/t.parquet", "another place"),
    ):
        with pytest.raises(InputError, match=says):
            trace.write(found, tmp_path / name)


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_a_disk_that_fills_leaves_nothing_half_written(tmp_path: Path, name: str) -> None:
    # A limit on file size stops a write the way a full disk does, without filling one.
    program = (
        "import resource, sys, numpy, polars\n"
        "from pathlib import Path\n"
        "from loadslice.spec.errors import InputError\n"
        "from loadslice.workload import trace\n"
        "rows = polars.DataFrame({'arrival_s': numpy.sort(numpy.random.default_rng(0).random(200_000))})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    trace.write(trace.Trace(rows, {}), Path(sys.argv[1]))\n"
        "except InputError as error:\n"
        "    sys.exit(f'refused {error}')\n"
    )
    assert hasattr(resource, "RLIMIT_FSIZE")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("refused "), done.stderr
    assert "cannot be written" in done.stderr
    assert list(tmp_path.iterdir()) == []
