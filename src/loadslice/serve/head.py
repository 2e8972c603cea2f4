"""The head of an HTTP/1.1 request: parsed by llhttp, and known again when the same bytes come once more.

A client sends nearly the same head with every request. Where the whole head is byte for byte one that has been parsed
before, at a place where a message begins, it means the same, so it is looked up instead of parsed. Heads that carry an
identity of their own (a request id, a trace context) would only push others out and are never kept.
"""

from http import HTTPStatus
from urllib.parse import unquote

import httptools

from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError

END = b"\r\n\r\n"
KNOWN_MAX = 1024
"""Heads remembered; when there are more, all are forgotten."""

KNOWN_BYTES_MAX = 2048
"""A longer head is parsed each time."""

_UNIQUE = ("traceparent", "x-request-id", "x-loadslice-key")

NOT_HTTP = "the request is not valid HTTP"

ONCE = ("host", "authorization", "x-loadslice-", "inference-header-content-length", "content-encoding", "expect")
"""Headers that somebody in front of this server and the server itself must not read differently."""


class Head:
    """One request's head.

    Attributes:
        method: As sent.
        path: Percent-decoded, without the query.
        query: After the question mark, as sent.
        headers: Lower-case name -> value; the first where a name comes twice.
        body_bytes: What ``Content-Length`` says; ``None``: not said.
        is_chunked: Whether the body comes in chunks.
        keeps_alive: Whether the connection stays open after the reply, as far as the client is concerned.
        has_body: Whether bytes of this request follow its head.
        is_plain: Whether there is nothing special about the way its body comes.
        is_http11: Whether the client speaks HTTP/1.1.
        notes: What whoever routes requests keeps with a head; it lives as long as the head is remembered.
    """

    __slots__ = (
        "body_bytes",
        "has_body",
        "headers",
        "is_chunked",
        "is_http11",
        "is_plain",
        "keeps_alive",
        "method",
        "notes",
        "path",
        "query",
    )

    def __init__(self, method: str, target: str, headers: dict[str, str], *, http11: bool, keeps_alive: bool) -> None:
        self.method = method
        path, _, self.query = target.partition("?")
        self.path = unquote(path, errors="surrogateescape")
        self.headers = headers
        self.is_http11 = http11
        self.keeps_alive = keeps_alive
        self.is_chunked = "transfer-encoding" in headers
        length = headers.get("content-length")
        self.body_bytes = None if length is None else int(length)
        self.has_body = self.is_chunked or bool(self.body_bytes)
        self.is_plain = not (self.is_chunked or "content-encoding" in headers or "expect" in headers)
        self.notes: object = None


class _Collector:
    """Gathers what llhttp finds in one head."""

    def __init__(self, headers_max: int) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.messages = 0
        self.count = 0
        self.is_whole = False
        self.keeps_alive = False
        self.parser: httptools.HttpRequestParser | None = None
        self._headers_max = headers_max

    def on_message_begin(self) -> None:
        self.messages += 1

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count += 1
        if self.count > self._headers_max:
            raise ValueError("too many headers")
        # Bytes that are not UTF-8 become lone surrogates, which whoever reads the header refuses.
        text = name.decode("latin-1").lower()
        if text in self.headers and text.startswith(ONCE):
            raise ValueError("a header that decides is given twice")
        self.headers.setdefault(text, value.strip(b" \t").decode(errors="surrogateescape"))

    def on_headers_complete(self) -> None:
        self.is_whole = True
        assert self.parser is not None
        # Only now: a parser that has come to a message's end has forgotten it.
        self.keeps_alive = self.parser.should_keep_alive()


class HeadReader:
    """Reads heads for one server."""

    def __init__(self, limits: Limits) -> None:
        self._headers_max = limits.headers_max
        self._known: dict[bytes, Head] = {}

    def read(self, raw: bytes) -> Head:
        """Parse one head.

        Args:
            raw: Up to and with the empty line.

        Raises:
            RefusalError: 400, where it is not HTTP/1.
        """
        known = self._known.get(raw)
        if known is not None:
            return known
        head = self._parse(raw)
        if len(raw) <= KNOWN_BYTES_MAX and not any(name in head.headers for name in _UNIQUE):
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[raw] = head
        return head

    def _parse(self, raw: bytes) -> Head:
        found = _Collector(self._headers_max)
        parser = found.parser = httptools.HttpRequestParser(found)
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # asked for and not granted, which a server may do
        except httptools.HttpParserError as error:
            raise not_http() from error
        finally:
            found.parser = None  # it holds the collector too
        version = parser.get_http_version()
        if not found.is_whole or found.messages != 1 or version not in ("1.0", "1.1"):
            raise not_http()
        target = _origin_form(found.target.decode(errors="surrogateescape"))
        return Head(
            parser.get_method().decode("ascii"),
            target,
            found.headers,
            http11=version == "1.1",
            keeps_alive=found.keeps_alive,
        )


def not_http() -> RefusalError:
    """The refusal for what cannot be understood at all."""
    return RefusalError(HTTPStatus.BAD_REQUEST, NOT_HTTP, close=True)


def _origin_form(target: str) -> str:
    """A proxy's ``http://host/path`` as ``/path``."""
    if target.startswith(("http://", "https://")):
        _, slash, rest = target.partition("://")[2].partition("/")
        return slash + rest
    return target
