"""Logs as JSON lines, and the story of requests that did not complete or were slow.

A story is one line: what the request was, what became of it and why, and what each stage took of it. Under overload
there would be thousands a second, so their number is bounded; how many were left out is told with the next one.
"""

import json
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from loadslice.serve.request import VERSIONS, Passage, Request
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import CLASSES, Pipeline

NS_PER_MS = 1_000_000
STORIES_PER_S = 20.0
STORIES_AT_ONCE = 100.0
LINES_PER_S = 5.0
LINES_AT_ONCE = 50.0
"""Of other lines, by kind."""
STDERR = 2
KINDS_MAX = 1024
KIND_LENGTH = 200

log = logging.getLogger("loadslice.request")


class Witness(Protocol):
    """Is told of each request that has ended and been replied to."""

    def ended(self, pipeline: Pipeline, request: Request, now_ns: int) -> None:
        """A request has ended.

        Args:
            pipeline: That served it.
            request: With its passages.
            now_ns: On the server's clock, as all its times.
        """


class JsonLines(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """Time (UTC), level, logger, message; what was given as ``extra={"story": ..}``; an exception's text."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line: dict[str, Any] = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        story = getattr(record, "story", None)
        if story is not None:
            line["request"] = story
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return "".join(_as_json(part) for part in _parts(json.dumps(line, ensure_ascii=False, default=str)))


def _parts(text: str) -> Iterable[str]:
    """A text as a whole where all of it can be printed, otherwise its characters: a client may have chosen them."""
    return (text,) if text.isprintable() else text


def _as_json(part: str) -> str:
    return part if part.isprintable() else json.dumps(part)[1:-1]


def _as_text(part: str) -> str:
    return part if part.isprintable() else part.encode("unicode_escape").decode()


class Lines(logging.Formatter):
    """One line for each record, with its time (UTC); an exception's lines are behind it, each with a margin.

    What a client sends is quoted in lines: with a line's end in it, it would write lines of its own.
    """

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as the base class has it
        """The line itself."""
        return "".join(map(_as_text, _parts(super().formatMessage(record))))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - as the base class has it
        """What stands behind it."""
        lines = super().formatException(ei).splitlines()
        return "\n".join("  " + "".join(map(_as_text, _parts(line))) for line in lines)


TOLD = (
    *("loadslice.serve.compiled", "loadslice.serve.stages", "loadslice.serve.warm"),
    *("loadslice.app.commands.serve", "loadslice.app.language_serve"),
)
"""Say what a start is at, which may take half a minute, and what a server does that it was asked to."""


class Thinned(logging.Filter):
    """Lets of lines of one kind so many through at once and per second, and tells with the next how many it left out.

    What a client can have logged again and again fills a disk otherwise. Stories have a limit of their own.

    Args:
        monotonic_s: Never goes back.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic_s = monotonic_s
        self._kinds: dict[tuple[str, str], list[float]] = {}
        """By logger and words: credit, when it was filled, how many were left out since the last line."""
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written; one that is may say more than it did."""
        if record.name == log.name:
            return True
        with self._lock:
            now_s = self._monotonic_s()
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds.setdefault((record.name, str(record.msg)[:KIND_LENGTH]), [LINES_AT_ONCE, now_s, 0])
            kind[0] = min(LINES_AT_ONCE, kind[0] + LINES_PER_S * (now_s - kind[1]))
            kind[1] = now_s
            if kind[0] < 1:
                kind[2] += 1
                return False
            kind[0] -= 1
            left_out, kind[2] = int(kind[2]), 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()}; {left_out} like it were left out", None
        return True


class Unwaiting(logging.Handler):
    """Writes lines to a file descriptor as far as that takes no waiting.

    Lines go to a pipe in most places, and are written where requests are served: a collector that has stopped reading
    would stop the server. What is not taken at once is left out, and how much that was is told with the next line.

    Args:
        fd: Where to.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._left_out = 0
        self._begin = ""
        """Of the next line: the end of one that was cut off."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, or count it."""
        try:
            if self._left_out and self._is_taken():
                told = "%d lines were left out or cut off before this one: whoever reads them did not"
                self._write(logging.LogRecord(log.name, logging.WARNING, "", 0, told, (self._left_out,), None))
                self._left_out = 0
            self._left_out += not self._write(record)
        except BrokenPipeError:
            return  # nobody reads it any more, which is no reason to stop
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> bool:
        """Whether all of it could be written."""
        rest = memoryview(f"{self._begin}{self.format(record)}\n".encode(errors="backslashreplace"))
        size = len(rest)
        while rest and self._is_taken():
            rest = rest[os.write(self._fd, rest[: select.PIPE_BUF]) :]
        if len(rest) < size:
            self._begin = "\n" if rest else ""
        return not rest

    def _is_taken(self) -> bool:
        """Whether as much as a pipe takes as a whole is taken without waiting."""
        return any(event & select.POLLOUT for _, event in self._poll.poll(0))


def set_up(log_format: str, level: int = logging.WARNING) -> None:
    """Have everything logged to stderr, as ``text`` or ``json``."""
    handler = Unwaiting(STDERR)
    handler.addFilter(Thinned())
    handler.setFormatter(JsonLines() if log_format == "json" else Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in TOLD:
        logging.getLogger(name).setLevel(min(level, logging.INFO))


class Stories:
    """Logs requests that did not complete, and completed ones that took long.

    Args:
        slow_ms: From here on a completed request is slow; ``None``: none is.
        monotonic_s: Never goes back.
    """

    def __init__(self, slow_ms: float | None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._slow_ns = None if slow_ms is None else round(slow_ms * NS_PER_MS)
        self._monotonic_s = monotonic_s
        self._credit = STORIES_AT_ONCE
        self._filled_s = monotonic_s()
        self._left_out = 0

    def ended(self, pipeline: Pipeline, request: Request, now_ns: int) -> None:
        """See `Witness.ended`."""
        if request.outcome is Outcome.COMPLETED:
            took_ns = (request.end_ns or now_ns) - request.received_ns
            if self._slow_ns is None or took_ns < self._slow_ns:
                return
        if not self._may_tell():
            self._left_out += 1
            return
        told = story(pipeline, request)
        if self._left_out:
            told["left_out_before"], self._left_out = self._left_out, 0
        log.warning("%s", _sentence(told), extra={"story": told})

    def _may_tell(self) -> bool:
        now_s = self._monotonic_s()
        self._credit = min(STORIES_AT_ONCE, self._credit + STORIES_PER_S * (now_s - self._filled_s))
        self._filled_s = now_s
        if self._credit < 1:
            return False
        self._credit -= 1
        return True


def story(pipeline: Pipeline, request: Request) -> dict[str, Any]:
    """A request as a JSON object; unknown is ``None``, times are milliseconds.

    Args:
        pipeline: That served it.
        request: Ended.
    """
    return {
        "tag": request.tag,
        "id": request.id,
        "outcome": request.outcome.name.lower(),
        "reason": request.reason.name.lower(),
        "class": CLASSES[request.priority],
        "tenant": request.tenant,
        "source": request.source,
        "version": None if request.version is None else VERSIONS[request.version],
        "attempt": request.attempt,
        "ended_at_stage": pipeline.stages[request.stage].name if request.stage >= 0 else None,
        "took_ms": _ms(request.received_ns, request.end_ns),
        "parse_ms": _ms(request.received_ns, request.arrival_ns if request.arrival_ns >= 0 else None),
        "reply_ms": None if request.reply_ns is None else request.reply_ns / NS_PER_MS,
        "hint_ms": request.hint_ns / NS_PER_MS if request.hint_ns else None,
        "stages": [_passage(pipeline, passage, request.end_ns) for passage in request.passages],
    }


def _passage(pipeline: Pipeline, passage: Passage, end_ns: int | None) -> dict[str, Any]:
    waited_until_ns = passage.started_ns if passage.started_ns is not None else end_ns
    return {
        "stage": pipeline.stages[passage.stage].name,
        "engine": list(pipeline.engines)[passage.engine],
        "placed": passage.placed.name.lower(),
        "queue_ms": _ms(passage.enqueued_ns, waited_until_ns),
        "copy_ms": None if passage.copy_ns is None else passage.copy_ns / NS_PER_MS,
        "compute_ms": None if passage.compute_ns is None else passage.compute_ns / NS_PER_MS,
        "batch_rows": passage.batch_rows,
    }


def _ms(from_ns: int, to_ns: int | None) -> float | None:
    return None if to_ns is None else (to_ns - from_ns) / NS_PER_MS


def _sentence(told: dict[str, Any]) -> str:
    """The same for a person."""
    name = told["id"] or told["tag"]
    why = "" if told["reason"] == "none" else f" ({told['reason']})"
    took = "" if told["took_ms"] is None else f" after {told['took_ms']:.1f} ms"
    where = ", ".join(
        f"{one['stage']} on {one['engine']}"
        + ("" if one["queue_ms"] is None else f" queue {one['queue_ms']:.1f}")
        + ("" if one["compute_ms"] is None else f" compute {one['compute_ms']:.1f} ms")
        for one in told["stages"]
    )
    left_out = f"; {told['left_out_before']} others were left out" if "left_out_before" in told else ""
    return f"request {name} {told['outcome']}{why}{took}: {where or 'never placed'}{left_out}"
