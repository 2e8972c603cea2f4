"""JSONL decoded block by block into typed rows, with the line of a fault."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON
from loadslice.workload.readers import source

T = TypeVar("T")


def rows(path: Path, kind: type[T], *, line_bytes_max: int = source.LINE_BYTES_MAX) -> Iterator[tuple[int, list[T]]]:
    """Decode a JSONL file.

    Yields:
        Line number of the first row and the rows of one block; blank lines have no row.

    Raises:
        InputError: Not JSON, or not of this type, with the line.
    """
    decoder = msgspec.json.Decoder(kind)
    for block in source.blocks(path, line_bytes_max=line_bytes_max):
        try:
            yield block.first_line, decoder.decode_lines(block.data)
        except NOT_JSON as error:
            raise InputError(f"{path}: {fault(block, decoder, error)}.") from error


def fault(block: source.Block, decoder: "msgspec.json.Decoder[T]", error: Exception) -> str:
    """Find the first line of a block that does not decode and say why."""
    for number, line in enumerate(block.data.split(b"\n"), block.first_line):
        if not line.strip():
            continue
        try:
            decoder.decode(line)
        except msgspec.ValidationError as found:
            message, _, place = str(found).partition(" - at `$.")
            return f"line {number}: {place.rstrip('`')}: {message}" if place else f"line {number}: {message}"
        except NOT_JSON as found:
            return f"line {number}: not valid JSON ({found})"
    return f"not valid JSONL ({error})"
