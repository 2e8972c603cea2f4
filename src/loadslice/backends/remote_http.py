"""Connections to servers that do an engine's work elsewhere: kept open, bounded in time and size, given up at will.

Rules of this file: nothing waits without an end, however little the other side takes or gives at a time; a reply is
never read past its limit; redirects are not followed and
proxies of the environment are not used, so that payloads go where the file says and nowhere else; a token comes from
an environment variable and is in no message.
"""

import http.client
import io
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from loadslice.backends.base import EngineError
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import StageInputError

CONNECT_S = 5.0
"""To open a connection, and for each question about a model."""

CALL_S = 60.0
"""Longest call where neither the requests nor the stage say how long they may take."""

LOOK_S = 0.05
"""How often a call that waits looks whether anybody still wants its answer."""

GRACE_S = 0.1
"""Beyond a deadline: whoever keeps it shall be the first to say that it has passed, for then it is nobody's fault."""

PIECE_BYTES = 1 << 20
"""Sent before it is asked again whether there is time, and anybody waits."""

REPLY_BYTES_MAX = 256 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024

CLIENT_FAULTS = frozenset({400, 413, 415, 422})
"""The request itself is refused; what else begins with 4 is about the model, the token or the server's load."""

NO_REPLY = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, struct.error)
"""All that taking apart a document raises which is not what it should be."""

Options = dict[str, str | int | float | bool]

Known = dict[str, type | tuple[type, ...]]
"""Options and their types."""

OPTIONS: Known = {
    "url": str,
    "model": str,
    "token_env": str,
    "ca_file": str,
    "call_s": (int, float),
    "reply_mb_max": int,
}
"""What every remote engine's ``options`` may say."""


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass(slots=True)
class Call:
    """What a call may take, and whether anybody still waits; one per slot, set before each batch."""

    until_s: float | None = None
    """On the monotonic clock; ``None``: the engine's own limit."""
    is_wanted: Callable[[], bool] = field(default=lambda: True)
    traceparent: str | None = None
    """W3C trace context that the other server shall continue."""


