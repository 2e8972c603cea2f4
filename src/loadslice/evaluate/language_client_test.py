"""The token-timing client against a server that says exactly what it is told to."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from loadslice.evaluate.language_client import Ask, Heard, send

CHUNK = b'data: {"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nX-LoadSlice-Route: remote_faster\r\nTransfer-Encoding: chunked\r\n\r\n"

Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def heard(reply: Reply, asks: list[Ask], timeout_s: float = 5) -> tuple[list[Heard], list[dict[str, object]]]:
    bodies: list[dict[str, object]] = []
    ends: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(asyncio.Event())
        end = ends[-1]
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                bodies.append(msgspec.json.decode(await reader.readexactly(length)))
                await reply(writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            end.set()

    async def whole() -> list[Heard]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await send(f"http://127.0.0.1:{port}", "m", asks, timeout_s=timeout_s)
        finally:
            server.close()
            for end in ends:
                await end.wait()

    return asyncio.run(whole()), bodies


def asks(count: int) -> list[Ask]:
    return [Ask(at_s=at / 50, prompt=[at + 1, 2], tokens=3) for at in range(count)]


async def three_tokens(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + framed(CHUNK))
    await writer.drain()
    await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=0.02)
    writer.write(framed(CHUNK) + framed(CHUNK) + framed(LAST) + b"0\r\n\r\n")


def test_every_token_has_its_time_and_the_end_is_none() -> None:
    told, bodies = heard(three_tokens, asks(3))
    for one in told:
        assert one.status == 200
        assert one.error is None
        assert one.route == "remote_faster"
        assert len(one.gaps_ms) == 2
        assert one.first_ms is not None
        assert one.whole_ms is not None
        assert one.whole_ms == pytest.approx(one.first_ms + sum(one.gaps_ms), abs=0.5)
        assert one.gaps_ms[0] > 10
    assert [body["prompt"] for body in bodies] == [[1, 2], [2, 2], [3, 2]]
    assert bodies[0]["max_tokens"] == 3


async def refusal(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 429 Too Many Requests\r\nContent-Length: 13\r\n\r\n{"error":"no"}'[:-1])


def test_a_refusal_is_its_status_and_what_it_said() -> None:
    (one,), _ = heard(refusal, asks(1))
    assert one.status == 429
    assert one.error is not None
    assert one.error.startswith('{"error"')
    assert one.first_ms is None


async def cut_off(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + framed(CHUNK))
    await writer.drain()
    writer.close()


def test_a_stream_that_is_cut_off_is_an_error_and_keeps_what_came() -> None:
    (one,), _ = heard(cut_off, asks(1))
    assert one.error is not None
    assert one.first_ms is not None
    assert one.gaps_ms == []


async def silent(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    await writer.drain()


def test_silence_ends_with_an_error_when_the_time_is_up() -> None:
    (one,), _ = heard(silent, asks(1), timeout_s=0.2)
    assert one.error is not None
    assert one.first_ms is None
