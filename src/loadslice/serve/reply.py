"""Replies as bytes: a status line, headers, a body; and what a refusal says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from loadslice.serve.refusals import RefusalError, retry_headers

TEXT_MAX = 512
"""Characters that a client is told."""

SERVER_NAME = "loadslice"
"""``Server`` header of every reply: not which versions of what are inside."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client gets."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Sequence[tuple[str, str]] = ()
    """Beside those every reply has."""
    close: bool = False
    """Whether the connection is closed after it."""


def json_reply(document: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    """A document as JSON."""
    return Reply(status, msgspec.json.encode(document), headers=headers)


def refuse(refusal: RefusalError, form: Callable[[str], Any] = lambda text: {"error": text}) -> Reply:
    """The reply for a refusal.

    Args:
        refusal: The refusal.
        form: From its text to the error object of the protocol that is spoken.
    """
    # The text may quote the client or a stage: at any length, and with characters that are none.
    text = refusal.text[:TEXT_MAX].encode(errors="replace").decode()
    headers = [] if refusal.retry_after_ns is None else list(retry_headers(refusal.retry_after_ns).items())
    if refusal.allow:
        headers.append(("Allow", ", ".join(refusal.allow)))
    return Reply(refusal.status, msgspec.json.encode(form(text)), headers=headers, close=refusal.close)


_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: {SERVER_NAME}\r\n".encode()
    for status in HTTPStatus
}
OK = _STATUS_LINES[200]

CLOSE = b"Connection: close\r\n"
KEEP = b"Connection: keep-alive\r\n"
"""Said to clients of HTTP/1.0, who would not expect it."""


def render(reply: Reply, lines: bytes, *, with_body: bool = True) -> bytes:
    """A reply as it goes out.

    Args:
        reply: The reply.
        lines: Of the time and the connection; see `Connection.lines`.
        with_body: False: the answer to HEAD, which tells of the body and does not bring it.
    """
    said = [f"Content-Type: {reply.content_type}\r\nContent-Length: {len(reply.body)}\r\n"]
    said += [f"{name}: {value}\r\n" for name, value in reply.headers]
    head = "".join(said).encode("latin-1")
    return b"".join((_STATUS_LINES[reply.status], lines, head, b"\r\n", reply.body if with_body else b""))