class Endpoint:
    """Where a server is and how it is spoken to, from an engine's options.

    Args:
        options: As the file has them.
        kind: The backend, for messages.
        more: Options beside those of `OPTIONS`, with their types.

    Raises:
        InputError: An option that is unknown, of the wrong type, missing, or holds a secret.
    """

    def __init__(self, options: Options, kind: str, more: Known) -> None:
        self.kind = kind
        self.options = _checked(options, kind, OPTIONS | more)
        self.url = _url(str(self.options["url"]), kind)
        self.host = self.url.netloc
        self.call_s = float(self.options.get("call_s", CALL_S))
        self.reply_bytes_max = int(self.options.get("reply_mb_max", 0)) * 1_000_000 or REPLY_BYTES_MAX
        self.token = _token(self.options.get("token_env"), kind)
        self.context = _context(self.options.get("ca_file"), kind) if self.url.scheme == "https" else None

    @property
    def authorization(self) -> dict[str, str]:
        """Headers that show the token, where there is one."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


class Remote:
    """One server, with a connection for each slot.

    Args:
        engine: Its options name the server.
        kind: The backend, for messages.
        more: Options beside those of `OPTIONS`, with their types.

    Raises:
        InputError: An option that is unknown, of the wrong type, missing, or holds a secret.
    """

    def __init__(self, engine: Engine, kind: str, more: Known) -> None:
        self._endpoint = Endpoint(engine.options, kind, more)
        self.kind, self.options = kind, self._endpoint.options
        self.url, self.host = self._endpoint.url, self._endpoint.host
        self._call_s = self._endpoint.call_s
        self._connections: list[http.client.HTTPConnection | None] = [None] * (engine.max_inflight + 1)
        self._asking = threading.Lock()
        self.calls = [Call() for _ in range(engine.max_inflight)]

    def get(self, path: str) -> Reply:
        """Ask about a server or a model.

        Raises:
            EngineError: It does not answer.
        """
        with self._asking:
            return self._exchange(len(self.calls), "GET", path, {}, b"", Call(time.monotonic() + CONNECT_S))

    def post(self, slot: int, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Send a batch and wait for its answer.

        Raises:
            StageInputError: The server refuses the request itself.
            EngineError: It does not answer in time, nobody waits any more, or it says that it cannot.
        """
        call = self.calls[slot]
        until_s = min(call.until_s or float("inf"), time.monotonic() + self._call_s)
        left_ms = round((until_s - time.monotonic()) * 1e3)
        if left_ms <= 0:
            raise EngineError(f"{self.kind}: no time was left to ask {self.host}.")
        headers = headers | {"x-loadslice-deadline-ms": str(left_ms)}
        if call.traceparent is not None:
            headers["traceparent"] = call.traceparent
        reply = self._exchange(slot, "POST", path, headers, body, Call(until_s + GRACE_S, call.is_wanted))
        if reply.status == 200:
            return reply
        said = f"{self.kind}: {self.host} answers {reply.status}: {_one_line(reply.body)}"
        if reply.status in CLIENT_FAULTS:
            raise StageInputError(said)
        raise EngineError(said)

    def close(self) -> None:
        """Close every connection."""
        for slot, connection in enumerate(self._connections):
            if connection is not None:
                connection.close()
                self._connections[slot] = None

    def _exchange(self, slot: int, method: str, path: str, headers: dict[str, str], body: bytes, call: Call) -> Reply:
        kept = self._connections[slot]
        try:
            if kept is not None:
                try:
                    return self._once(slot, kept, method, path, headers, body, call)
                except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                    kept.close()  # it was closed while it lay idle: the request was not taken up
            return self._once(slot, self._connect(), method, path, headers, body, call)
        except EngineError:
            self._drop(slot)
            raise
        except (OSError, http.client.HTTPException) as error:
            self._drop(slot)
            raise EngineError(f"{self.kind}: {self.host}: {_words(error)}") from error

    def _once(
        self,
        slot: int,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        call: Call,
    ) -> Reply:
        self._connections[slot] = connection
        headers = headers | self._endpoint.authorization
        if body:
            headers["Content-Length"] = str(len(body))
        if connection.sock is None:
            connection.connect()
        turn = _Turn(connection.sock, call, f"{self.kind}: nobody waits for {self.host} any more.")
        turn.check()
        connection.request(method, self.url.path.rstrip("/") + path, turn.pieces(body) if body else None, headers)
        with turn.response(connection) as response:
            limit = self._endpoint.reply_bytes_max if response.status == 200 else ERROR_BYTES_MAX
            parts: list[bytes] = []
            while part := response.read1(1 << 20):
                parts.append(part)
                limit -= len(part)
                if limit < 0:
                    raise EngineError(f"{self.kind}: {self.host} answers more than is taken (options.reply_mb_max).")
            response.read()  # nothing is left; this is how the library learns it and keeps the connection
        if response.will_close:
            self._drop(slot)
        return Reply(response.status, response.headers, b"".join(parts))

    def _connect(self) -> http.client.HTTPConnection:
        name, port = self.url.hostname, self.url.port
        assert name is not None
        if self._endpoint.context is not None:
            return http.client.HTTPSConnection(name, port, timeout=CONNECT_S, context=self._endpoint.context)
        return http.client.HTTPConnection(name, port, timeout=CONNECT_S)

    def _drop(self, slot: int) -> None:
        connection = self._connections[slot]
        if connection is not None:
            connection.close()
            self._connections[slot] = None


