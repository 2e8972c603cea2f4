"""Open-loop load over HTTP: every request leaves at its due time, whatever the server does.

Latency counts from the time a request was *due*, not from when it was sent, so a generator that falls behind shows up
as latency instead of hiding it (the error known as coordinated omission). How far it fell behind is reported too.

A thread keeps the pace, because an event loop rounds its waits up to a millisecond; the loop does the sending.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec

from loadslice.evaluate.interrupt import first_signal_calls

STATUS_OUTCOME = {
    200: "completed",
    429: "rejected",
    499: "cancelled",
    500: "failed",
    502: "failed",
    503: "shed",
    504: "expired",
}
"""The contract's mapping; any other status is a failure with the status as its reason."""

WORDS_MAX = 240
"""Characters of an error that are kept; a page of HTML says no more in more."""

GONE_REFUSALS = 10
"""Refused connections in a row after which a server on this machine counts as gone."""
GONE_S = 3.0
"""The same by time, for slow traces."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One request to send."""

    row: int
    due_s: float
    """Since the replay began."""
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the generator."""

    connections: int = 512
    """Open at once; a request due beyond them is not sent and fails with reason ``connection_limit``."""
    timeout_s: float = 30.0
    """Longest wait for one answer."""
    answer_bytes: int = 16 * 1024 * 1024


@dataclass(slots=True)
class Answer:
    """What became of one shot."""

    row: int
    due_s: float
    sent_s: float | None = None
    done_s: float | None = None
    """When the last byte of an answer came; ``None`` without an answer."""
    status: int | None = None
    outcome: str = ""
    reason: str | None = None
    engine: str | None = None
    basis: str | None = None
    """``x-loadslice-basis``, of an answer that an emulated device had a part in."""
    body: bytes | None = None
    told: str | None = None
    """The server's own words, of an answer that is not a completed one."""


@dataclass(slots=True)
class Run:
    """All answers, in order of the shots; every one has an outcome."""

    answers: list[Answer]
    interrupted_by: int | None = None
    """Number of the signal that ended it early."""
    gone: bool = False
    """The server stopped listening."""

    @property
    def interrupted(self) -> bool:
        """It was ended early."""
        return self.interrupted_by is not None


def drive(
    url: str,
    shots: Sequence[Shot],
    limits: Limits,
    *,
    keep_bodies: bool = False,
    on_answer: Callable[[Answer], None] = lambda _: None,
) -> Run:
    """Send all shots at their due times and wait for their answers.

    On the main thread SIGINT and SIGTERM end the run early: what is open or was not sent yet is `cancelled` with
    reason ``interrupted``. A second signal has its usual effect.

    Args:
        url: Where to POST to.
        shots: In order of ``due_s``.
        limits: Bounds.
        keep_bodies: Keep the bodies of completed answers.
        on_answer: Called on the loop for each answer; must be quick.
    """
    return asyncio.run(_Generator(url, shots, limits, keep_bodies, on_answer).run())


