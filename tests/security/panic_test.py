"""A panic of the table reader is no `Exception`; on every way in it is bad input, in one line."""

from pathlib import Path

import polars as pl
import pytest

from loadslice.spec import journal, language_journal
from loadslice.spec.errors import InputError
from loadslice.workload import importing, recording, trace


def panic(*_: object, **__: object) -> pl.DataFrame:
    raise pl.exceptions.PanicException("called `Option::unwrap()`\non a `None` value")


@pytest.fixture
def panicking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that panics on a file that another process came through, as one of another version may."""
    monkeypatch.setattr(pl, "read_parquet", panic)
    monkeypatch.setattr(pl, "read_csv", panic)
    monkeypatch.setattr(pl.LazyFrame, "collect", panic)


@pytest.mark.usefixtures("panicking")
@pytest.mark.parametrize("reader", ["journal", "language journal", "recording", "trace", "log"])
def test_a_panic_on_any_kind_of_file_is_bad_input(reader: str, tmp_path: Path) -> None:
    table = tmp_path / "log.csv"
    table.write_text("arrival_s,items\n0,1\n")
    for name in ("part-1.parquet", "events.parquet"):
        pl.DataFrame({"arrival_s": [0.0, 1.0]}).write_parquet(tmp_path / name)
    fine = tmp_path / "events.parquet"
    readers = {
        "journal": lambda: journal._read([fine], str(fine)),
        "language journal": lambda: language_journal._table(tmp_path, "events", clean=True),
        "recording": lambda: recording.read(tmp_path),
        "trace": lambda: trace.read(fine),
        "log": lambda: importing.load(table),
    }
    with pytest.raises(InputError, match="unwrap"):
        readers[reader]()
