from pathlib import Path

import numpy as np
import pytest

from loadslice.app import batch_rows
from loadslice.app.batch_rows import BadRow, Row, look
from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file


def test_a_bad_line_is_told_in_its_place_and_the_others_are_rows(tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(b"\x89PNG")
    lines = ['{"inputs": []}', "", "{", '{"file": "page.png"}', '{"file": "../out"}', "[1]", '{"id": "x"}', "\xff"]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="latin-1")
    inputs = look(path)
    found = list(inputs)
    assert inputs.rows == len(found) == 7
    assert [row.number for row in found] == list(range(7))
    assert [row.place for row in found] == ["line 1", *[f"line {n}" for n in range(3, 9)]]
    assert [isinstance(row, Row) for row in found] == [True, False, True, False, False, False, False]
    page = found[2]
    assert isinstance(page, Row)
    assert (page.body, page.headers, page.raw) == (b"\x89PNG", {"content-type": "image/png"}, True)
    outside = found[3]
    assert isinstance(outside, BadRow)
    assert "outside" in outside.error


@pytest.mark.parametrize("end", ["\n", ""])
def test_lines_that_are_too_long_are_told_in_their_places_and_hashed_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(batch_rows, "LINE_BYTES_MAX", 20)
    path = tmp_path / "rows.jsonl"
    long = '{"inputs": []' + " " * 100 + "}"
    path.write_text("\n".join([long, long, '{"inputs": []}', " " * 30, "", '{"inputs": []}', long]) + end)
    inputs = look(path)
    assert [(row.number, row.place, isinstance(row, Row)) for row in inputs] == [
        (0, "line 1", False),
        (1, "line 2", False),
        (2, "line 3", True),
        (3, "line 4", False),
        (4, "line 6", True),
        (5, "line 7", False),
    ]
    assert (inputs.rows, inputs.fingerprint) == (6, sha256_file(path))


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret").write_text("s")
    (folder / "a.txt").symlink_to(tmp_path / "secret")
    (row,) = look(folder)
    assert isinstance(row, BadRow)


def test_arrays_of_one_file_give_a_request_per_row(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.arange(6, dtype=np.float32).reshape(3, 2), y=np.arange(3))
    rows = list(look(tmp_path / "in.npz"))
    assert len(rows) == 3
    last = rows[2]
    assert isinstance(last, Row)
    assert last.body.endswith(np.array([4, 5], "<f4").tobytes() + np.array([2], "<i8").tobytes())
    assert not last.raw


def test_a_folder_gives_a_request_per_file_in_order_of_names(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.ones((1, 2), np.float32))
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "c.npy").write_bytes(b"nonsense")
    first, second, third = look(tmp_path)
    assert isinstance(first, Row)
    assert isinstance(second, Row)
    assert (first.id, first.raw, second.id, second.raw) == ("a.txt", True, "b.npy", False)
    assert isinstance(third, BadRow)


@pytest.mark.parametrize(
    "case", ["missing.jsonl", "empty.jsonl", "words.txt", "broken.npz", "uneven.npz", "scalar.npz"]
)
def test_what_holds_no_rows_is_refused_as_a_whole(tmp_path: Path, case: str) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "words.txt").write_text("x")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04nonsense")
    np.savez(tmp_path / "uneven.npz", x=np.ones(2), y=np.ones(3))
    np.savez(tmp_path / "scalar.npz", x=np.float32(1))
    with pytest.raises(InputError):
        look(tmp_path / case)


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.array([{"a": 1}], object))
    with pytest.raises(InputError, match="not an array file"):
        look(tmp_path / "in.npz")
