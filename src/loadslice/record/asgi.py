"""ASGI middleware."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from loadslice.record.body import Body
from loadslice.record.request import CURRENT, HEADERS, TEXT_LENGTH_MAX

if TYPE_CHECKING:
    from loadslice.record.recorder import Recorder

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiMiddleware:
    """Records the HTTP requests of an ASGI application; other scopes pass untouched.

    Also in the form frameworks add: ``app.add_middleware(AsgiMiddleware, recorder=recorder)``.
    """

    def __init__(self, app: AsgiApp, recorder: "Recorder") -> None:
        self.app = app
        self.recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = self.recorder.begin()
        for name, value in scope["headers"]:
            if name in HEADERS:
                request.fields[HEADERS[name]] = value[:TEXT_LENGTH_MAX]
        body = Body() if self.recorder.wants_payload() else None

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
            await send(message)

        async def receive_kept() -> Message:
            message = await receive()
            if body is not None:
                body.add(message.get("body", b""))
            return message

        token = CURRENT.set(request)
        try:
            await self.app(scope, receive if body is None else receive_kept, send_noted)
        except Exception:
            request.status = request.status or 500
            raise
        finally:
            CURRENT.reset(token)
            if body is not None:
                self.recorder.keep_payload(request, body)
            self.recorder.end(request)
