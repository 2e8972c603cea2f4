"""Layer 5: inputs nobody should send. Each must be refused or answered in time, and the next good one answered well.

What becomes of a case: ``refused`` (a 4xx, or a 503 that says when to come back), ``answered`` (200), ``failed`` (any
other status: the server blames itself), ``dropped`` (the connection ends without an answer), ``hung`` (no answer in
time). Refused and answered pass; after each case a good input must be answered as it was before.
"""

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from loadslice.evaluate import answers, infer
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.wire import Heard, Letter

Fate = Literal["refused", "answered", "failed", "dropped", "hung"]
Kind = Literal["too_long", "empty", "special", "shape", "not_a_number", "hostile"]

TOO_LONG_BYTES = 10 * 1024**3
"""Stated as the length of a body of which nothing is sent: a server must refuse it by its head."""
LONG_TEXT = 100_000
DEEP = 20_000
RECOVERY_RATIO = 10.0
"""A good input after a bad one may take this many times as long as before, and half a second."""


@dataclass(frozen=True, slots=True)
class Case:
    """One bad input."""

    name: str
    kind: Kind
    letter: Letter
    raw: bool = False
    """Sent as it is over a bare socket: the body is all bytes from the request line on."""


@dataclass(slots=True)
class Tried:
    """What became of one case."""

    name: str
    kind: str
    fate: Fate
    status: int | None
    took_ms: float | None
    not_finite: bool
    """It was answered, with NaN or infinity in it."""
    recovered: bool
    recovery_ms: float | None
    why: str | None = None


@dataclass(slots=True)
class Abnormal:
    """All cases of one placement."""

    tried: list[Tried] = field(default_factory=list)
    alive: bool = True

    @property
    def hung(self) -> list[Tried]:
        """Cases that never got an answer."""
        return [one for one in self.tried if one.fate in ("hung", "dropped")]


def measure(subject: Subject) -> Abnormal:
    """Try every case, and a good input after each."""
    found = Abnormal()
    good = subject.letters[0]
    with subject.line() as line:
        before = [line.post(good) for _ in range(3)]
        known = [heard for heard in before if heard.completed]
        usual_ms = float(np.median([heard.whole_ms for heard in known])) if known else 0.0
        expected = answers.outputs_of(known[0]) if known else None
        for case in cases(subject):
            heard = _raw(subject, case) if case.raw else line.post(case.letter)
            after = line.post(good)
            if after.error == "dropped":
                after = line.post(good)  # the server may hang up after a bad one; a client opens a new connection
            found.tried.append(_tried(case, heard, after, usual_ms, expected))
            if not subject.alive() or after.error == "refused":
                found.alive = False
                break
    return found


def _tried(
    case: Case, heard: Heard, after: Heard, usual_ms: float, expected: dict[str, answers.Values] | None
) -> Tried:
    outputs = answers.outputs_of(heard) if heard.completed else None
    not_finite = any(
        isinstance(values, np.ndarray) and not np.isfinite(values).all() for values in (outputs or {}).values()
    )
    recovered, why = after.completed, None if after.completed else f"status {after.status}, {after.error}"
    if recovered and (after.whole_ms or 0.0) > RECOVERY_RATIO * usual_ms + 500:
        recovered, why = False, f"it took {after.whole_ms:.0f} ms where {usual_ms:.0f} are usual"
    if recovered and expected is not None:
        difference = answers.compare(expected, answers.outputs_of(after) or {})
        if answers.alike([difference], None) == "clearly":
            recovered, why = False, "its answer was another one"
    return Tried(
        name=case.name,
        kind=case.kind,
        fate=fate_of(heard),
        status=heard.status,
        took_ms=heard.whole_ms,
        not_finite=not_finite,
        recovered=recovered,
        recovery_ms=after.whole_ms,
        why=why,
    )


def fate_of(heard: Heard) -> Fate:
    """What a status, or none, means here."""
    if heard.error is not None:
        return "hung" if heard.error in ("hung", "too_long") else "dropped"
    status = heard.status or 0
    if status == 200:
        return "answered"
    return "refused" if 400 <= status < 500 or status == 503 else "failed"


