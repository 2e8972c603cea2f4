"""Writes the journal of a language model while it is served: parts every few seconds, whole tables when it closes.

The loop's thread only appends; a thread of our own makes Parquet of it. What is kept in memory is bounded by
`EVENTS_MAX`; a server that is killed leaves its parts and a head that says it is not clean.
"""

import hashlib
import logging
import queue
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables
from loadslice.serve.language.request import LanguageRequest
from loadslice.spec import frames
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json, reason, replacing, stamp, write_bytes
from loadslice.spec.language import Language, StepCost
from loadslice.spec.language_journal import (
    EVENTS,
    LANGUAGE_JOURNAL,
    PARTS_FOLDER,
    TABLES,
    LanguageJournalHead,
    LoweredTables,
)
from loadslice.spec.outcome import OUTCOMES, REASONS
from loadslice.spec.pipeline import CLASSES
from loadslice.spec.route import ROUTES

log = logging.getLogger(__name__)

FLUSH_S = 5.0
EVENTS_MAX = 16_384
"""Events kept before a part is written early, so that memory stays flat under load."""

TOOLS = ("numpy", "numba", "onnxruntime", "openvino", "openvino-genai")

_CODES = {name: code for code, name in enumerate(EVENTS)}


def refuse_used(folder: Path) -> None:
    """Refuse a folder that holds a journal.

    Raises:
        InputError: It does.
    """
    if (folder / "journal.json").exists():
        raise InputError(f"--journal {folder}: holds a journal already. Name a new folder.")


