"""A server elsewhere that gives what is no answer, or nothing at all: somebody is told, nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, Self

import pytest

pytest.importorskip("aiohttp", reason="needs the extra llm")

from loadslice.backends.language import messages as m
from loadslice.backends.language import remote
from loadslice.backends.language.remote_stream import RemoteModel, Stream, TroubleError
from loadslice.spec.errors import InputError

FAST_S = 20.0


class Refusing:
    """A model whose server answers every request with the same trouble."""

    endpoint = SimpleNamespace(host="elsewhere:1")

    def __init__(self, trouble: TroubleError | None) -> None:
        self._trouble = trouble

    async def read(self, _stream: Stream) -> AsyncIterator[list[int]]:
        if self._trouble is not None:
            raise self._trouble
        yield []


def test_measuring_a_server_that_gives_nothing_ends_when_the_breaker_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)

    async def play() -> None:
        order, model, channel = SimpleNamespace(context=64), Refusing(TroubleError("it answers 503")), None
        engine = remote.RemoteEngine(order, model, channel)  # type: ignore[arg-type]
        engine.begin(m.Begin(0, 0, (1, 2, 3), 3, m.Sampling()))
        async with asyncio.timeout(FAST_S):
            with pytest.raises(InputError, match="elsewhere:1 cannot be measured: it answers 503"):
                await engine.next_tokens([0])

    asyncio.run(play())


def test_a_busy_server_fails_a_request_and_opens_no_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)

    async def play() -> None:
        order, model, channel = SimpleNamespace(context=64), Refusing(TroubleError("it answers 429", busy=True)), None
        engine = remote.RemoteEngine(order, model, channel)  # type: ignore[arg-type]
        for row in range(2 * remote.BREAKER_TROUBLES):
            stream = engine.begin(m.Begin(row, 0, (1, 2, 3), 3, m.Sampling()))
            assert stream.task is not None
            async with asyncio.timeout(FAST_S):
                await stream.task
            assert stream.failure == "it answers 429"
        assert not engine.broken.done()

    asyncio.run(play())


class Said:
    """A reply that says one line."""

    status = 200

    def __init__(self, line: bytes) -> None:
        self._line = line

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @property
    def content(self) -> AsyncIterator[bytes]:
        async def lines() -> AsyncIterator[bytes]:
            yield self._line

        return lines()


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices": [{"text": "a", "token_ids": [1e999]}]}',
        b'data: {"choices": ' + b"[" * 200_000,
        b"data: 5",
        b'data: {"choices": [5]}',
    ],
    ids=["a number beyond all numbers", "brackets without end", "a number", "a choice that is none"],
)
def test_what_is_no_answer_is_trouble_and_nothing_else(line: bytes) -> None:
    model: Any = RemoteModel.__new__(RemoteModel)
    model.endpoint = SimpleNamespace(authorization={}, call_s=1.0)
    model.name, model.tells_tokens, model._base = "m", True, "http://elsewhere"
    model.words = SimpleNamespace(pieces=["a"])
    model._session = SimpleNamespace(post=lambda *_, **__: Said(line))

    async def play() -> None:
        stream = Stream(0, 0, [1], 1, m.Sampling(), 4, None)
        with pytest.raises(TroubleError, match="no answer of this interface"):
            _ = [tokens async for tokens in model.read(stream)]

    asyncio.run(play())
