"""JSONL decoded block by block into typed rows, with the line of a fault."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from loadslice.spec import validation
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON
from loadslice.workload.readers import source

T = TypeVar("T")


@dataclass
class Bad:
    """Lines of another form (cut off, a traceback between them) that are left out.

    Attributes:
        limit: How many, before one is refused.
        count: How many were.
        first: The first of them, with its number.
    """

    limit: int
    count: int = 0
    first: str = ""

    @property
    def notes(self) -> list[str]:
        """What to know of it."""
        return [f"{self.count} lines are not JSON and were left out, the first {self.first}"] if self.count else []


def rows(
    path: Path, kind: type[T], *, line_bytes_max: int = source.LINE_BYTES_MAX, bad: Bad | None = None
) -> Iterator[tuple[Sequence[int], list[T]]]:
    """Decode a JSONL file.

    Args:
        path: The file.
        kind: Of a row.
        line_bytes_max: Longest line accepted.
        bad: Lines that may be left out; ``None``: none, and that is not offered either.

    Yields:
        The rows of one block and the number of each one's line; blank lines have no row.

    Raises:
        InputError: Not JSON, or not of this type, with the line.
    """
    decoder = msgspec.json.Decoder(kind)
    for block in source.blocks(path, line_bytes_max=line_bytes_max, lenient=bad is not None and bad.limit > 0):
        try:
            found = decoder.decode_lines(block.data)
        except NOT_JSON as error:
            if bad is None:
                raise InputError(f"{path}: {fault(block, decoder, error)}.") from error
            yield _without(path, block, decoder, bad)
        else:
            numbers: Sequence[int] = range(block.first_line, block.first_line + len(found))
            if len(found) < block.data.count(b"\n"):
                numbers = [number for number, _ in _lines(block)]
            yield numbers, found


def _lines(block: source.Block) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers."""
    for number, line in enumerate(block.data.split(b"\n"), block.first_line):
        if line.strip():
            yield number, line


def _without(
    path: Path, block: source.Block, decoder: "msgspec.json.Decoder[T]", bad: Bad
) -> tuple[list[int], list[T]]:
    """Decode a block line by line, without those that do not decode."""
    numbers, found = list[int](), list[T]()
    for number, line in _lines(block):
        try:
            found.append(decoder.decode(line))
        except NOT_JSON as error:
            bad.count += 1
            bad.first = bad.first or f"line {number}: '{line[:80].decode(errors='replace')}'"
            if bad.count > bad.limit:
                said = fault(source.Block(line, number), decoder, error)
                raise InputError(f"{path}: {said}. Leave out up to N such lines with --skip-bad N.") from error
        else:
            numbers.append(number)
    return numbers, found


def fault(block: source.Block, decoder: "msgspec.json.Decoder[T]", error: Exception) -> str:
    """Find the first line of a block that does not decode and say why."""
    for number, line in _lines(block):
        try:
            decoder.decode(line)
        except msgspec.ValidationError as found:
            known = None
            with contextlib.suppress(*NOT_JSON):  # what follows the fault may be no JSON at all
                known = msgspec.json.decode(line)
            return f"line {number}: {validation.told(str(found), known, cast(Any, decoder.type))}"
        except NOT_JSON as found:
            return f"line {number}: not valid JSON ({found})"
    return f"not valid JSONL ({error})"
