"""Sends rows as offline work and hears what the server says to it."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from loadslice.app.batch_journal import Journal, Result, outputs_of
from loadslice.app.batch_pace import Pace
from loadslice.app.batch_rows import BadRow, Inputs, Row
from loadslice.evaluate.interrupt import first_signal_calls
from loadslice.spec.errors import InputError

ANSWER_BYTES_MAX = 256 * 1024 * 1024
ERROR_TEXT_MAX = 300
REFUSED = (429, 503)
"""Nothing was computed; the row waits for the server's hint and is sent again, as often as it takes."""
TRIED_AGAIN = (502, 504)
"""It was tried and failed, which another time or another engine may mend."""
NOT_ALLOWED = (401, 403)


@dataclass(frozen=True, slots=True)
class Asked:
    """How rows are to be sent."""

    infer_url: str
    raw_url: str
    headers: dict[str, str]
    concurrency: int
    attempts: int
    timeout_s: float
    patience_s: float
    """Give up when no row has ended for this long."""


@dataclass(slots=True)
class Told:
    """What a run was told."""

    sent: int = 0
    refusals: int = 0
    open_max: int = 0
    interrupted_by: int | None = None
    """Number of the signal that ended it early."""
    gave_up: str | None = None
    """Why rows are left, unless it was interrupted."""


@dataclass(slots=True)
class _Try:
    row: Row
    attempts: int = 0
    """That the server began with."""


@dataclass(slots=True)
class Sender:
    """One run over a file."""

    inputs: Inputs
    journal: Journal
    asked: Asked
    on_row: Callable[[], None] = lambda: None
    told: Told = field(default_factory=Told)
    _again: deque[_Try] = field(default_factory=deque)
    _open: set["asyncio.Task[None]"] = field(default_factory=set)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _progress_s: float = 0.0
    _last_error: str = ""
    _pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self._pace = Pace(self.asked.concurrency)

    async def run(self) -> Told:
        """Send everything that is not finished yet.

        Raises:
            InputError: The journal cannot be written, or the server does not let us in.
        """
        rows = (row for row in self.inputs if row.number not in self.journal)
        connector = aiohttp.TCPConnector(limit=self.asked.concurrency)
        timeout = aiohttp.ClientTimeout(total=self.asked.timeout_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._progress_s = time.perf_counter()
            with first_signal_calls(self._interrupted):
                try:
                    await self._send_all(rows, session)
                finally:
                    for task in self._open:
                        task.cancel()
                    await asyncio.gather(*self._open, return_exceptions=True)
        return self.told

    async def _send_all(self, rows: Iterator[Row | BadRow], session: aiohttp.ClientSession) -> None:
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            while not self._stop.is_set():
                exhausted = self._launch(rows, session)
                if exhausted and not self._open and not self._again:
                    return
                if self._is_out_of_patience():
                    return
                wait_s = min(1.0, self._pace.wait_s(time.perf_counter()) or 1.0)
                done, _ = await asyncio.wait(
                    {stopping, *self._open}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done - {stopping}:
                    await task  # raises what must not be lost
        finally:
            stopping.cancel()

    def _launch(self, rows: Iterator[Row | BadRow], session: aiohttp.ClientSession) -> bool:
        """Send what may be sent now; returns whether the file has no more rows."""
        while self._pace.may_send(len(self._open), time.perf_counter()):
            if self._again:
                one = self._again.popleft()
            else:
                row = next(rows, None)
                if row is None:
                    return True
                if isinstance(row, BadRow):
                    self._end(Result(row.number, row.place, outcome="failed", error=row.error))
                    continue
                one = _Try(row)
            task = asyncio.get_running_loop().create_task(self._send(one, session))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            self.told.open_max = max(self.told.open_max, len(self._open))
        return False

    def _is_out_of_patience(self) -> bool:
        waited_s = time.perf_counter() - self._progress_s
        if waited_s <= self.asked.patience_s:
            return False
        self.told.gave_up = f"no row ended for {waited_s:.0f} s ({self._last_error or 'the server answers nothing'})"
        return True

    async def _send(self, one: _Try, session: aiohttp.ClientSession) -> None:
        self.told.sent += 1
        headers = {**self.asked.headers, **one.row.headers, "x-request-id": f"row-{one.row.number}"}
        if one.attempts:
            headers["x-loadslice-attempt"] = str(one.attempts + 1)
        url = self.asked.raw_url if one.row.raw else self.asked.infer_url
        try:
            async with session.post(url, data=one.row.body, headers=headers, allow_redirects=False) as response:
                body = bytearray()
                while len(body) <= ANSWER_BYTES_MAX and (part := await response.content.readany()):
                    body += part
                self._hear(one, response.status, response.headers, bytes(body))
        except aiohttp.ClientConnectorError:
            self._come_back(one, "nobody answers there", None)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            text = "no answer in time" if isinstance(error, TimeoutError) else "the connection was lost"
            self._try_again(one, None, text)

    def _hear(self, one: _Try, status: int, headers: Mapping[str, str], body: bytes) -> None:
        if status == 200:
            self._completed(one, headers.get("x-loadslice-engine"), body)
        elif status in REFUSED:
            self.told.refusals += 1
            self._come_back(one, f"{status} {_text(body)}", _hint_s(headers))
        elif status in NOT_ALLOWED:
            raise InputError(f"the server answers {status}: {_text(body)}. Give a token in LOADSLICE_TOKEN.")
        elif status in TRIED_AGAIN:
            self._try_again(one, status, _text(body))
        else:
            self._failed(one, status, _text(body))

    def _completed(self, one: _Try, engine: str | None, body: bytes) -> None:
        self._pace.completed()
        if len(body) > ANSWER_BYTES_MAX:
            self._failed(one, 200, f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
            return
        row = one.row
        try:
            kept = outputs_of(body)
        except ValueError as error:
            self._failed(one, 200, str(error))
            return
        self._end(
            Result(row.number, row.place, row.id, "completed", 200, engine=engine, attempts=one.attempts + 1, **kept)
        )

    def _come_back(self, one: _Try, text: str, hint_s: float | None) -> None:
        self._last_error = text
        self._pace.refused(len(self._open) - 1, time.perf_counter(), hint_s)
        self._again.append(one)

    def _try_again(self, one: _Try, status: int | None, text: str) -> None:
        one.attempts += 1
        if one.attempts >= self.asked.attempts:
            one.attempts -= 1
            self._failed(one, status, text)
            return
        self._come_back(one, text, None)

    def _failed(self, one: _Try, status: int | None, text: str) -> None:
        row = one.row
        self._end(Result(row.number, row.place, row.id, "failed", status, text, attempts=one.attempts + 1))

    def _end(self, result: Result) -> None:
        self.journal.add(result)
        self._progress_s = time.perf_counter()
        self.on_row()

    def _interrupted(self, number: int) -> None:
        self.told.interrupted_by = number
        self._stop.set()


def _text(body: bytes) -> str:
    """The server's own words: its ``error``, or the beginning of whatever it sent."""
    text = body[:4096].decode(errors="replace")
    with contextlib.suppress(ValueError):
        said = msgspec.json.decode(body, type=dict[str, object])
        text = str(said.get("error", text))
    return "".join(character if character.isprintable() else " " for character in text)[:ERROR_TEXT_MAX].strip()


def _hint_s(headers: Mapping[str, str]) -> float | None:
    """When to come back: the finer hint, else ``Retry-After`` in seconds. A date is not read: clocks differ."""
    for name, unit in (("x-loadslice-retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 8:
            return int(text) / unit
    return None
