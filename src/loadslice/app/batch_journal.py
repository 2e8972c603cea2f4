"""The journal of finished rows: one line each, written as soon as it is known, which becomes the results.

``NAME.results.jsonl.part`` opens with a line that says which inputs it belongs to. A run that is killed leaves it; the
next run cuts off what was half-written, and sends only the rows that are not in it. A row may thus be computed twice
(it was answered, and the answer not yet kept), never lost. When every row is there, the lines are put in the order of
the file under the results' own name.
"""

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from loadslice.app.batch_rows import Inputs
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON, reason, replacing

try:
    import fcntl
except ImportError:  # only keeps two runs apart, where the system can
    fcntl = None  # type: ignore[assignment]


class Result(msgspec.Struct, omit_defaults=True):
    """One line: what came of a row."""

    row: int
    place: str
    id: str | None = None
    outcome: str = ""
    """``completed`` or ``failed``."""
    status: int | None = None
    error: str | None = None
    engine: str | None = None
    attempts: int = 0
    outputs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """As the server gave them."""
    reply: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """A whole reply that has no ``outputs``."""


class _Kept(msgspec.Struct):
    """The part of a line that counts when a run goes on."""

    row: int
    outcome: str
    place: str = ""
    status: int | None = None
    error: str | None = None


class _Head(msgspec.Struct, tag="batch/1"):
    fingerprint: str
    rows: int


FAILED_KEPT = 100


class Journal:
    """Rows that are finished; a context manager that holds the file.

    Args:
        results: Where the results will be.
        inputs: What they are results of.

    Raises:
        InputError: The results are there already, the file belongs to other inputs, another run has it, or it cannot be
            written.
    """

    def __init__(self, results: Path, inputs: Inputs) -> None:
        self.path = results.with_name(f"{results.name}.part")
        self.outcomes = {"completed": 0, "failed": 0}
        self.failed: list[_Kept] = []
        """The first of them."""
        self._results = results
        self._inputs = inputs
        self._places: dict[int, tuple[int, int]] = {}
        self._end = 0
        if results.exists():
            raise InputError(f"{results}: is there already. Move it away, or choose another folder with --out.")
        try:
            results.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written, {reason(error)}.") from error
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise
        self.resumed = len(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()

    def __contains__(self, row: int) -> bool:
        return row in self._places

    @property
    def is_complete(self) -> bool:
        """Whether every row has its line."""
        return len(self._places) == self._inputs.rows

    def add(self, result: Result) -> None:
        """Keep one row's result.

        Raises:
            InputError: It cannot be written.
        """
        assert result.row not in self._places, f"row {result.row} ended twice"
        self._write(msgspec.json.encode(result) + b"\n", result.row)
        self._count(_Kept(result.row, result.outcome, result.place, result.status, result.error))

    def finish(self) -> None:
        """Put the results in order under their own name, and remove the journal.

        Raises:
            InputError: They cannot be written; the journal stays.
        """
        assert self.is_complete
        with replacing(self._results) as path, path.open("wb") as out:
            for row in sorted(self._places):
                offset, size = self._places[row]
                self._file.seek(offset)
                out.write(self._file.read(size))
        self.path.unlink()

    def _open(self) -> None:
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{self.path}: another run is writing it. Wait for that one.") from error
        self._file.seek(0)
        head = self._file.read(4096).partition(b"\n")
        own = msgspec.json.encode(_Head(self._inputs.fingerprint, self._inputs.rows)) + b"\n"
        if not head[1] and own.startswith(head[0]):  # empty, or killed within its first line
            self._file.truncate(0)
            self._write(own, None)
            return
        try:
            said = msgspec.json.decode(head[0], type=_Head)
        except NOT_JSON as error:
            raise InputError(f"{self.path}: is not a journal of `loadslice batch`. Move it away.") from error
        if (said.fingerprint, said.rows) != (self._inputs.fingerprint, self._inputs.rows):
            raise InputError(
                f"{self.path}: belongs to other inputs, or they changed since. Move it away to begin anew."
            )
        self._end = len(head[0]) + 1
        self._read()

    def _read(self) -> None:
        """Find the lines of earlier runs; what follows the last whole one is cut off."""
        self._file.seek(self._end)
        with os.fdopen(os.dup(self._file.fileno()), "rb") as stream:
            for line in stream:
                try:
                    kept = msgspec.json.decode(line, type=_Kept) if line.endswith(b"\n") else None
                except NOT_JSON:
                    kept = None
                if kept is None or kept.outcome not in self.outcomes:
                    break
                if not 0 <= kept.row < self._inputs.rows or kept.row in self._places:
                    raise InputError(f"{self.path}: row {kept.row} stands twice or is none of this file. Move it away.")
                self._places[kept.row] = (self._end, len(line))
                self._end += len(line)
                self._count(kept)
        self._file.truncate(self._end)

    def _count(self, kept: _Kept) -> None:
        self.outcomes[kept.outcome] += 1
        if kept.outcome == "failed" and len(self.failed) < FAILED_KEPT:
            self.failed.append(kept)

    def _write(self, line: bytes, row: int | None) -> None:
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written, {reason(error)}. Mend that and run the command again."
            ) from error
        if row is not None:
            self._places[row] = (self._end, len(line))
        self._end += len(line)


def outputs_of(body: bytes) -> dict[str, Any]:
    """The part of a reply that is kept: its outputs, or all of it.

    Raises:
        ValueError: Not JSON.
    """
    try:
        whole = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return {"reply": msgspec.Raw(body)}
    except NOT_JSON as error:
        raise ValueError("the reply is not JSON") from error
    return {"outputs": whole["outputs"]} if "outputs" in whole else {"reply": msgspec.Raw(body)}
