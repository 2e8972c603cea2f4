"""One keep-alive connection to a server, and what each answer on it said about itself.

Blocking and plain on purpose: a lone request shall be slowed by nothing of ours. Times are taken when the last byte
has been handed to the socket, at the first byte of the body and at the last one; on a dilated server they are divided
by its dilation, so that they are in its own time.
"""

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

ANSWER_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Letter:
    """One request."""

    input: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StageTime:
    """What the server says one stage took, milliseconds."""

    stage: str
    queue_ms: float
    copy_ms: float
    compute_ms: float


@dataclass(slots=True)
class Heard:
    """One answer, or why there is none."""

    input: str
    id: str | None = None
    """``x-request-id`` as it was sent."""
    status: int | None = None
    error: str | None = None
    """``refused``, ``hung``, ``dropped`` or ``too_long``; ``None``: an answer came."""
    sent_s: float = 0.0
    """On this process's clock."""
    first_ms: float | None = None
    whole_ms: float | None = None
    body: bytes = b""
    head_bytes: int | None = None
    """Of JSON before binary tensors; ``None``: all of it is JSON."""
    engines: tuple[str, ...] = ()
    stages: tuple[StageTime, ...] = ()
    basis: str | None = None
    degraded: bool = False
    retry_after_ms: float | None = None
    request_bytes: int = 0

    @property
    def completed(self) -> bool:
        """It was answered as asked."""
        return self.status == 200 and self.error is None

    @property
    def done_s(self) -> float:
        """When the last byte came, on this process's clock in the server's time."""
        return self.sent_s + (self.whole_ms or 0.0) / 1000


@dataclass(slots=True)
class Line:
    """A connection that is opened again when it was lost."""

    url: str
    timeout_s: float
    dilate: float = 1.0
    _open: http.client.HTTPConnection | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def post(self, letter: Letter, path: str | None = None) -> Heard:
        """Send one request and wait for all of its answer."""
        return self._ask("POST", path, letter)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Heard:
        """GET a path of the same server."""
        return self._ask("GET", path, Letter("", b"", headers or {}))

    def _connected(self) -> http.client.HTTPConnection:
        if self._open is None:
            parts = urlsplit(self.url)
            kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
            host = parts.hostname or ""
            self._open = kind(host, parts.port, timeout=self.timeout_s)
            self._open.connect()
            self._open.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._open

    def _ask(self, method: str, path: str | None, letter: Letter) -> Heard:
        heard = Heard(letter.input, letter.headers.get("x-request-id"), request_bytes=len(letter.body))
        heard.sent_s = time.perf_counter() / self.dilate
        try:
            connection = self._connected()
            began = time.perf_counter()
            heard.sent_s = began / self.dilate
            connection.request(
                method, path or urlsplit(self.url).path or "/", letter.body or None, dict(letter.headers)
            )
            response = connection.getresponse()
            self._read(response, heard, began)
        except TimeoutError:
            heard.error = "hung"
        except ConnectionRefusedError:
            heard.error = "refused"
        except (OSError, http.client.HTTPException, ssl.SSLError):
            heard.error = "dropped"
        if heard.error is not None:
            self.close()
        return heard

    def _read(self, response: http.client.HTTPResponse, heard: Heard, began: float) -> None:
        heard.status = response.status
        blocks, size = [], 0
        while block := response.read1(1 << 20):
            if heard.first_ms is None:
                heard.first_ms = self._since_ms(began)
            blocks.append(block)
            size += len(block)
            if size > ANSWER_BYTES_MAX:
                heard.error = "too_long"
                return
        response.read()  # nothing is left; only now does http.client see the connection as free
        heard.body = b"".join(blocks)
        heard.whole_ms = self._since_ms(began)
        heard.first_ms = heard.first_ms if heard.first_ms is not None else heard.whole_ms
        told = response.headers
        heard.engines = tuple(
            name.strip() for name in (told.get("x-loadslice-engine") or "").split(",") if name.strip()
        )
        length = told.get("inference-header-content-length") or ""
        heard.head_bytes = int(length) if length.isdigit() else None
        heard.stages = stage_times(told.get("x-loadslice-timing") or "")
        heard.basis = told.get("x-loadslice-basis")
        heard.degraded = told.get("x-loadslice-degraded") is not None
        heard.retry_after_ms = _number(told.get("x-loadslice-retry-after-ms"))
        if response.will_close:
            self.close()

    def _since_ms(self, began: float) -> float:
        return (time.perf_counter() - began) * 1000 / self.dilate


def stage_times(header: str) -> tuple[StageTime, ...]:
    """Read ``x-loadslice-timing``; a stage whose times the server does not know is left out."""
    found = []
    for part in header.split(","):
        name, _, rest = part.strip().partition(";")
        values: dict[str, float] = {}
        for pair in rest.split(";"):
            key, _, text = pair.partition("=")
            number = _number(text)
            if number is not None:
                values[key.strip()] = number
        if name and {"queue", "copy", "compute"} <= set(values):
            found.append(StageTime(name, values["queue"], values["copy"], values["compute"]))
    return tuple(found)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
