"""A streaming client of an OpenAI-style completions server that takes the time of every token, and little processor.

Open loop: a request is sent when its time has come, whatever became of those before it. Prompts are tokens, answers
have the length that is asked for, so what is measured is what a trace says.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

HEADER_END = b"\r\n\r\n"
TEXT = b'"text":'
GOES_ON = b'"finish_reason":null'


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    at_s: float
    """After the first one may be sent."""
    prompt: list[int]
    tokens: int
    """Of the answer."""
    priority: str | None = None


class Heard(msgspec.Struct, kw_only=True):
    """What became of it."""

    status: int = 0
    """Of HTTP; 0: the connection failed."""
    late_ms: float = 0.0
    """Sent so much after its time."""
    first_ms: float | None = None
    """From when it was sent to the first token."""
    gaps_ms: list[float] = []
    """Between two tokens, in order."""
    whole_ms: float | None = None
    route: str | None = None
    error: str | None = None


async def send(url: str, model: str, asks: Sequence[Ask], *, timeout_s: float = 300.0) -> list[Heard]:
    """Send requests when their times come.

    Args:
        url: ``http://host:port``.
        model: As the server calls it.
        asks: In time order.
        timeout_s: Of one answer.

    Returns:
        One answer per request, in their order.
    """
    loop = asyncio.get_running_loop()
    began = loop.time() + 0.05
    lines = _Lines(url)
    tasks = []
    for ask in asks:
        wait_s = began + ask.at_s - loop.time()
        if wait_s > 0:
            await asyncio.wait((loop.create_future(),), timeout=wait_s)
        late_ms = max(0.0, (loop.time() - began - ask.at_s) * 1e3)
        tasks.append(loop.create_task(_ask(lines, model, ask, late_ms, timeout_s)))
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await lines.close()


class _Lines:
    """Connections, used again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.host, self.port = parts.hostname, parts.port or 80
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            await _closed(writer)
        return await asyncio.open_connection(self.host, self.port, limit=1 << 20)

    def give_back(self, line: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._idle.append(line)

    async def close(self) -> None:
        for _, writer in self._idle:
            await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _ask(lines: _Lines, model: str, ask: Ask, late_ms: float, timeout_s: float) -> Heard:
    heard = Heard(late_ms=late_ms)
    body = msgspec.json.encode(
        {
            "model": model,
            "prompt": ask.prompt,
            "max_tokens": ask.tokens,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
    )
    priority = f"x-loadslice-priority: {ask.priority}\r\n" if ask.priority else ""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {lines.host}\r\nContent-Type: application/json\r\n{priority}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    line = None
    try:
        async with asyncio.timeout(timeout_s):
            line = await lines.take()
            began = time.perf_counter()
            line[1].write(head.encode() + body)
            await _hear(line[0], heard, began)
        lines.give_back(line)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
        heard.error = str(error) or type(error).__name__
        if line is not None:
            await _closed(line[1])
    return heard


async def _hear(reader: asyncio.StreamReader, heard: Heard, began: float) -> None:
    head = (await reader.readuntil(HEADER_END)).decode("latin-1").lower()
    heard.status = int(head.split(" ", 2)[1])
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    heard.route = fields.get("x-loadslice-route")
    if heard.status != 200:
        error = await reader.readexactly(int(fields.get("content-length", "0")))
        heard.error = error.decode(errors="replace")[:200]
        return
    heard.gaps_ms = []
    last = began
    while True:
        size = int(await reader.readline(), 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            break
        now = time.perf_counter()
        if b'"error"' in data and TEXT not in data:
            heard.error = data.decode(errors="replace")[:200]
        if TEXT not in data or GOES_ON not in data:
            continue
        if heard.first_ms is None:
            heard.first_ms = (now - began) * 1e3
        else:
            heard.gaps_ms.append((now - last) * 1e3)
        last = now
        heard.whole_ms = (now - began) * 1e3


def send_apart(url: str, model: str, asks: Sequence[Ask]) -> list[Heard]:
    """`send` with a loop of its own; for a process that does nothing else."""
    return asyncio.run(send(url, model, asks))
