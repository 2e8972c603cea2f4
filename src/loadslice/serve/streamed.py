"""Replies whose body comes bit by bit: in chunks, or until the connection closes where the client knows no chunks."""

from loadslice.serve.connection import Connection


def begin(connection: Connection, head: bytes) -> None:
    """Send the head of such a reply.

    Args:
        connection: Whose request is answered; nothing happens where its client has gone, here and below.
        head: Status line and headers, each line ended, without those about length, connection and date.
    """
    if connection.head is None:
        return
    is_chunked = connection.head.is_http11
    close = connection.is_last or not is_chunked
    connection.is_closing = connection.is_closing or close
    framing = b"Transfer-Encoding: chunked\r\n" if is_chunked else b""
    connection.write(b"".join((head, connection.lines(close=close), framing, b"\r\n")))


def add(connection: Connection, data: bytes) -> None:
    """Send a bit of its body. A client that does not read is cut off like any other."""
    if connection.head is not None and data:
        connection.write(b"%x\r\n%b\r\n" % (len(data), data) if connection.head.is_http11 else data)


def end(connection: Connection) -> None:
    """Say that its body is whole."""
    if connection.head is not None:
        if connection.head.is_http11:
            connection.write(b"0\r\n\r\n")
        connection.finish()
