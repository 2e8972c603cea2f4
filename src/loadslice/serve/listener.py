"""The listening socket: opened with a readable refusal, closed without resetting whoever has just connected.

It accepts by itself rather than through the event loop's server: every loop closes its servers in its own way, and some
drop connections that they have accepted and nobody has seen yet.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

from loadslice.spec.errors import InputError
from loadslice.spec.files import reason

log = logging.getLogger(__name__)

Make = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol of one new connection."""

Context = Callable[[], ssl.SSLContext]
"""What the next connection is encrypted with: certificates may change while a listener is open."""

BACKLOG = 1024

ACCEPTED_MAX = 64
"""Connections taken in one turn of the loop."""

REST_S = 0.1
"""How long nobody is accepted after the system could not: who has connected waits, and the loop does not spin."""

HANDSHAKE_S = 10.0
"""Longest time a TLS handshake may take."""

HANDSHAKES_MAX = 256
"""TLS handshakes going on at once. They are no connections yet, whose number is limited; beyond this, the one that has
been going on longest makes room: a client that means it needs milliseconds."""

SILENT_S = 60
"""After so long without a word a client is asked whether it is still there: one whose machine has gone says no goodbye,
and a call that it had open would keep its connection for ever."""

ASKS = ((socket.TCP_KEEPIDLE, SILENT_S), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))

_ITS_OWN = frozenset(
    {
        *(errno.ECONNABORTED, errno.EPERM, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENONET, errno.ECONNRESET),
    }
)
"""Errors of the one connection that would have been accepted, which is gone with them; see accept(2)."""


class Listener:
    """Accepts connections on one address, or several of one name.

    Args:
        make: Called for each; who is not connected in the end, for a handshake failed, is never told so.
        sockets: Listening, not blocking.
        tls: Encrypts what comes; ``None``: nothing does.
    """

    def __init__(self, make: Make, sockets: list[socket.socket], tls: Context | None) -> None:
        self.sockets = sockets
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._setting_up: dict[asyncio.Task[None], None] = {}
        """In the order they came."""
        self._resting: asyncio.TimerHandle | None = None
        self._is_short = False
        """Whether the last attempt to accept has failed for want of something; said once."""
        self._is_closed = False
        self._listen()

    async def close(self, last_call_s: float) -> None:
        """Stop listening, and take those who have connected and would be reset otherwise.

        Args:
            last_call_s: How long those who have just connected may take to say what they want.
        """
        self._is_closed = True
        if self._resting is not None:
            self._resting.cancel()
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())
            while self._accept(listening) == ACCEPTED_MAX:
                pass
            listening.close()
        if self._setting_up:
            await asyncio.wait(self._setting_up, timeout=last_call_s)
        await asyncio.wait((self._loop.create_future(),), timeout=last_call_s)
        for task in list(self._setting_up):
            task.cancel()  # or their connections would be made when there is nobody to close them
        if self._setting_up:
            await asyncio.wait(self._setting_up)

    def _listen(self) -> None:
        self._resting = None
        for listening in self.sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> int:
        """Take who has connected; returns how many were looked at."""
        for count in range(ACCEPTED_MAX):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return count
            except OSError as error:
                if error.errno in _ITS_OWN:
                    continue
                self._rest(error)
                return count
            self._is_short = False
            connection.setblocking(False)
            if self._tls is not None and len(self._setting_up) >= HANDSHAKES_MAX:
                oldest = next(iter(self._setting_up))
                del self._setting_up[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._set_up(connection))
            self._setting_up[task] = None
            task.add_done_callback(self._set_up_ended)
        return ACCEPTED_MAX

    def _set_up_ended(self, task: asyncio.Task[None]) -> None:
        self._setting_up.pop(task, None)

    async def _set_up(self, connection: socket.socket) -> None:
        context, handshake_s = (None, None) if self._tls is None else (self._tls(), HANDSHAKE_S)
        try:
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=context, ssl_handshake_timeout=handshake_s
            )
        except (OSError, TimeoutError) as error:
            connection.close()
            log.debug("a connection was not set up: %s", error)
        except BaseException:
            connection.close()
            raise

    def _rest(self, error: OSError) -> None:
        """Try again a little later, whatever it is: a server that does not accept any more looks well from inside."""
        if not self._is_short:
            self._is_short = True
            log.error("no connection can be accepted now: %s", reason(error))
        if self._is_closed or self._resting is not None:
            return
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())
        self._resting = self._loop.call_later(REST_S, self._listen)


async def open_listener(
    make: Make, host: str, port: int, tls: Context | None = None, *, option: str = "--http"
) -> Listener:
    """Listen.

    Args:
        make: Makes the connections.
        host: Address or name.
        port: 0: any free one.
        tls: Encrypts what comes; ``None``: nothing does.
        option: That says the port, for messages.

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
                f"{option} {port}: the port is in use on {host}. Choose another, or 0 for any free one."
            ) from error
        raise InputError(f"--host {host} {option} {port}: cannot listen, {reason(error)}.") from error
    return Listener(make, sockets, tls)


def _open(listening: socket.socket, family: int, address: tuple[object, ...]) -> None:
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Who is accepted inherits these.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ASKS:
        listening.setsockopt(socket.IPPROTO_TCP, option, value)
    if family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listening.bind(address)
    listening.listen(BACKLOG)


async def close_listener(listener: Listener, _http: object, last_call_s: float) -> None:
    """See `Listener.close`."""
    await listener.close(last_call_s)
