"""What `loadslice batch` says: a file of inputs, submitted as work that may wait; keys as in the contract."""

from typing import Literal

import msgspec

from loadslice.spec.files import Stamp

SCHEMA = "batch/1"


class FailedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row that gave no result."""

    row: int
    """From 0, in order of the file."""
    place: str
    """Line or file name, for whoever mends it."""
    status: int | None
    """HTTP status of the last answer; ``null``: it was never sent, or nobody answered."""
    error: str


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `loadslice batch`."""

    file: str
    url: str
    rows: int
    """In the file."""
    outcomes: dict[Literal["completed", "failed"], int]
    """Of all rows, those of earlier runs too."""
    resumed_rows: int
    """Finished by an earlier run and not sent again."""
    refusals: int
    """Answers 429 and 503 of this run; each was waited out and its row sent again."""
    attempts: int
    """Requests sent in this run."""
    wall_s: float
    throughput_rows_per_s: float | None
    """Rows that this run finished, over ``wall_s``."""
    concurrency_max: int
    """Most requests that were open at once."""
    complete: bool
    """Every row has a result or an error; false after an interrupt, or when the server stayed away."""
    results: str
    """Where the rows' results are: JSONL, in order of the file; the journal of finished rows while incomplete."""
    failed_rows: list[FailedRow] = []
    """The first hundred; all of them are in the results."""
    stamp: Stamp | None = None
