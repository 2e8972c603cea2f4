"""The listening socket: opened with a readable refusal, closed without resetting whoever has just connected.

It accepts by itself rather than through the event loop's server: every loop closes its servers in its own way, and some
drop connections that they have accepted and nobody has seen yet.
"""

import asyncio
import errno
import logging
import socket
import ssl

from loadslice.serve.http_server import HttpServer
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason

log = logging.getLogger(__name__)

BACKLOG = 1024

ACCEPTED_MAX = 64
"""Connections taken in one turn of the loop."""

OUT_OF_FILES_S = 0.1
"""How long nobody is accepted after the process had no file descriptor left."""

HANDSHAKE_S = 10.0
"""Longest time a TLS handshake may take."""

_TRANSIENT = (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Accepts connections on one address, or several of one name.

    Args:
        http: Makes the connections.
        sockets: Listening, not blocking.
        tls: Encrypts what comes; ``None``: nothing does.
    """

    def __init__(self, http: HttpServer, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        self.sockets = sockets
        self._http = http
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._setting_up: set[asyncio.Task[object]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._listen()

    async def close(self, last_call_s: float) -> None:
        """Stop listening, and take those who have connected and would be reset otherwise.

        Args:
            last_call_s: How long those who have just connected may take to say what they want.
        """
        for timer in self._timers:
            timer.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())
            while self._accept(listening) == ACCEPTED_MAX:
                pass
            listening.close()
        if self._setting_up:
            await asyncio.wait(self._setting_up, timeout=last_call_s)
        await asyncio.wait((self._loop.create_future(),), timeout=last_call_s)

    def _listen(self) -> None:
        self._timers.clear()
        for listening in self.sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> int:
        """Take who has connected; returns how many that were."""
        for count in range(ACCEPTED_MAX):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return count
            except OSError as error:
                if error.errno not in _TRANSIENT:
                    raise
                if error.errno != errno.ECONNABORTED:
                    self._rest(error)
                return count
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task: asyncio.Task[object] = self._loop.create_task(self._set_up(connection))
            self._setting_up.add(task)
            task.add_done_callback(self._setting_up.discard)
        return ACCEPTED_MAX

    async def _set_up(self, connection: socket.socket) -> None:
        handshake_s = None if self._tls is None else HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                self._http, connection, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, TimeoutError) as error:
            connection.close()
            log.debug("a connection was not set up: %s", error)

    def _rest(self, error: OSError) -> None:
        log.error("no connection can be accepted: %s", reason(error))
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())
        if not self._timers:
            self._timers.add(self._loop.call_later(OUT_OF_FILES_S, self._listen))


async def open_listener(http: HttpServer, host: str, port: int, tls: ssl.SSLContext | None = None) -> Listener:
    """Listen.

    Args:
        http: Makes the connections.
        host: Address or name.
        port: 0: any free one.
        tls: Encrypts what comes; ``None``: nothing does.

    Raises:
        InputError: The port is in use, or the address is not ours.
    """
    sockets: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(found):
            sockets.append(socket.socket(family, socket.SOCK_STREAM))
            _open(sockets[-1], family, (address[0], sockets[0].getsockname()[1] or port, *address[2:]))
    except OSError as error:
        for one in sockets:
            one.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"--http {port}: the port is in use on {host}. Choose another, or 0 for any free one."
            ) from error
        raise InputError(f"--host {host} --http {port}: cannot listen, {reason(error)}.") from error
    return Listener(http, sockets, tls)


def _open(listening: socket.socket, family: int, address: tuple[object, ...]) -> None:
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listening.bind(address)
    listening.listen(BACKLOG)


async def close_listener(listener: Listener, _http: HttpServer, last_call_s: float) -> None:
    """See `Listener.close`."""
    await listener.close(last_call_s)
