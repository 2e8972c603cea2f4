"""The journal: what happened to each request, at each stage, and every call into the policy core.

A journal is a folder: ``journal.json`` (`JournalHead`), ``requests``, ``stages`` and ``events.parquet``.
Live and simulated runs write the same columns; what a simulation cannot know (copy and compute apart) is null there.
While a live run goes on, the tables are in ``parts/``; a killed run leaves them there, and `load` reads them.
Times are nanoseconds since the run began, on a clock that never goes back.
"""

from collections.abc import Container
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl

from loadslice.spec import frames
from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json, decode_yaml_text, reason
from loadslice.spec.pipeline import Pipeline, check

SCHEMA_VERSION = "journal/2"

PARTS_FOLDER = "parts"

REQUEST_COLUMNS: dict[str, pl.DataType] = {
    "tag": pl.Int64(),  # the run's own number for the request, in order of arrival at the core
    "id": pl.String(),  # the client's id or trace id, if it gave one
    "arrival_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "outcome": pl.String(),  # one of spec.outcome.OUTCOMES
    "reason": pl.String(),  # one of spec.outcome.REASONS
    "class": pl.String(),
    "source": pl.String(),
    "input": pl.String(),  # name of the example input it stands for, if known
    "hint_ns": pl.Int64(),  # Retry-After of a refusal
    "parse_ns": pl.Int64(),  # front: from the first byte to the core
    "reply_ns": pl.Int64(),  # front: from the outcome to the last byte handed to the socket
    "tenant": pl.String(),  # as the client named it; null: it did not
    "version": pl.String(),  # stable or canary; null: the pipeline has no canary, or it was refused before it had one
}

LATER_COLUMNS = ("tenant", "version")
"""May be missing in a journal of this schema version, and are null there."""

STAGE_COLUMNS: dict[str, pl.DataType] = {
    "tag": pl.Int64(),
    "stage": pl.String(),
    "engine": pl.String(),
    "placed": pl.String(),  # why there: preferred or failover
    "bucket": pl.Int32(),
    "items": pl.Int32(),  # rows of this request
    "batch_rows": pl.Int32(),  # rows of the whole batch
    "enqueued_ns": pl.Int64(),
    "dispatched_ns": pl.Int64(),  # the core said DISPATCH
    "started_ns": pl.Int64(),  # a worker took it up
    "copy_ns": pl.Int64(),  # gathering rows into the batch and scattering results
    "compute_ns": pl.Int64(),  # inside the runtime
    "done_ns": pl.Int64(),  # the core heard of the end
    "shape": pl.List(pl.Int32()),  # bucket shape; null without buckets
}

EVENT_COLUMNS: dict[str, pl.DataType] = {
    "kind": pl.Int64(),  # policy.events.EVENT_NAMES
    "now_ns": pl.Int64(),
    **{f"a{number}": pl.Int64() for number in range(11)},
}


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """``journal.json``."""

    schema: str
    pipeline: str
    basis: Literal["measured", "simulated", "emulated"]
    requests: int
    outcomes: dict[str, int]
    clean: bool
    """Whether the run was closed in order; a journal of a killed run says false."""
    span_ns: int
    pipeline_yaml: str
    """The pipeline file as it was run."""
    effects_sha256: str | None = None
    """Hash of all decisions in order; replaying the events gives the same."""
    stamp: Stamp | None = None


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """A journal read back."""

    head: JournalHead
    requests: pl.DataFrame
    stages: pl.DataFrame
    events: pl.DataFrame


def load(folder: Path) -> Journal:
    """Read a journal folder.

    Raises:
        InputError: Not a journal, of another schema version, or with columns missing or of another type.
    """
    head = load_head(folder)
    if head.schema != SCHEMA_VERSION:
        raise InputError(
            f"{folder}: journal schema '{head.schema}' is not '{SCHEMA_VERSION}'. "
            f"Write it anew with `loadslice check {folder} --convert NEW_FOLDER`."
        )
    return load_tables(head, folder)


def load_head(folder: Path) -> JournalHead:
    """Read ``journal.json``, of whatever schema version.

    Raises:
        InputError: Not a journal.
    """
    return decode_json(folder / "journal.json", JournalHead)


def load_tables(head: JournalHead, folder: Path, without: Container[str] = ()) -> Journal:
    """Read the tables of a journal, a killed run's from its parts.

    Args:
        head: Of the same folder.
        folder: Where it stands.
        without: Columns that its schema version may lack.

    Raises:
        InputError: Unreadable, or with columns missing or of another type.
    """
    tables = {}
    for name, columns in (("requests", REQUEST_COLUMNS), ("stages", STAGE_COLUMNS), ("events", EVENT_COLUMNS)):
        path = folder / f"{name}.parquet"
        parts = folder / PARTS_FOLDER
        if parts.is_dir() and not path.exists():
            paths = sorted(parts.glob(f"{name}-*.parquet"))
            tables[name] = _read(paths, f"{parts}/{name}-*.parquet") if paths else pl.DataFrame(schema=columns)
        else:
            tables[name] = _read([path], str(path))
        later = [column for column in columns if column in LATER_COLUMNS and column not in tables[name].columns]
        tables[name] = tables[name].with_columns(pl.lit(None, columns[column]).alias(column) for column in later)
        missing = [column for column in columns if column not in tables[name].columns and column not in without]
        if missing:
            raise InputError(f"{path}: column '{missing[0]}' is missing.")
        for column, found in tables[name].schema.items():
            if column in columns and found != columns[column]:
                raise InputError(
                    f"{path}: column '{column}' holds {found}, not {columns[column]}. A journal is checked as it was "
                    "written: take the file from the folder of its run."
                )
    return Journal(head=head, **tables)


def pipeline_of(journal: Journal, folder: Path) -> Pipeline:
    """The pipeline that ran.

    Raises:
        InputError: Its text is none.
    """
    place = f"{folder}/journal.json: pipeline_yaml"
    return check(decode_yaml_text(journal.head.pipeline_yaml, place, Pipeline), place)


def _read(paths: list[Path], place: str) -> pl.DataFrame:
    try:
        return frames.read_parquet(paths)
    except OSError as error:
        raise InputError(f"{place}: cannot be read, {reason(error)}.") from error
    except frames.TableError as error:
        raise InputError(f"{place}: {error}") from error
