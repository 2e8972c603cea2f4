"""Damaged and hostile archives end in one line."""

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from loadslice.spec.arrays import read_npy, read_npz


def packed() -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, x=np.arange(6, dtype=np.float32).reshape(2, 3), names=np.array(["a", "bc"]))
    return held.getvalue()


def test_arrays_come_back_from_bytes_and_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(packed())
    for source in (packed(), tmp_path / "a.npz"):
        found = read_npz(source)
        assert list(found) == ["x", "names"]
        np.testing.assert_array_equal(found["x"], [[0, 1, 2], [3, 4, 5]])


def test_any_flipped_byte_is_read_or_a_value_error_of_one_line() -> None:
    whole, draw = packed(), random.Random(3)
    kinds, lines = set(), set()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << draw.randrange(8)
        try:
            read_npz(bytes(damaged))
        except (OSError, ValueError) as error:
            kinds.add(type(error.__cause__))
            lines.add(str(error))
    assert len(kinds) > 3, kinds
    assert not any("\n" in line for line in lines)


def test_an_archive_that_unpacks_to_more_than_allowed_is_refused() -> None:
    held = io.BytesIO()
    np.savez_compressed(held, x=np.zeros(1 << 20, np.uint8))
    with pytest.raises(ValueError, match="unpacks to"):
        read_npz(held.getvalue(), unpacked_bytes_max=1 << 19)


def test_objects_are_refused(tmp_path: Path) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive, archive.open("x.npy", "w") as entry:
        np.lib.format.write_array(entry, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_npz(held.getvalue())


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "absent.npz")


HEAD = b"\x93NUMPY\x01\x00"


def npy(head: bytes) -> bytes:
    return HEAD + len(head).to_bytes(2, "little") + head + bytes(24)


@pytest.mark.parametrize(
    "data",
    [
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), |  \n"),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2\n"),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2305843009213693951, 2), }\n"),
        npy(b"\xff\xff\xff\xff\n"),
        HEAD,
        b"",
    ],
)
def test_an_array_whose_head_is_no_python_is_a_value_error_of_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - whatever it says
        read_npy(path, bytes_max=1 << 20)
    assert "\n" not in str(error.value)


def test_an_array_is_read_unless_it_is_too_large_or_an_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6).reshape(3, 2))
    assert read_npy(tmp_path / "x.npy", bytes_max=48).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="48 bytes are more than the 47"):
        read_npy(tmp_path / "x.npy", bytes_max=47)
    np.savez(tmp_path / "y.npz", x=np.arange(6))
    with pytest.raises(ValueError, match="an archive"):
        read_npy(tmp_path / "y.npz", bytes_max=1000)
