"""Whatever polars raises on somebody else's table, its caller gets one line."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from loadslice.spec import frames
from loadslice.spec.errors import OutputError


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    path = tmp_path / "fine.parquet"
    pl.DataFrame({"arrival_s": [0.0, 1.0]}).write_parquet(path)
    return path


@pytest.mark.parametrize(
    "error", [pl.exceptions.PanicException("a\nb"), pl.exceptions.ComputeError("a\nb"), MemoryError("a\nb")]
)
def test_panics_errors_and_memory_that_is_not_there_are_one_line(error: BaseException) -> None:
    with pytest.raises(frames.TableError, match=r"^a b$"), frames.guarded():
        raise error


def test_an_error_that_says_nothing_is_named_and_a_long_one_is_cut() -> None:
    with pytest.raises(frames.TableError, match=r"^MemoryError$"), frames.guarded():
        raise MemoryError
    with pytest.raises(frames.TableError) as error, frames.guarded():
        raise pl.exceptions.ComputeError("x" * 10_000)
    assert len(str(error.value)) == frames.SAID_MAX


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_the_systems_error_whoever_writes() -> None:
    with pytest.raises(OSError, match="No space left"), frames.guarded():
        pl.DataFrame({"x": range(100_000)}).write_parquet("/dev/full")


def test_an_interrupt_is_not_a_tables_fault() -> None:
    with pytest.raises(KeyboardInterrupt), frames.guarded():
        raise KeyboardInterrupt


def test_files_that_do_not_go_together_are_said_to(fine: Path) -> None:
    other = fine.with_name("other.parquet")
    pl.DataFrame({"arrival_s": ["a"]}).write_parquet(other)
    with pytest.raises(frames.TableError):
        frames.read_parquet([fine, other])
    with pytest.raises(frames.TableError):
        frames.read_parquet([fine, other], how="diagonal")


def test_parts_are_joined_in_order(fine: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.parquet"
    assert frames.join_parquet([fine, fine], {"arrival_s": pl.Float64()}, target) == 4
    assert pl.read_parquet(target)["arrival_s"].to_list() == [0.0, 1.0, 0.0, 1.0]
    assert frames.join_parquet([], {"arrival_s": pl.Float64()}, target) == 0


def test_a_part_that_somebody_damaged_leaves_the_target_as_it_was(fine: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.parquet"
    target.write_bytes(b"as it was")
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 no more")
    with pytest.raises(frames.TableError):
        frames.join_parquet([fine, damaged], {"arrival_s": pl.Float64()}, target)
    assert target.read_bytes() == b"as it was"
    assert not list(tmp_path.glob(".*"))


def test_a_target_that_cannot_be_written_is_said(fine: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        frames.join_parquet([fine], {"arrival_s": pl.Float64()}, tmp_path / "file" / "all.parquet")


@pytest.mark.parametrize(("free", "kind"), [(0, OSError), (1 << 30, frames.TableError)])
def test_what_polars_says_of_a_full_disk_in_other_words_is_told_by_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, kind: type[Exception]
) -> None:
    def write(*_: object) -> None:
        raise pl.exceptions.ComputeError("parquet: File out of specification: Invalid thrift: transport error")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", write)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(kind):
        frames.write_parquet(pl.DataFrame(), tmp_path / "t.parquet")
