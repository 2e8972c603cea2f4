"""Rows of a file of inputs, one at a time, so that a file may be larger than memory. A bad row is told, not raised."""

import contextlib
import hashlib
import mimetypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from loadslice.evaluate import infer
from loadslice.spec import validation
from loadslice.spec.arrays import read_npy, read_npz
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON, opened, read_bytes, reason, resolved, sha256_file
from loadslice.spec.work import Tensor

LINE_BYTES_MAX = 64 * 1024 * 1024
FILE_BYTES_MAX = 64 * 1024 * 1024
ARRAYS_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""All arrays of one ``.npz`` together, unpacked."""
TENSOR_SUFFIXES = (".npy", ".npz")


class Row(NamedTuple):
    """One request to be."""

    number: int
    """From 0, in order of the file."""
    place: str
    id: str | None
    body: bytes
    headers: dict[str, str]
    raw: bool
    """Bytes that are not tensors."""


class BadRow(NamedTuple):
    """One row that cannot be sent."""

    number: int
    place: str
    error: str


class _Line(msgspec.Struct):
    """What a line of a JSONL file may say; an inference body has ``inputs`` and whatever else the protocol allows."""

    id: str | None = None
    inputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    file: str | None = None
    content_type: str | None = None


_line = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A file or a folder of inputs, looked at once."""

    path: Path
    rows: int
    fingerprint: str
    """The same for the same content: a run is resumed only on what it began with."""
    too_long: Mapping[int, int] = field(default_factory=dict)
    """Lines that are too long: where each begins, and where the next one does, so that it is read once only."""

    def __iter__(self) -> Iterator[Row | BadRow]:
        """All rows in order."""
        if self.path.is_dir():
            yield from _folder_rows(self.path)
        elif self.path.suffix == ".npz":
            yield from _array_rows(self.path)
        else:
            yield from _line_rows(self.path, self.too_long)


def look(path: Path) -> Inputs:
    """Count the rows of a JSONL file, an ``.npz`` of equally long arrays, or a folder with one input per file.

    Raises:
        InputError: None of these, unreadable, or without rows.
    """
    too_long: dict[int, int] = {}
    if path.is_dir():
        files = _files(path)
        rows, fingerprint = len(files), _folder_fingerprint(files)
    elif path.suffix == ".npz":
        rows, fingerprint = _array_count(_arrays(path), str(path)), sha256_file(path)
    elif path.suffix in (".jsonl", ".ndjson"):
        rows, fingerprint = _line_count(path, too_long)
    else:
        raise InputError(f"{path}: give a .jsonl file, an .npz file, or a folder with one input per file.")
    if rows == 0:
        raise InputError(f"{path}: holds no rows.")
    return Inputs(path, rows, fingerprint, too_long)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read, {reason(error)}.") from error


