"""What a server remembers over a restart: one SQLite file, written by a thread of its own."""

import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loadslice.serve.access import Usage
from loadslice.spec.errors import InputError

SCHEMA = """
create table if not exists kept (name text primary key, value blob not null);
create table if not exists history (at text not null, event text not null, detail text not null);
create table if not exists usage (
    token text primary key, day integer, used_today integer, month integer, used_this_month integer
);
"""
HISTORY_MAX = 1000
"""Rows of the history that are kept."""
BUSY_S = 5.0


class StateFile:
    """Named values, a history, and what tokens have used. The file is made when something is first written.

    Args:
        path: In a folder that may be absent.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._file: sqlite3.Connection | None = None

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = sqlite3.connect(self._path, timeout=BUSY_S)
            try:
                file.executescript(f"pragma journal_mode = wal; pragma synchronous = full; {SCHEMA}")
            except BaseException:
                file.close()  # the next attempt begins anew: what was in the way may be gone
                raise
            self._file = file
        return self._file

    def _ask(self, question: str, *values: str) -> list[Any]:
        """Rows of a question; none where there is no file. Blocks.

        Raises:
            InputError: The file is no file of ours, or cannot be read.
        """

        def ask() -> list[Any]:
            return self._opened().execute(question, values).fetchall() if self._path.exists() else []

        try:
            return self._thread.submit(ask).result()
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"--state {self._path}: cannot be used, {error}. Remove it to begin anew.") from error

    def read(self, name: str) -> bytes | None:
        """One value; blocks.

        Raises:
            InputError: The file cannot be read.
        """
        rows = self._ask("select value from kept where name = ?", name)
        return bytes(rows[0][0]) if rows else None

    def write(self, name: str, value: bytes, at: str = "", event: str = "", detail: str = "") -> "Future[None]":
        """Write one value, and with it one row of the history, if there is an event; both or neither.

        Args:
            name: Of the value.
            value: Replaces what was there.
            at: When, as text.
            event: What has happened; empty: nothing worth a row.
            detail: More about it.

        Returns:
            Done once it is on the disk; fails with `sqlite3.Error` or OSError.
        """
        return self._thread.submit(self._write, name, value, at, event, detail)

    def _write(self, name: str, value: bytes, at: str, event: str, detail: str) -> None:
        with self._opened() as file:
            file.execute("insert or replace into kept values (?, ?)", (name, value))
            if event:
                file.execute("insert into history values (?, ?, ?)", (at, event, detail))
                file.execute("delete from history where rowid <= (select max(rowid) from history) - ?", (HISTORY_MAX,))

    def history(self) -> list[tuple[str, str, str]]:
        """All rows of the history, oldest first; blocks.

        Raises:
            InputError: The file cannot be read.
        """
        return self._ask("select at, event, detail from history order by rowid")

    def write_usage(self, usages: list[Usage]) -> "Future[None]":
        """Keep what tokens have used."""
        return self._thread.submit(self._write_usage, usages)

    def _write_usage(self, usages: list[Usage]) -> None:
        with self._opened() as file:
            file.execute("delete from usage")
            file.executemany("insert into usage values (?, ?, ?, ?, ?)", usages)

    def usage(self) -> list[Usage]:
        """What tokens had used; blocks.

        Raises:
            InputError: The file cannot be read.
        """
        return [Usage(*row) for row in self._ask("select * from usage")]

    def close(self) -> None:
        """Write what is left and close; blocks."""
        self._thread.submit(lambda: None if self._file is None else self._file.close()).result()
        self._thread.shutdown()
