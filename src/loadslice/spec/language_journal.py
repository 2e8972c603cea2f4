"""The journal of a served language model: what became of each request, and every call into the token desk.

A folder: ``journal.json`` (`LanguageJournalHead`), ``requests``, ``events`` and ``arguments.parquet``. The arguments of
all calls stand one after the other; each event says how many are its own. While a run goes on the tables are in
``parts/``, and a killed run leaves them there. Times are nanoseconds since the run began.
"""

from pathlib import Path
from typing import Literal

import msgspec
import polars as pl

from loadslice.spec import frames
from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json, reason
from loadslice.spec.language import Language, StepCost

LANGUAGE_JOURNAL = "language-journal/1"
PARTS_FOLDER = "parts"

EVENTS = ("arrival", "cancel", "step_done", "handover", "engine_down", "engine_up", "timer", "drain")
"""Calls into the desk, by their code in ``events``."""

TABLES: dict[str, dict[str, pl.DataType]] = {
    "requests": {
        "tag": pl.Int64(),  # the run's own number, in order of arrival at the desk
        "arrival_ns": pl.Int64(),
        "first_ns": pl.Int64(),  # first token; null: there was none
        "end_ns": pl.Int64(),
        "outcome": pl.String(),
        "reason": pl.String(),
        "class": pl.String(),
        "route": pl.String(),  # why its prompt was computed where it was first placed
        "prefill": pl.String(),  # engines of its last placement
        "decode": pl.String(),
        "places": pl.Int64(),
        "prompt_tokens": pl.Int64(),
        "hit_tokens": pl.Int64(),  # of these, found in a prefix cache at its first placement
        "produced_tokens": pl.Int64(),
        "handover_ns": pl.Int64(),  # export and import of its KV, in the engines
    },
    "events": {"kind": pl.Int8(), "now_ns": pl.Int64(), "arguments": pl.Int32()},
    "arguments": {"value": pl.Int64()},
}

WHOLE = {"requests": ("tag",), "events": ("kind", "now_ns", "arguments"), "arguments": ("value",)}
"""Columns in which nothing is unknown."""


class LoweredTables(msgspec.Struct, frozen=True, kw_only=True):
    """`policy.tokens.layout.Tables` as they were decided with."""

    run: list[int]
    engines: list[list[int]]
    links: list[list[list[int]]]


class LanguageJournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """``journal.json``."""

    schema: str
    language: str
    basis: Literal["measured"]
    requests: int
    outcomes: dict[str, int]
    clean: bool
    """Whether the run was closed in order; a journal of a killed run says false."""
    span_ns: int
    file: Language
    """The language file as it was served."""
    costs: dict[str, StepCost]
    """Of the engines' steps, measured or given."""
    beside: dict[str, dict[str, float]] = {}
    """``[first][second]``: by which share a step of the first was taken to be longer while the second computes."""
    tables: LoweredTables
    counters: list[int] = []
    """Of the desk when the run was closed."""
    effects_sha256: str | None = None
    """Hash of all decisions in order; taking them again gives the same."""
    stamp: Stamp | None = None


class LanguageJournal(msgspec.Struct, frozen=True, kw_only=True):
    """A journal read back."""

    head: LanguageJournalHead
    requests: pl.DataFrame
    events: pl.DataFrame
    arguments: pl.DataFrame


class _Schema(msgspec.Struct):
    schema: str


def is_language_journal(folder: Path) -> bool:
    """Whether a journal is one of a language model.

    Raises:
        InputError: There is no journal.
    """
    return decode_json(folder / "journal.json", _Schema).schema.startswith("language-journal/")


def load_language_journal(folder: Path) -> LanguageJournal:
    """Read a journal.

    Raises:
        InputError: Not a journal of a language model, of another schema version, or its tables are not as they should.
    """
    head = decode_json(folder / "journal.json", LanguageJournalHead)
    if head.schema != LANGUAGE_JOURNAL:
        raise InputError(f"{folder}: journal schema '{head.schema}' is not '{LANGUAGE_JOURNAL}'.")
    return LanguageJournal(head=head, **{name: _table(folder, name, head.clean) for name in TABLES})


def _table(folder: Path, name: str, clean: bool) -> pl.DataFrame:
    files = [folder / f"{name}.parquet"] if clean else sorted((folder / PARTS_FOLDER).glob(f"{name}-*.parquet"))
    columns = TABLES[name]
    if not files:
        return pl.DataFrame(schema=columns)
    try:
        table = frames.read_parquet(files)
    except OSError as error:
        raise InputError(f"{folder}: {name}.parquet cannot be read, {reason(error)}.") from error
    except frames.TableError as error:
        raise InputError(f"{folder}: {name}.parquet: {error}") from error
    if dict(table.schema) != columns:
        raise InputError(f"{folder}: {name}.parquet has not the columns {', '.join(columns)} in their types.")
    missing = sum(table[column].null_count() for column in WHOLE.get(name, ()))
    if missing:
        raise InputError(f"{folder}: {name}.parquet lacks {missing} values of {', '.join(WHOLE[name])}.")
    return table