class _Turn:
    """One question and its answer on a connection: each wait is for what is left of its time, and while it is wanted.

    Args:
        sock: Connected.
        call: Has a time.
        unwanted: What is said where nobody waits any more.
    """

    def __init__(self, sock: socket.socket, call: Call, unwanted: str) -> None:
        self._sock = sock
        self._call = call
        self._unwanted = unwanted
        self._looked_s = time.monotonic()
        """When it was last asked whether anybody waits."""
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def check(self) -> float:
        """Give the socket what is left of the time, and return it.

        Raises:
            TimeoutError: Nothing is.
        """
        assert self._call.until_s is not None
        left_s = self._call.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return left_s

    def pieces(self, body: bytes) -> Iterator[memoryview]:
        """The body, as it is sent."""
        view = memoryview(body)
        for start in range(0, len(view), PIECE_BYTES):
            self.check()
            if start and not self._call.is_wanted():
                raise EngineError(self._unwanted)
            yield view[start : start + PIECE_BYTES]

    def response(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        """The answer to what was sent, its head read.

        Raises:
            EngineError: Nobody waits any more.
            TimeoutError: It takes too long.
        """
        answering = cast(Any, connection)
        answering.response_class = lambda _, **how: http.client.HTTPResponse(cast(Any, self), **how)
        try:
            return connection.getresponse()
        finally:
            del answering.response_class  # with it would stay who waits, and their tensors

    def makefile(self, _mode: str) -> io.BufferedReader:
        """What comes, for `http.client.HTTPResponse`, which asks its socket for nothing else."""
        return io.BufferedReader(_Answer(self, self._sock.makefile("rb", buffering=0)))

    def wait(self) -> None:
        """Until there is something to read.

        Raises:
            EngineError: Nobody waits any more; the connection is closed, which tells the server.
            TimeoutError: It takes too long.
        """
        while True:
            left_s, now_s = self.check(), time.monotonic()
            if now_s - self._looked_s >= LOOK_S:
                self._looked_s = now_s
                if not self._call.is_wanted():
                    raise EngineError(self._unwanted)
            if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
                return
            if self._poll.poll(1e3 * min(left_s, LOOK_S)):
                return


class _Answer(io.RawIOBase):
    """What a server sends."""

    def __init__(self, turn: _Turn, stream: io.RawIOBase) -> None:
        self._turn = turn
        self._stream = stream

    def readable(self) -> bool:
        """It is there for that."""
        return True

    def readinto(self, room: Any) -> int | None:
        """Read what is there."""
        self._turn.wait()
        return self._stream.readinto(room)

    def close(self) -> None:
        """Let go of the connection."""
        self._stream.close()
        super().close()


def refusal(remote: Remote, what: str, error: EngineError | Reply) -> InputError:
    """Why a model cannot be loaded from a server, in one line."""
    if isinstance(error, Reply):
        error = EngineError(f"{remote.kind}: {remote.host} answers {error.status}: {_one_line(error.body)}")
    return InputError(f"{what}: {error} Check options.url and options.model, and that the server runs.")


def _checked(options: Options, kind: str, known: Known) -> Options:
    for key, value in options.items():
        if key not in known:
            raise InputError(f"{kind}: options.{key}: not known; there are {', '.join(sorted(known))}.")
        if not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is not bool):
            raise InputError(f"{kind}: options.{key}: a value of type {type(value).__name__} is not what is meant.")
    if "url" not in options:
        raise InputError(f"{kind}: options.url is missing: where the server is, for instance http://127.0.0.1:8000.")
    for key in ("call_s", "reply_mb_max"):
        if key in options and not 0 < float(options[key]) <= 86_400:
            raise InputError(f"{kind}: options.{key}: {options[key]} is not between 0 and 86400.")
    return options


def _url(text: str, kind: str) -> SplitResult:
    try:
        url = urlsplit(text)
        port_is_right = url.port is None or url.port > 0
    except ValueError:
        url, port_is_right = SplitResult("", "", "", "", ""), False
    if "@" in url.netloc or "@" in text.partition("//")[2].partition("/")[0]:
        raise InputError(
            f"{kind}: options.url holds a user or password. Take it out of the file and name an environment variable "
            "with a token in options.token_env."
        )
    if url.scheme not in ("http", "https") or not url.hostname or not port_is_right or url.query or url.fragment:
        raise InputError(f"{kind}: options.url: not like http://HOST:PORT or https://HOST/PATH.")
    return url


def _token(variable: object, kind: str) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(str(variable), "")
    if not value or not value.isascii() or not value.isprintable():
        raise InputError(f"{kind}: options.token_env: the environment variable '{variable}' holds no token.")
    return value


def _context(ca_file: object, kind: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{kind}: options.ca_file: '{ca_file}' is not a file of certificates.") from error


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer in time."
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}."
    return f"{type(error).__name__}: {error!s:.200}."


def _one_line(body: bytes | Sequence[int]) -> str:
    return " ".join(bytes(body[:300]).decode(errors="replace").split()) or "nothing"