class LanguageJournalWriter:
    """One run's journal.

    Args:
        folder: Made if absent.
        language: As served.
        costs: Of the engines' steps.
        beside: What company is taken to cost them.
        tables: That is decided with.
        state: Its effects are hashed after each event.

    Raises:
        InputError: The folder cannot be written, or holds a journal.
    """

    def __init__(
        self,
        folder: Path,
        language: Language,
        costs: dict[str, StepCost],
        beside: dict[str, dict[str, float]],
        tables: Tables,
        state: State,
    ) -> None:
        self._folder, self._language, self._costs, self._beside = folder, language, costs, beside
        self._tables, self._state = tables, state
        self._engines = list(language.engines)
        self._requests: list[tuple[Any, ...]] = []
        self._codes, self._times, self._counts, self._values = array("b"), array("q"), array("i"), array("q")
        self._digest = hashlib.sha256()
        self._has_effects = False
        self._last_ns = 0
        self._ended = 0
        self._parts = 0
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._error: InputError | None = None
        refuse_used(folder)
        try:
            (folder / PARTS_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._as_input_error(error) from error
        self._write_head(clean=False)
        self._thread = threading.Thread(target=self._write_parts, name="journal", daemon=True)
        self._thread.start()

    def event(self, kind: str, now_ns: int, arguments: tuple[int, ...]) -> None:
        """A call into the desk that is about to be made."""
        self._hash_effects()
        self._has_effects = True
        self._codes.append(_CODES[kind])
        self._times.append(now_ns)
        self._counts.append(len(arguments))
        self._values.extend(arguments)
        self._last_ns = now_ns
        if len(self._codes) >= EVENTS_MAX:
            self.flush()

    def ended(self, request: LanguageRequest) -> None:
        """A request has its outcome."""
        self._ended += 1
        has_place = request.places > 0
        self._requests.append(
            (
                request.tag,
                request.arrival_ns,
                request.first_ns or None,
                request.end_ns,
                OUTCOMES[request.outcome - 1],
                REASONS[request.reason],
                CLASSES[request.priority],
                ROUTES[request.route] if has_place else None,
                self._engines[request.prefill] if has_place else None,
                self._engines[request.decode] if has_place else None,
                request.places,
                len(request.prompt),
                request.hit,
                len(request.produced),
                request.handover_ns,
            )
        )

    def flush(self) -> None:
        """Hand everything kept so far to the writing thread."""
        if not self._codes and not self._requests:
            return
        self._queue.put(
            {
                "requests": self._requests,
                "events": (self._codes, self._times, self._counts),
                "arguments": self._values,
            }
        )
        self._requests = []
        self._codes, self._times, self._counts, self._values = array("b"), array("q"), array("i"), array("q")

    def close(self) -> None:
        """Write what is left, join the parts and say that the run was closed in order. Blocks.

        Raises:
            InputError: Something could not be written; the parts stay.
        """
        self._hash_effects()
        self._has_effects = False
        self.flush()
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        try:
            for name, columns in TABLES.items():
                parts = sorted((self._folder / PARTS_FOLDER).glob(f"{name}-*.parquet"))
                frames.join_parquet(parts, columns, self._folder / f"{name}.parquet")
            self._write_head(clean=True)
            for part in (self._folder / PARTS_FOLDER).iterdir():
                part.unlink()
            (self._folder / PARTS_FOLDER).rmdir()
        except (OSError, frames.TableError) as error:
            raise self._as_input_error(error) from error

    def _hash_effects(self) -> None:
        """Of the event before: they stand until the desk is called again."""
        if self._has_effects:
            self._digest.update(self._state.effects[: int(self._state.counters[c.C_EFFECTS])].tobytes())

    def _write_parts(self) -> None:
        while (kept := self._queue.get()) is not None:
            if self._error is not None:
                continue  # said when the run is closed
            try:
                self._write_part(kept)
            except InputError as error:
                self._error = error
                log.error("the journal cannot be written any more: %s", error)
            except BaseException as error:
                # Whatever it is: a thread that died silently would leave a journal that looks whole.
                self._error = self._as_input_error(error)
                log.exception("the journal cannot be written any more")

    def _write_part(self, kept: dict[str, Any]) -> None:
        codes, times, counts = kept["events"]
        tables = {
            "requests": pl.DataFrame(kept["requests"], schema=TABLES["requests"], orient="row"),
            "events": pl.DataFrame(
                {
                    "kind": np.frombuffer(codes, np.int8),
                    "now_ns": np.frombuffer(times, np.int64),
                    "arguments": np.frombuffer(counts, np.int32),
                },
                schema=TABLES["events"],
            ),
            "arguments": pl.DataFrame(
                {"value": np.frombuffer(kept["arguments"], np.int64)}, schema=TABLES["arguments"]
            ),
        }
        for name, table in tables.items():
            with replacing(self._folder / PARTS_FOLDER / f"{name}-{self._parts:06}.parquet") as path:
                frames.write_parquet(table, path)
        self._parts += 1

    def _write_head(self, *, clean: bool) -> None:
        counts = self._state.counters[c.C_OUTCOMES :].tolist()
        head = LanguageJournalHead(
            schema=LANGUAGE_JOURNAL,
            language=self._language.language,
            basis="measured",
            requests=self._ended,
            outcomes={name: int(counts[code + 1]) for code, name in enumerate(OUTCOMES)},
            clean=clean,
            span_ns=self._last_ns,
            file=self._language,
            costs=self._costs,
            beside=self._beside,
            tables=LoweredTables(
                run=self._tables.run.tolist(),
                engines=self._tables.engines.tolist(),
                links=self._tables.links.tolist(),
            ),
            counters=self._state.counters.tolist() if clean else [],
            effects_sha256=self._digest.hexdigest() if clean else None,
            stamp=stamp(LANGUAGE_JOURNAL, tools=TOOLS),
        )
        write_bytes(self._folder / "journal.json", encode_json(head))

    def _as_input_error(self, error: BaseException) -> InputError:
        if isinstance(error, InputError):
            return error
        text = reason(error) if isinstance(error, OSError) else " ".join(str(error).split())[:160]
        return InputError(f"--journal {self._folder}: cannot be written, {text}.")