def cases(subject: Subject) -> Iterator[Case]:
    """Every bad input that fits the placement's kind of request."""
    good = subject.letters[0]
    yield Case("empty body", "empty", _with(good, b""))
    yield Case("one byte", "empty", _with(good, b"\x00"))
    yield Case("half a body", "hostile", _with(good, good.body[: len(good.body) // 2]))
    yield Case("random bytes", "hostile", _with(good, np.random.default_rng(0).bytes(4096)))
    yield Case("wrong content type", "special", _with(good, good.body, {"content-type": "application/x-nothing"}))
    yield Case("no content type", "special", _with(good, good.body, {"content-type": ""}))
    yield Case("special characters", "special", _with(good, "\u202e\u0000\U0001f4a9'\";--\r\n<>&%s".encode()))
    yield Case("unknown priority", "hostile", _with(good, good.body, {"x-loadslice-priority": "king"}))
    yield Case("deadline of nonsense", "hostile", _with(good, good.body, {"x-loadslice-deadline-ms": "NaN"}))
    yield Case("negative deadline", "hostile", _with(good, good.body, {"x-loadslice-deadline-ms": "-1"}))
    yield Case("long id", "too_long", _with(good, good.body, {"x-request-id": "i" * 8000}))
    yield Case("long header", "too_long", _with(good, good.body, {"x-filler": "h" * 200_000}))
    yield Case("length of 10 GiB", "too_long", _bare(subject, f"content-length: {TOO_LONG_BYTES}"), raw=True)
    yield Case("length that is no number", "hostile", _bare(subject, "content-length: ten"), raw=True)
    yield Case("two lengths", "hostile", _bare(subject, "content-length: 3\r\ncontent-length: 4", b"abcd"), raw=True)
    chunks = _bare(subject, "transfer-encoding: chunked", b"ZZ\r\nabc\r\n0\r\n\r\n")
    yield Case("chunks of nonsense", "hostile", chunks, raw=True)
    yield from _tensor_cases(subject)


def _tensor_cases(subject: Subject) -> Iterator[Case]:
    """Open Inference Protocol requests that lie about their tensors; any pipeline must stand them."""
    json_type = {"content-type": "application/json"}
    deep = b'{"inputs":' + b"[" * DEEP + b"]" * DEEP + b"}"
    yield Case("deeply nested JSON", "hostile", Letter("deep", deep, json_type))
    yield Case("no inputs", "shape", Letter("none", b'{"inputs": []}', json_type))
    text = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["\u0000\u202e" + "x" * LONG_TEXT]}
    yield Case("a long text", "too_long", Letter("text", json.dumps({"inputs": [text]}).encode(), json_type))
    if not subject.tensors:
        return
    body, headers = subject.letters[0].body, subject.letters[0].headers
    head = json.loads(body[: int(headers["inference-header-content-length"])])
    inputs = [(one["name"], one["datatype"], one["shape"]) for one in head["inputs"]]
    bad_numbers: list[tuple[str, float, Kind]] = [
        ("NaN", np.nan, "not_a_number"), ("infinity", np.inf, "not_a_number"), ("enormous numbers", 3e38, "hostile"),
    ]  # fmt: skip
    for name, value, kind in bad_numbers:
        tensors = {key: np.full(shape, value, np.float32) for key, kind_of, shape in inputs if kind_of.startswith("FP")}
        if len(tensors) == len(inputs):
            yield Case(name, kind, _tensors(tensors))
    zeros = {key: np.zeros(shape, np.float32) for key, _, shape in inputs}
    yield Case("one dimension more", "shape", _tensors({key: value[..., None] for key, value in zeros.items()}))
    grown = {key: np.concatenate([value, value], axis=-1) for key, value in zeros.items()}
    yield Case("twice as wide", "shape", _tensors(grown))
    yield Case("no rows", "empty", _tensors({key: value[:0] for key, value in zeros.items()}))
    yield Case("wrong type", "shape", _tensors({key: value.astype(np.int8) for key, value in zeros.items()}))
    yield Case("unknown name", "shape", _tensors({f"{key}?": value for key, value in zeros.items()}))
    lies = [
        {"name": key, "datatype": datatype, "shape": [-1, *shape[1:]], "data": [0.0]} for key, datatype, shape in inputs
    ]
    yield Case("negative shape", "shape", Letter("lies", json.dumps({"inputs": lies}).encode(), json_type))
    huge = [{"name": inputs[0][0], "datatype": inputs[0][1], "shape": [2**40, 2**40], "data": [0.0]}]
    yield Case("shape of 2^80", "hostile", Letter("huge", json.dumps({"inputs": huge}).encode(), json_type))


def _tensors(tensors: dict[str, Any]) -> Letter:
    body, headers = infer.encode("bad", tensors)
    return Letter("bad", body, headers)


def _with(good: Letter, body: bytes, headers: dict[str, str] | None = None) -> Letter:
    return Letter("bad", body, {**good.headers, **(headers or {})})


def _bare(subject: Subject, header: str, body: bytes = b"") -> Letter:
    parts = urlsplit(subject.url)
    head = f"POST {parts.path or '/'} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: image/png\r\n{header}\r\n\r\n"
    return Letter("bad", head.encode() + body, {})


def _raw(subject: Subject, case: Case) -> Heard:
    """Send bytes over a bare socket and read a status line."""
    parts = urlsplit(subject.url)
    heard = Heard(case.letter.input)
    began = time.perf_counter()
    try:
        place = (parts.hostname or "", parts.port or 80)
        with socket.create_connection(place, subject.timeout_s * subject.dilate) as connection:
            connection.sendall(case.letter.body)
            first = connection.recv(4096)
        words = first.split(b" ", 2)
        if len(words) > 1 and words[1].isdigit():
            heard.status = int(words[1])
            heard.whole_ms = (time.perf_counter() - began) * 1000
        else:
            heard.error = "dropped"
    except TimeoutError:
        heard.error = "hung"
    except OSError:
        heard.error = "dropped"
    return heard


def figures(found: Abnormal) -> dict[str, Any]:
    """For the document."""
    fates = [one.fate for one in found.tried]
    return {
        "cases": len(found.tried),
        "refused": fates.count("refused"),
        "answered": fates.count("answered"),
        "failed": fates.count("failed"),
        "dropped": fates.count("dropped"),
        "hung": fates.count("hung"),
        "not_recovered": sum(not one.recovered for one in found.tried),
        "answered_not_finite": sum(one.not_finite for one in found.tried),
        "alive": found.alive,
        "tried": [
            {
                "name": one.name,
                "kind": one.kind,
                "fate": one.fate,
                "status": one.status,
                "recovered": one.recovered,
                "recovery_ms": one.recovery_ms,
                "why": one.why,
            }
            for one in found.tried
        ],
    }


def passed(found: Abnormal) -> bool:
    """Nothing hung, nothing was blamed on the server, and it always recovered."""
    weak = [one for one in found.tried if one.fate in ("hung", "failed") or not one.recovered]
    # A request that is no HTTP may be answered by hanging up.
    dropped = [one for one in found.tried if one.fate == "dropped" and one.kind not in ("too_long", "hostile")]
    return found.alive and not weak and not dropped
