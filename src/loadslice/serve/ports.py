"""The ports of one server: opened before anything is loaded, closed when everybody has been answered."""

from typing import TYPE_CHECKING

from loadslice.serve.handler import Handler
from loadslice.serve.http_server import HttpServer
from loadslice.serve.limits import Limits
from loadslice.serve.listener import Listener, open_listener
from loadslice.serve.tls import Tls

if TYPE_CHECKING:
    from loadslice.serve.grpc_front import GrpcFront  # protobuf is an extra

LAST_CALL_S = 0.2
"""How long connections that were taken in the last moment may take to bring the request that will be refused."""

CUT_OFF_S = 2.0
"""How long handlers that still write may take."""


class Ports:
    """See the module.

    Args:
        limits: What clients may ask.
        tls: What all of them are encrypted with; ``None``: nothing is.
    """

    def __init__(self, limits: Limits, tls: Tls | None) -> None:
        self._limits = limits
        self._tls = tls
        self._http: list[tuple[HttpServer, Listener]] = []
        self._grpc: GrpcFront | None = None

    async def open(self, handler: Handler, host: str, port: int) -> int:
        """Open a port for HTTP.

        Args:
            handler: Answers what comes.
            host: Address or name.
            port: 0: any free one.

        Returns:
            Its number.

        Raises:
            InputError: It is in use, or the address is not ours.
        """
        http = HttpServer(handler, self._limits)
        listener = await open_listener(http, host, port, None if self._tls is None else self._tls.context)
        self._http.append((http, listener))
        return int(listener.sockets[0].getsockname()[1])

    async def open_grpc(self, front: "GrpcFront", host: str, port: int) -> int:
        """Open the port for gRPC; arguments, result and errors as `open`."""
        number = await front.listen(host, port, None if self._tls is None else self._tls.grpc_context)
        self._grpc = front
        return number

    async def close(self) -> None:
        """Close all of them: idle connections at once, the others when they have been answered."""
        if self._grpc is not None:
            await self._grpc.close()
        for http, listener in self._http:
            await listener.close(LAST_CALL_S)
            await http.shutdown(CUT_OFF_S)
        self._http = []
