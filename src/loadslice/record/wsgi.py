"""WSGI middleware."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from loadslice.record.body import Body
from loadslice.record.request import CURRENT, HEADERS, TEXT_LENGTH_MAX, Request

if TYPE_CHECKING:
    from loadslice.record.recorder import Recorder

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_ENVIRON = {
    "CONTENT_LENGTH" if name == b"content-length" else "HTTP_" + name.decode().upper().replace("-", "_"): field
    for name, field in HEADERS.items()
}


class WsgiMiddleware:
    """Records the requests of a WSGI application, up to the end of the response body."""

    def __init__(self, app: WsgiApp, recorder: "Recorder") -> None:
        self.app = app
        self.recorder = recorder

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Serve one request."""
        request = self.recorder.begin()
        for name, field in _ENVIRON.items():
            if environ.get(name):
                request.fields[field] = str(environ[name])[:TEXT_LENGTH_MAX]
        read = Body() if self.recorder.wants_payload() and "wsgi.input" in environ else None
        if read is not None:
            environ["wsgi.input"] = _Tee(environ["wsgi.input"], read)

        def start_noted(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            request.status = int(status[:3])
            return start_response(status, headers, *error)

        token = CURRENT.set(request)
        try:
            body = self.app(environ, start_noted)
        except Exception:
            request.status = 500
            self.recorder.end(request)
            raise
        finally:
            CURRENT.reset(token)
        return _Response(body, request, self.recorder, read)


class _Response:
    """A response body that ends its request when the server closes it."""

    def __init__(self, body: Iterable[bytes], request: Request, recorder: "Recorder", read: Body | None) -> None:
        self._body = body
        self._chunks = iter(body)
        self._request: Request | None = request
        self._recorder = recorder
        self._read = read

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        # A generator runs here, after the application returned: its stages belong to the request too.
        token = CURRENT.set(self._request)
        try:
            return next(self._chunks)
        finally:
            CURRENT.reset(token)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            request, self._request = self._request, None
            if request is not None:
                if self._read is not None:
                    self._recorder.keep_payload(request, self._read)
                self._recorder.end(request)


class _Tee:
    """A request body that remembers what was read of it."""

    def __init__(self, stream: Any, body: Body) -> None:
        self._stream = stream
        self._body = body

    def read(self, *size: int) -> bytes:
        return self._body.add(self._stream.read(*size))

    def readline(self, *size: int) -> bytes:
        return self._body.add(self._stream.readline(*size))

    def readlines(self, *hint: int) -> list[bytes]:
        return [self._body.add(line) for line in self._stream.readlines(*hint)]

    def __iter__(self) -> Iterator[bytes]:
        return (self._body.add(line) for line in self._stream)
