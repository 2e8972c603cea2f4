from pathlib import Path

import numpy as np
import pytest

from loadslice.spec import files
from loadslice.spec.errors import InputError


def write_half(path: Path) -> None:
    with files.replacing(path) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    files.write_bytes(path, b"old")
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_an_unwritable_place_is_one_readable_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="Choose another place"):
        files.write_bytes(tmp_path / "file" / "report.json", b"x")


def test_unknown_is_null_never_nan() -> None:
    assert files.encode_json({"x": float("nan")}) == b'{\n  "x": null\n}\n'


def test_a_package_reference_cannot_leave_the_package(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leaves package"):
        files.resolve_model("package:msgspec/../numpy/__init__.py", tmp_path)


def test_a_yaml_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("a: 1\nb: {c: 1, c: 2}\n", encoding="utf-8")
    with pytest.raises(InputError, match="'c' stands twice"):
        files.decode_yaml(path, dict)


def test_numpy_scalars_have_a_json_form() -> None:
    assert files.encode_json({"x": np.float64(0.5), "n": np.int64(3)}) == b'{\n  "x": 0.5,\n  "n": 3\n}\n'