def _folder_fingerprint(files: list[Path]) -> str:
    """Of names, sizes and times of change; reading every image twice would cost more than it tells."""
    digest = hashlib.sha256()
    for path in files:
        found = path.stat()
        digest.update(f"{path.name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _line_count(path: Path, too_long: dict[int, int]) -> tuple[int, str]:
    """Lines that are not empty, and the hash of all; notes those that are too long."""
    rows, digest = 0, hashlib.sha256()
    try:
        with opened(path) as stream:
            at = 0
            while line := stream.readline(LINE_BYTES_MAX + 1):
                digest.update(line)
                begins, at = at, at + len(line)
                rows += bool(line.strip()) or len(line) > LINE_BYTES_MAX
                if len(line) > LINE_BYTES_MAX:
                    while line and not line.endswith(b"\n"):
                        line = stream.readline(LINE_BYTES_MAX)
                        digest.update(line)
                        at += len(line)
                    too_long[begins] = at
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error
    return rows, digest.hexdigest()


def _lines(stream: BinaryIO, too_long: Mapping[int, int]) -> Iterator[bytes | None]:
    """Lines; ``None`` for one that is too long."""
    at = 0
    while True:
        while at in too_long:
            at = stream.seek(too_long[at])
            yield None
        line = stream.readline(LINE_BYTES_MAX + 1)
        if not line:
            return
        at += len(line)
        yield line


def _line_rows(path: Path, too_long: Mapping[int, int]) -> Iterator[Row | BadRow]:
    number = 0
    with opened(path) as stream:
        for index, line in enumerate(_lines(stream, too_long), 1):
            place = f"line {index}"
            if line is None:
                yield BadRow(number, place, f"longer than {LINE_BYTES_MAX} bytes")
            elif not line.strip():
                continue
            else:
                yield _line_row(number, place, line, path.parent)
            number += 1


def _line_row(number: int, place: str, line: bytes, folder: Path) -> Row | BadRow:
    try:
        said = _line.decode(line)
    except msgspec.ValidationError as error:
        return BadRow(number, place, validation.told(str(error), None, _Line))
    except NOT_JSON as error:
        return BadRow(number, place, f"not valid JSON: {error}")
    if (said.inputs is msgspec.UNSET) == (said.file is None):
        return BadRow(number, place, "give `inputs` (an inference body) or `file` (a file beside this one)")
    if said.inputs is not msgspec.UNSET:
        return Row(number, place, said.id, line.strip(), {"content-type": "application/json"}, raw=False)
    assert said.file is not None
    return _file_row(number, place, said.id, folder, said.file, said.content_type)


def _folder_rows(folder: Path) -> Iterator[Row | BadRow]:
    for number, path in enumerate(_files(folder)):
        yield _file_row(number, path.name, path.name, folder, path.name, None)


def _file_row(
    number: int, place: str, name: str | None, folder: Path, relative: str, content_type: str | None
) -> Row | BadRow:
    """A file as a request: arrays as tensors, anything else as it is."""
    try:
        path = resolved(folder / relative)
        # A job file may come from somebody else: it cannot make this machine send files that lie elsewhere.
        if not path.is_relative_to(resolved(folder)):
            return BadRow(number, place, f"file '{relative[:128]}' is outside the folder of the inputs")
        if path.suffix in TENSOR_SUFFIXES:
            body, headers = infer.encode(place, _file_tensors(path))
            return Row(number, place, name, body, headers, raw=False)
        body = read_bytes(path, max_bytes=FILE_BYTES_MAX)
    except InputError as error:
        return BadRow(number, place, str(error))
    except ValueError as error:  # a NUL in the name
        return BadRow(number, place, f"file '{relative[:128]}': {error}")
    kind = content_type or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if not kind.isascii() or not kind.isprintable():
        return BadRow(number, place, "content_type is not printable ASCII")
    return Row(number, place, name, body, {"content-type": kind}, raw=True)


def _file_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".npz":
        return _arrays(path)
    with _readable(path):
        return {"input": read_npy(path, bytes_max=FILE_BYTES_MAX)}


def _arrays(path: Path) -> dict[str, Tensor]:
    with _readable(path):
        return read_npz(path, unpacked_bytes_max=ARRAYS_BYTES_MAX)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error
    except (ValueError, EOFError, MemoryError) as error:
        raise InputError(f"{path}: not an array file: {error}") from error


def _array_count(arrays: dict[str, Tensor], place: str) -> int:
    if not arrays:
        raise InputError(f"{place}: holds no arrays.")
    for name, array in arrays.items():
        if array.ndim == 0:
            raise InputError(f"{place}: array '{name}' has no rows.")
    counts = {name: array.shape[0] for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"{place}: arrays differ in rows ({', '.join(f'{k} {n}' for k, n in counts.items())}).")
    return int(next(iter(counts.values())))


def _array_rows(path: Path) -> Iterator[Row | BadRow]:
    arrays = _arrays(path)
    for number in range(_array_count(arrays, str(path))):
        place = f"row {number}"
        try:
            body, headers = infer.encode(place, {name: array[number : number + 1] for name, array in arrays.items()})
        except InputError as error:
            yield BadRow(number, place, str(error))
        else:
            yield Row(number, place, None, body, headers, raw=False)
