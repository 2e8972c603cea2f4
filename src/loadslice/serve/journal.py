"""Writes the journal while the server runs: parts every few seconds, the files of `spec.journal` when it closes.

The loop's thread only appends to lists; a thread of our own makes Parquet of them. A server that is killed leaves its
parts and a ``journal.json`` that says it is not clean; at most `FLUSH_S` of rows are lost.
"""

import logging
import queue
import threading
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from loadslice.policy.events import EVENT_COLUMNS as EVENT_WIDTH
from loadslice.serve.request import VERSIONS, Passage, Request
from loadslice.spec import frames, journal
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json, reason, replacing, stamp, write_bytes
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import OUTCOMES, Outcome
from loadslice.spec.pipeline import CLASSES, Pipeline
from loadslice.spec.twin import plain, twins

log = logging.getLogger(__name__)

TOOLS = ("numpy", "numba", "onnxruntime", "openvino", "httptools", "uvloop")
"""Distributions whose versions may matter to what is in a journal."""

FLUSH_S = 5.0
ROWS_MAX = 16_384
"""Rows kept before a part is written early, so that memory stays flat under load."""

WAITING_MAX = 16
"""Parts that may wait for the disk, some 20 MB each; with more, it is slower than what is to be kept."""

AGAIN_S = 1.0
"""Until a part that could not be written is tried again: a full disk is cleared, a file descriptor comes free."""

JOIN_S = 60.0
"""How long a stop waits for the disk."""

LATENCY_FILE = "latency.json"
"""Kept beside the journal where the core was given a latency table: its decisions replay only with it."""

TABLES = {
    "requests": journal.REQUEST_COLUMNS,
    "stages": journal.STAGE_COLUMNS,
    "events": journal.EVENT_COLUMNS,
}


