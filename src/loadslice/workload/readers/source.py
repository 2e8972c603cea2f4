"""Text files of any size in bounded memory: whole lines, plain or gzip, UTF-8 or refused with the line."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from loadslice.spec.errors import InputError
from loadslice.spec.files import opened, reason

LINE_BYTES_MAX = 1 << 20
"""No access log or table comes near it; a longer line is refused before it fills memory."""
BLOCK_BYTES = 8 << 20

_UTF8_BOM = b"\xef\xbb\xbf"
_REFUSED_MAGIC = {
    b"\xff\xfe": "UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16 text; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\x28\xb5\x2f\xfd": "zstd-compressed; unpack it with `zstd -d`",
    b"BZh": "bzip2-compressed; unpack it with `bunzip2`",
    b"\xfd7zXZ\x00": "xz-compressed; unpack it with `unxz`",
    b"PK\x03\x04": "a zip archive; unpack it",
}


@dataclass(frozen=True)
class Block:
    """Some whole lines."""

    data: bytes
    """UTF-8; ends with a newline."""
    first_line: int
    """Number of the first line, counted from 1."""

    def line_at(self, offset: int) -> int:
        """Number of the line that holds a byte offset."""
        return self.first_line + self.data.count(b"\n", 0, offset)

    def lines(self) -> list[str]:
        """The lines without their ends."""
        return [line.rstrip("\r") for line in self.data.decode(errors="replace").split("\n")[:-1]]


def head(path: Path, size: int = 1 << 16) -> bytes:
    """First bytes of a file, unpacked.

    Raises:
        InputError: Not readable, or a kind of file that is known and not text.
    """
    with _opened(path) as stream:
        start = stream.read(size)
    _refuse_magic(path, start)
    return start


def blocks(
    path: Path, *, quoted: bool = False, line_bytes_max: int = LINE_BYTES_MAX, lenient: bool = False
) -> Iterator[Block]:
    """Read a text file as blocks of whole lines.

    Args:
        path: Plain or gzip.
        quoted: A newline between double quotes does not end a record (CSV).
        line_bytes_max: Longest line (or quoted record) accepted.
        lenient: Lines that are no text are the caller's to refuse.

    Raises:
        InputError: Not readable, truncated gzip, not UTF-8 text, or a line too long.
    """
    line = 1
    carry = b""
    with _opened(path) as stream:
        while chunk := stream.read(BLOCK_BYTES):
            if line == 1 and not carry:
                _refuse_magic(path, chunk)
                chunk = chunk.removeprefix(_UTF8_BOM)
            data = carry + chunk
            end = _last_record_end(data, quoted=quoted)
            carry = data[end:]
            block = Block(data[:end], line)
            line += block.data.count(b"\n")
            _refuse_long(path, block, line_bytes_max)
            if len(carry) > line_bytes_max:
                quote = " (or a quote that is never closed)" if quoted else ""
                raise InputError(f"{path}: line {line} is longer than {line_bytes_max} bytes{quote}.")
            if block.data:
                if not lenient:
                    _refuse_not_text(path, block)
                yield block
    if carry:
        block = Block(carry + b"\n", line)
        if not lenient:
            _refuse_not_text(path, block)
        yield block


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.is_dir():
        raise InputError(f"{path}: a folder, not a trace file.")
    try:
        with opened(path) as plain:
            if plain.read(2) == b"\x1f\x8b":
                plain.seek(0)
                with gzip.open(plain) as unpacked:
                    yield cast(BinaryIO, unpacked)
            else:
                plain.seek(0)
                yield plain
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: gzip data is damaged or cut off ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error


def _last_record_end(data: bytes, *, quoted: bool) -> int:
    end = data.rfind(b"\n") + 1
    while quoted and end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end


def _refuse_magic(path: Path, start: bytes) -> None:
    for magic, what in _REFUSED_MAGIC.items():
        if start.startswith(magic):
            raise InputError(f"{path}: {what} first.")


def _refuse_long(path: Path, block: Block, line_bytes_max: int) -> None:
    if len(block.data) <= line_bytes_max:
        return
    ends = np.flatnonzero(np.frombuffer(block.data, np.uint8) == ord("\n"))
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > line_bytes_max:
        number = block.first_line + int(lengths.argmax())
        raise InputError(f"{path}: line {number} is longer than {line_bytes_max} bytes.")


def _refuse_not_text(path: Path, block: Block) -> None:
    zero = block.data.find(b"\0")
    if zero >= 0:
        raise InputError(
            f"{path}: line {block.line_at(zero)} holds binary data, not text. Of an access log, "
            "--format nginx|envoy --skip-bad N leaves out up to N such lines."
        )
    try:
        block.data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: line {block.line_at(error.start)} is not UTF-8 (byte 0x{block.data[error.start]:02x}); "
            "if it is Latin-1, convert it with `iconv -f LATIN1 -t UTF-8`."
        ) from error
