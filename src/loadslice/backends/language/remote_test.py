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
    """A reply that says lines."""

    status = 200

    def __init__(self, *lines: bytes) -> None:
        self._lines = lines

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    @property
    def content(self) -> AsyncIterator[bytes]:
        async def lines() -> AsyncIterator[bytes]:
            for line in self._lines:
                yield line

        return lines()


def model_of(*lines: bytes, reply_bytes_max: int = 1 << 30) -> Any:
    """A model whose server answers every request with these lines."""
    model: Any = RemoteModel.__new__(RemoteModel)
    model.endpoint = SimpleNamespace(
        authorization={}, call_s=1.0, reply_bytes_max=reply_bytes_max, kind="remote-openai", host="elsewhere"
    )
    model.name, model.tells_tokens, model._base = "m", True, "http://elsewhere"
    model.words = SimpleNamespace(pieces=[b"a", b" b"], specials=frozenset(), encode=lambda text: [0] * len(text))
    model._session = SimpleNamespace(post=lambda *_, **__: Said(*lines))
    return model


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices": [{"text": "a", "token_ids": [1e999]}]}',
        b'data: {"choices": ' + b"[" * 200_000,
        b"data: 5",
        b'data: {"choices": [5]}',
        b'data: {"choices": [{"text": "a", "token_ids": [0.9]}]}',
        b'data: {"choices": [{"text": "a", "token_ids": [true]}]}',
        b'data: {"choices": [{"text": "a", "token_ids": [2]}]}',
        b'data: {"choices": [{"text": "a", "token_ids": "0"}]}',
        b'data: {"choices": [{"text": {"is": "none"}}]}',
        b'data: {"choices": [{"text": "a", "index": 1}]}',
    ],
    ids=[
        *("a number beyond all numbers", "brackets without end", "a number", "a choice that is none"),
        *("a part of a token", "a truth", "a token beyond all", "text for tokens", "no text", "a choice too many"),
    ],
)
def test_what_is_no_answer_is_trouble_and_nothing_else(line: bytes) -> None:
    model = model_of(line)

    async def play() -> None:
        stream = Stream(0, 0, [1], 1, m.Sampling(), 4, None)
        with pytest.raises(TroubleError, match="no answer of this interface"):
            _ = [tokens async for tokens in model.read(stream)]

    asyncio.run(play())


TOKEN = b'data: {"choices": [{"text": "a", "token_ids": [0]}]}'
LAST = b'data: {"choices": [{"text": "", "finish_reason": "length"}]}'


def test_an_answer_longer_than_is_taken_is_given_up() -> None:
    model = model_of(*[TOKEN] * 8, LAST, reply_bytes_max=5 * len(TOKEN))

    async def play() -> None:
        with pytest.raises(TroubleError, match="reply_mb_max"):
            _ = [tokens async for tokens in model.read(Stream(0, 0, [1], 1, m.Sampling(), 40, None))]
        short = model_of(*[TOKEN] * 4, LAST, reply_bytes_max=5 * len(TOKEN) + len(LAST))
        assert [one async for one in short.read(Stream(0, 0, [1], 1, m.Sampling(), 40, None))] == [[0]] * 4 + [[]]

    asyncio.run(play())


def test_a_server_that_gives_more_than_was_asked_for_is_read_no_further() -> None:
    model = model_of(*[TOKEN] * 1000, LAST)

    async def play() -> None:
        engine = remote.RemoteEngine(SimpleNamespace(context=64), model, None)  # type: ignore[arg-type]
        stream = engine.begin(m.Begin(0, 0, (1,), 1, m.Sampling(), new_max=3))
        assert stream.task is not None
        await stream.task
        assert list(stream.unread) == [0, 0, 0]
        assert stream.failure == ""

    asyncio.run(play())


@pytest.mark.parametrize(
    ("text", "is_ours"), [("a", True), (" b", False), ("c", False), ("", True)], ids=["ours", "another", "none", "held"]
)
def test_a_server_of_another_tokenizer_is_refused_when_it_is_tried(text: str, is_ours: bool) -> None:
    model = model_of(TOKEN.replace(b'"a"', f'"{text}"'.encode()), LAST)

    async def play() -> None:
        if is_ours:
            await model._probe("there")
            return
        with pytest.raises(InputError, match=r"not one tokenizer\. Give both sides the same model"):
            await model._probe("there")

    asyncio.run(play())