@dataclass(slots=True)
class _Generator:
    url: str
    shots: Sequence[Shot]
    limits: Limits
    keep_bodies: bool
    on_answer: Callable[[Answer], None]
    open_tasks: set[asyncio.Task[None]] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    interrupted_by: int | None = None
    gone: bool = False
    refusals: int = 0
    refused_since_s: float | None = None
    begin: float = 0.0

    async def run(self) -> Run:
        self.answers = [Answer(shot.row, shot.due_s) for shot in self.shots]
        loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=self.limits.timeout_s)
        # Loopback addresses need neither name cache nor proxies; answers are read raw.
        connector = aiohttp.TCPConnector(limit=self.limits.connections, force_close=False)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            self.begin = time.perf_counter()
            with first_signal_calls(self._interrupt):
                try:
                    await loop.run_in_executor(None, self._pace, loop, session)
                except BaseException:
                    self.stop.set()
                    raise
                # The pacer's last launches are already queued on the loop; let them start.
                started = loop.create_future()
                loop.call_soon(started.set_result, None)
                await started
                await self._finish()
        for answer in self.answers:
            if not answer.outcome:
                answer.outcome, answer.reason = self._unsent()
        return Run(self.answers, self.interrupted_by, self.gone)

    def _unsent(self) -> tuple[str, str]:
        return ("failed", "server_gone") if self.gone else ("cancelled", "interrupted")

    def _pace(self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
        """Keep the pace on a thread: hand each shot to the loop when it is due."""
        for index, shot in enumerate(self.shots):
            wait_s = self.begin + shot.due_s - time.perf_counter()
            if self.stop.wait(wait_s) if wait_s > 0 else self.stop.is_set():
                return
            loop.call_soon_threadsafe(self._launch, index, session)

    def _launch(self, index: int, session: aiohttp.ClientSession) -> None:
        if self.stop.is_set():
            return
        if len(self.open_tasks) >= self.limits.connections:
            self._end(self.answers[index], "failed", "connection_limit")
            return
        task = asyncio.get_running_loop().create_task(self._send(self.shots[index], self.answers[index], session))
        self.open_tasks.add(task)
        task.add_done_callback(self.open_tasks.discard)

    async def _finish(self) -> None:
        """Wait for open requests; after a stop, cancel them."""
        while self.open_tasks:
            if self.stop.is_set():
                for task in self.open_tasks:
                    task.cancel()
            await asyncio.wait(self.open_tasks, timeout=0.2, return_when=asyncio.ALL_COMPLETED)

    async def _send(self, shot: Shot, answer: Answer, session: aiohttp.ClientSession) -> None:
        answer.sent_s = time.perf_counter() - self.begin
        try:
            async with session.post(self.url, data=shot.body, headers=shot.headers, allow_redirects=False) as response:
                body, whole = await _read(response.content, self.limits.answer_bytes)
                answer.done_s = time.perf_counter() - self.begin
                answer.status = response.status
                answer.engine = response.headers.get("x-loadslice-engine")
                answer.basis = response.headers.get("x-loadslice-basis")
        except asyncio.CancelledError:
            self._end(answer, *self._unsent())
        except TimeoutError:
            self._end(answer, "failed", "client_timeout")
        except aiohttp.ClientConnectorError:
            self._end(answer, "failed", "connection_refused")
            self._refused()
        except (aiohttp.ClientError, OSError):
            self._end(answer, "failed", "connection_lost")
        else:
            self.refusals, self.refused_since_s = 0, None
            if not whole:
                self._end(answer, "failed", "answer_too_long")
                return
            if self.keep_bodies and answer.status == 200:
                answer.body = body
            elif answer.status != 200:
                answer.told = words(body)
            outcome = STATUS_OUTCOME.get(answer.status, "failed")
            self._end(answer, outcome, None if outcome == "completed" else f"http_{answer.status}")

    def _end(self, answer: Answer, outcome: str, reason: str | None) -> None:
        assert not answer.outcome, f"request {answer.row} ended twice"
        answer.outcome, answer.reason = outcome, reason
        self.on_answer(answer)

    def _refused(self) -> None:
        now_s = time.perf_counter() - self.begin
        if self.refused_since_s is None:
            self.refused_since_s = now_s
        self.refusals += 1
        if self.refusals >= GONE_REFUSALS or (self.refusals > 1 and now_s - self.refused_since_s > GONE_S):
            self.gone = True
            self.stop.set()

    def _interrupt(self, number: int) -> None:
        self.interrupted_by = number
        self.stop.set()


def words(body: bytes) -> str | None:
    """What an error's body says, in one line; ``None``: nothing that can be read."""
    try:
        said = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        said = body[: 4 * WORDS_MAX].decode(errors="replace")
    while isinstance(said, dict):
        said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), None)
    text = " ".join("".join(one if one.isprintable() else " " for one in str(said or "")).split())
    return text[:WORDS_MAX] or None


async def _read(stream: aiohttp.StreamReader, max_bytes: int) -> tuple[bytes, bool]:
    """A body, and whether that is all of it; reading stops once more than ``max_bytes`` came."""
    blocks: list[bytes] = []
    size = 0
    while block := await stream.readany():
        blocks.append(block)
        size += len(block)
        if size > max_bytes:
            return b"".join(blocks), False
    return b"".join(blocks), True
