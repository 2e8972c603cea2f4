"""A server elsewhere as one engine of whole requests: behind the same desk, router, deadlines and metrics as any other.

Rules of this file: sequences advance as their tokens come, so a step is answered with who has one and who is late;
nobody waits for another's first token. A request that the server refuses is lost alone. One that breaks off is asked
for again from the token where it broke, a few times. Trouble after trouble without a token between opens the breaker:
the process ends, its server routes around it, starts it anew after a pause that doubles, and takes it back when the
model is there and gives a token.
"""

import asyncio
import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from loadslice.backends.language import messages as m
from loadslice.backends.language.base import KvLayout
from loadslice.backends.language.calibrate import measured_costs
from loadslice.backends.language.gguf import tokenizer_folder
from loadslice.backends.language.measured import Measured
from loadslice.backends.language.remote_stream import RefusedError, RemoteModel, Stream, TroubleError
from loadslice.backends.language.words import Words
from loadslice.backends.remote_http import Endpoint, Known
from loadslice.spec.errors import InputError

KIND = "remote-openai"
OPTIONS: Known = {}
ATTEMPTS = 3
"""Times that one sequence is asked for without a token between."""
PAUSE_S = 0.2
"""Before the second, doubled with each more."""
BREAKER_TROUBLES = 3
"""In a row, over all sequences."""
GATHER_S = 0.004
"""From the first token of a step to its answer: tokens of one step over there come close together."""
NOTHING_S = 0.25
"""A step in which nothing comes is answered after this, so that its engine is not taken for hanging."""