class JournalWriter:
    """One run's journal.

    Args:
        folder: Made if absent.
        pipeline: As it runs.
        latency: The table the core was given.

    Raises:
        InputError: The folder cannot be written.
    """

    def __init__(self, folder: Path, pipeline: Pipeline, latency: LatencyTable | None) -> None:
        self._folder = folder
        self._pipeline = pipeline
        self._engines = list(pipeline.engines)
        self._requests: list[tuple[Any, ...]] = []
        self._stages: list[tuple[Any, ...]] = []
        self._parts = 0
        self._handed = dict.fromkeys(TABLES, 0)
        """Rows given to the writing thread, by table."""
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._error: InputError | None = None
        """Why nothing more is kept."""
        self._trouble: InputError | None = None
        """Why a part waits, while it does."""
        self._is_closing = threading.Event()
        try:
            self._parts_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--journal {folder}: cannot be written, {reason(error)}.") from error
        if latency is not None:
            write_bytes(folder / LATENCY_FILE, encode_json(latency))
        self._write_head(clean=False, requests=0, outcomes={}, span_ns=0, effects_sha256=None)
        self._thread = threading.Thread(target=self._write_parts, name="journal", daemon=True)
        self._thread.start()

    @property
    def _parts_folder(self) -> Path:
        return self._folder / journal.PARTS_FOLDER

    @property
    def is_well(self) -> bool:
        """Whether everything could be written so far."""
        return self._error is None and self._trouble is None

    @property
    def is_full(self) -> bool:
        """Whether a part should be written before its time."""
        return len(self._stages) >= ROWS_MAX or len(self._requests) >= ROWS_MAX

    def add(self, request: Request) -> None:
        """Keep a request that has ended and been replied to, and its passages."""
        parse_ns = request.arrival_ns - request.received_ns
        self._requests.append(
            (
                request.tag,
                request.id,
                request.arrival_ns,
                request.end_ns,
                request.outcome.name.lower(),
                request.reason.name.lower(),
                CLASSES[request.priority],
                request.source,
                request.input,
                request.hint_ns or None,
                parse_ns,
                request.reply_ns,
                request.tenant,
                None if request.version is None else VERSIONS[request.version],
            )
        )
        self._stages.extend(self._stage_row(request.tag, passage) for passage in request.passages)

    def _stage_row(self, tag: int, passage: Passage) -> tuple[Any, ...]:
        stage = self._pipeline.stages[passage.stage]
        return (
            tag,
            stage.name,
            self._engines[passage.engine],
            passage.placed.name.lower(),
            passage.bucket,
            passage.items,
            passage.batch_rows,
            passage.enqueued_ns,
            passage.dispatched_ns,
            passage.started_ns,
            passage.copy_ns,
            passage.compute_ns,
            passage.done_ns,
            stage.buckets[passage.bucket] if passage.bucket < len(stage.buckets) else None,
        )

    def flush(self, events: "array[int]") -> None:
        """Hand everything kept so far to the writing thread.

        Args:
            events: Rows of `policy.events` as one flat array, not changed any more.
        """
        if self._error is None and self._queue.qsize() >= WAITING_MAX:
            text = f"--journal {self._folder}: the disk is slower than what is to be kept; given up."
            self._error = self._trouble or InputError(text)
            log.error("the journal cannot be written any more: %s", self._error)
        if self._error is not None:
            self._requests, self._stages = [], []
        elif self._requests or events:
            self._handed["requests"] += len(self._requests)
            self._handed["stages"] += len(self._stages)
            self._handed["events"] += len(events) // EVENT_WIDTH
            self._queue.put({"requests": self._requests, "stages": self._stages, "events": events})
            self._requests, self._stages = [], []

    def close(self, events: "array[int]", *, outcomes: dict[Outcome, int], span_ns: int, effects_sha256: str) -> None:
        """Write what is left, join the parts and say that the run was closed in order. Blocks.

        Raises:
            InputError: Something could not be written; the parts stay.
        """
        self.flush(events)
        self._queue.put(None)
        self._is_closing.set()
        self._thread.join(JOIN_S)
        if self._error is None and self._thread.is_alive():
            raise InputError(f"--journal {self._folder}: the disk does not take it within {JOIN_S:g} s; not closed.")
        if self._error is not None:
            raise self._error
        requests = sum(outcomes.values())
        if self._handed["requests"] != requests:
            raise InputError(
                f"--journal {self._folder}: {requests} requests ended, {self._handed['requests']} were kept; "
                "not closed."
            )
        try:
            self._join()
        except (OSError, frames.TableError) as error:
            raise self._as_input_error(error) from error
        self._write_head(
            clean=True,
            requests=requests,
            outcomes={name: outcomes.get(Outcome[name.upper()], 0) for name in OUTCOMES},
            span_ns=span_ns,
            effects_sha256=effects_sha256,
        )

    def _join(self) -> None:
        for name, columns in TABLES.items():
            parts = sorted(self._parts_folder.glob(f"{name}-*.parquet"))
            rows = frames.join_parquet(parts, columns, self._folder / f"{name}.parquet")
            if rows != self._handed[name]:
                raise InputError(
                    f"--journal {self._folder}: {self._handed[name]} rows of {name} were written, {rows} are there; "
                    "not closed."
                )
        for part in self._parts_folder.iterdir():
            part.unlink()
        self._parts_folder.rmdir()

    def _as_input_error(self, error: BaseException) -> InputError:
        if isinstance(error, InputError):
            return error
        text = reason(error) if isinstance(error, OSError) else " ".join(str(error).split())
        return InputError(f"--journal {self._folder}: cannot be written, {text}.")

    def _write_head(
        self, *, clean: bool, requests: int, outcomes: dict[str, int], span_ns: int, effects_sha256: str | None
    ) -> None:
        head = journal.JournalHead(
            schema=journal.SCHEMA_VERSION,
            pipeline=self._pipeline.pipeline,
            basis="emulated" if twins(self._pipeline) else "measured",
            requests=requests,
            outcomes=outcomes,
            clean=clean,
            span_ns=span_ns,
            pipeline_yaml=msgspec.yaml.encode(plain(self._pipeline)).decode(),
            effects_sha256=effects_sha256,
            stamp=stamp(journal.SCHEMA_VERSION, tools=TOOLS),
        )
        write_bytes(self._folder / "journal.json", encode_json(head))

    def _write_parts(self) -> None:
        """The writing thread's life. What cannot be mended is kept for `close`; serving goes on."""
        while (rows := self._queue.get()) is not None:
            self._parts += 1
            try:
                while self._error is None and not self._write_part(rows):
                    self._is_closing.wait(AGAIN_S)
            except BaseException as error:
                # Whatever it is: a thread that died silently would leave a journal that looks whole.
                self._error = self._as_input_error(error)
                log.exception("the journal cannot be written any more")

    def _write_part(self, rows: dict[str, Any]) -> bool:
        """Whether it could be written; while the server stops, there is no further attempt."""
        is_last = self._is_closing.is_set()
        try:
            for name, columns in TABLES.items():
                with replacing(self._parts_folder / f"{name}-{self._parts:06d}.parquet") as path:
                    frames.write_parquet(_frame(rows[name], columns), path)
        except InputError as error:
            if self._trouble is None:
                log.error("the journal cannot be written now, and is tried again: %s", error)
            self._trouble = error
            if is_last:
                self._error = error
            return False
        if self._trouble is not None:
            log.warning("the journal can be written again")
            self._trouble = None
        return True


def _frame(rows: "list[tuple[Any, ...]] | array[int]", columns: dict[str, pl.DataType]) -> pl.DataFrame:
    if isinstance(rows, array):
        return pl.DataFrame(np.frombuffer(rows, np.int64).reshape(-1, EVENT_WIDTH), schema=columns)
    return pl.DataFrame(rows, schema=columns, orient="row")
