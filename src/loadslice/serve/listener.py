"""The listening socket: opened with a readable refusal, closed without resetting whoever has just connected."""

import asyncio
import errno
import socket

from loadslice.serve.connection import HttpServer
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason

BACKLOG = 1024
SET_UP_S = 0.02


async def open_listener(http: HttpServer, host: str, port: int) -> asyncio.Server:
    """Listen.

    Args:
        http: Makes the connections.
        host: Address or name.
        port: 0: any free one.

    Raises:
        InputError: The port is in use, or the address is not ours.
    """
    try:
        return await asyncio.get_running_loop().create_server(http, host, port, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"--http {port}: the port is in use on {host}. Choose another, or 0 for any free one."
            ) from error
        raise InputError(f"--host {host} --http {port}: cannot listen, {reason(error)}.") from error


async def close_listener(listener: asyncio.Server, http: HttpServer, last_call_s: float) -> None:
    """Stop listening. Connections that the kernel has made but nobody has taken yet would be reset: take them first.

    Args:
        listener: From `open_listener`.
        http: Refuses what still comes.
        last_call_s: How long those who have just connected may take to say what they want.
    """
    loop = asyncio.get_running_loop()
    for listening in listener.sockets:
        loop.remove_reader(listening.fileno())
    # asyncio drops a connection that it has accepted but not set up yet when its server closes: let it set them up.
    await _pause(SET_UP_S)
    taken: list[socket.socket] = []
    for listening in listener.sockets:
        with listening.dup() as twin:
            twin.setblocking(False)
            taken.extend(_accept_all(twin))
    listener.close()
    for connection in taken:
        await loop.connect_accepted_socket(http, connection)
    await _pause(last_call_s)


async def _pause(for_s: float) -> None:
    await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=for_s)


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    taken: list[socket.socket] = []
    try:
        while len(taken) < BACKLOG:
            connection, _ = listening.accept()
            connection.setblocking(False)
            taken.append(connection)
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno not in (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE):
            raise
    return taken