class RemoteEngine:
    """Obeys one owner. Everything runs on one event loop.

    Args:
        order: What to be.
        model: Checked.
        channel: To the owner.
    """

    def __init__(self, order: m.Load, model: RemoteModel, channel: socket.socket) -> None:
        self._context = order.context
        self._model = model
        self._channel = channel
        self._streams: dict[int, Stream] = {}
        self._step: m.Step | None = None
        self._step_began_s = 0.0
        self._news_s = 0.0
        """When the first token of this step came; 0: none has."""
        self._timer: asyncio.TimerHandle | None = None
        self._troubles = 0
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set when the breaker opens; with why."""

    def obey(self, message: m.ToEngine) -> None:
        """Do what one message says."""
        if isinstance(message, m.Step):
            self._step, self._step_began_s = message, asyncio.get_running_loop().time()
            self._look()
        elif isinstance(message, m.Begin):
            self.begin(message)
        elif isinstance(message, m.Release):
            stream = self._streams.get(message.row)
            if stream is not None and stream.number == message.number:
                self.release(message.row)
                self._look()
        elif isinstance(message, m.Export | m.Import):
            what = "export" if isinstance(message, m.Export) else "import"
            place = (message.row, message.number, message.epoch, message.slot)
            self._say(m.Broken(what, *place, "this engine keeps its KV to itself"))  # type: ignore[arg-type]
        elif isinstance(message, m.Ping):
            self._say(m.Pong(message.number))

    def begin(self, begin: m.Begin) -> Stream:
        """Have a sequence continued over there."""
        self.release(begin.row)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + begin.left_ms / 1e3 if begin.left_ms else None
        new_max = begin.new_max or self._context - begin.prompt
        tokens = list(begin.tokens)
        stream = Stream(begin.row, begin.number, tokens, begin.prompt, begin.sampling, new_max, until_s)
        stream.task = loop.create_task(self._follow(stream))
        self._streams[begin.row] = stream
        return stream

    def release(self, row: int) -> None:
        """Forget a sequence; its connection is closed, which tells the server."""
        stream = self._streams.pop(row, None)
        if stream is not None and stream.task is not None:
            stream.task.cancel()

    async def _follow(self, stream: Stream) -> None:
        """Read a sequence until it has all its tokens, asking again where it breaks off."""
        attempt, why = 0, ""
        while stream.left > 0 and attempt < ATTEMPTS:
            before = len(stream.tokens)
            after_s = 0.0
            try:
                async for tokens in self._model.read(stream):
                    is_too_much = len(tokens) > stream.left
                    for token in tokens[: stream.left]:
                        stream.add(token)
                    if tokens:
                        self._troubles = 0
                        self._look()
                    if is_too_much or any(token in stream.sampling.stop_tokens for token in tokens):
                        return
                why = "it ends answers early"
            except RefusedError as refused:
                why = str(refused)
                break
            except TroubleError as trouble:
                if stream.is_overdue(asyncio.get_running_loop().time()):
                    return
                why, after_s = str(trouble), trouble.after_s
                self._troubles += not trouble.busy
                if self._troubles >= BREAKER_TROUBLES:
                    if not self.broken.done():
                        self.broken.set_result(why)
                    return  # not lost: whoever takes over its engine's work goes on with it
            attempt = 0 if len(stream.tokens) > before else attempt + 1
            if stream.left > 0 and attempt < ATTEMPTS:
                await asyncio.wait((self.broken,), timeout=max(after_s, PAUSE_S * 2**attempt))
        if stream.left > 0:
            stream.failure = why
            self._look()

    # -- steps

    def _look(self) -> None:
        """Answer the step if it is time to; else see to it that somebody looks again."""
        if self._step is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        live = [self._streams[row] for row, _, samples in self._step.rows if samples and row in self._streams]
        news = [stream for stream in live if stream.has_news]
        going_on = [stream for stream in live if stream.has_begun]
        loop = asyncio.get_running_loop()
        is_first = any(not stream.has_begun for stream in news)
        if is_first or not live or (news and all(stream.has_news for stream in going_on)):
            self._answer()
            return
        due_s = self._step_began_s + NOTHING_S
        if news:
            self._news_s = self._news_s or loop.time()
            due_s = self._news_s + GATHER_S
        if due_s <= loop.time():
            self._answer()
        else:
            self._timer = loop.call_at(due_s, self._look)

    def _answer(self) -> None:
        step, self._step, self._news_s = self._step, None, 0.0
        assert step is not None
        drawn, late, lost = [], [], []
        for row, _, samples in step.rows:
            stream = self._streams.get(row)
            if not samples:
                continue
            if stream is None or not stream.has_news:
                late.append(row)
            elif stream.unread:
                stream.has_begun = True
                drawn.append(m.Drawn(row, stream.number, stream.unread.popleft()))
            else:
                lost.append((row, stream.failure))
        took_ns = round((asyncio.get_running_loop().time() - self._step_began_s) * 1e9)
        self._say(m.Stepped(step.epoch, tuple(drawn), took_ns, 0, tuple(late), tuple(lost)))

    def _say(self, message: m.FromEngine) -> None:
        self._channel.send(m.encoder.encode(message))

    # -- what `measured.Measured` asks for

    async def next_tokens(self, rows: Sequence[int]) -> None:
        """Wait until each of them has one more token, and take it.

        Raises:
            InputError: One cannot go on.
        """
        for row in rows:
            stream = self._streams[row]
            assert stream.task is not None
            while not stream.has_news and not stream.task.done():
                await asyncio.wait((stream.task,), timeout=0.001)
            if not stream.unread:
                why = stream.failure or (self.broken.result() if self.broken.done() else "its answer ends")
                raise InputError(f"{KIND}: {self._model.endpoint.host} cannot be measured: {why}.")
            stream.unread.popleft()


class _Waiting:
    """The engine as a thread beside its loop sees it, for `Measured`."""

    def __init__(self, engine: RemoteEngine, loop: asyncio.AbstractEventLoop, vocabulary: int) -> None:
        self._engine, self._loop, self.vocabulary = engine, loop, vocabulary
        self._rows: dict[int, int] = {}

    def begin(self, sequence: int, tokens: Sequence[int], sampling: m.Sampling) -> None:
        async def begin() -> None:
            row = self._rows.setdefault(sequence, len(self._rows))
            self._engine.begin(m.Begin(row, row, tuple(tokens), len(tokens), sampling))

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result()

    def next_tokens(self, sequences: Sequence[int]) -> None:
        rows = [self._rows[sequence] for sequence in sequences]
        asyncio.run_coroutine_threadsafe(self._engine.next_tokens(rows), self._loop).result()

    def release(self, sequence: int) -> None:
        async def release() -> None:
            self._engine.release(self._rows[sequence])

        asyncio.run_coroutine_threadsafe(release(), self._loop).result()


async def _serve(order: m.Load, channel: socket.socket) -> str:
    """Serve until the breaker opens; returns why."""
    loop = asyncio.get_running_loop()
    endpoint = Endpoint(order.options, KIND, OPTIONS)
    words = Words(tokenizer_folder(Path(order.model)))
    model = RemoteModel(endpoint, str(order.options.get("model", Path(order.model).stem)), words)
    await model.check(order.context)
    engine = RemoteEngine(order, model, channel)
    layout = m.Layout(
        model_sha256=hashlib.sha256(f"{endpoint.host} {model.name}".encode()).hexdigest(),
        layers=0,
        kv_heads=0,
        head_dim=0,
        dtype="float32",
        has_neutral=False,
        raw=f"kept by {endpoint.host}",
        raw_bytes_per_block=0,
    )
    known = KvLayout(0, 0, 0, order.block, "", 0, has_neutral=False, sequences=order.seats)
    seen = Measured(_Waiting(engine, loop, len(words.pieces)), known, order.kv_blocks)
    costs = await asyncio.to_thread(measured_costs, seen, layout, order.context, measure=order.measure)  # type: ignore[arg-type]  # what is measured, it has
    channel.send(m.encoder.encode(m.Ready(layout, len(words.pieces), *costs, 0)))

    def hear() -> None:
        raw = channel.recv(m.MESSAGE_BYTES_MAX)
        message = m.to_engine.decode(raw) if raw else m.Stop()
        if isinstance(message, m.Stop):
            os._exit(0)
        engine.obey(message)

    loop.add_reader(channel.fileno(), hear)
    return await engine.broken


def serve(order: m.Load, channel: socket.socket) -> None:
    """The life of this engine's process, from its first message on.

    Raises:
        InputError: There is no such model there.
    """
    why = asyncio.run(_serve(order, channel))
    raise SystemExit(f"{KIND}: given up for now: {why}")
