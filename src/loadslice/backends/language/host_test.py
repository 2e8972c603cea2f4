"""Two engines in processes of their own, on a real model: what is handed over goes on as if it had never moved."""

import asyncio
import importlib.util
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadslice.backends.language import messages as m
from loadslice.backends.language.host import LanguageProcess, SharedSlots

TINY = Path(__file__).parents[4] / "tests" / "tiny_model" / "tiny.gguf"
tiny = SimpleNamespace(**runpy.run_path(str(TINY.with_name("language.py"))))
pytestmark = [
    pytest.mark.skipif(
        not TINY.is_file() or importlib.util.find_spec("openvino_genai") is None,
        reason="needs the extra llm, and tests/tiny_model",
    ),
    pytest.mark.live,
]

PROMPT = tuple(tiny.encode("up c:"))
SLOT_BYTES = 1 << 20


class Talk:
    """An engine, and what it has said."""

    def __init__(self, slots: SharedSlots, **options: str | float | bool) -> None:
        load = m.Load(
            model=str(TINY),
            backend="openvino-paged",
            device="CPU",
            threads=1,
            kv_blocks=64,
            cached_blocks=8,
            options=options,
            slots=slots.slots,
            context=1024,
            measure=False,
        )
        self.said: asyncio.Queue[m.FromEngine | None] = asyncio.Queue()
        self.process = LanguageProcess("e", load, slots, self.said.put_nowait, lambda: self.said.put_nowait(None))

    async def hear(self, kind: type) -> m.FromEngine:
        async with asyncio.timeout(120):
            while True:
                heard = await self.said.get()
                if isinstance(heard, kind):
                    return heard
                assert isinstance(heard, m.Cached), heard

    async def step(self, epoch: int, row: int, upto: int, *, samples: bool = True) -> list[int]:
        self.process.send(m.Step(epoch, ((row, upto, samples),)))
        stepped = await self.hear(m.Stepped)
        assert isinstance(stepped, m.Stepped)
        assert stepped.epoch == epoch
        return [one.token for one in stepped.drawn]

    async def greedy(self, row: int, length: int, count: int) -> list[int]:
        tokens: list[int] = []
        for more in range(count):
            tokens += await self.step(100 + more, row, length + more)
        return tokens


async def play(raw: bool) -> None:
    slots = SharedSlots(2, SLOT_BYTES)
    prefill, decode = Talk(slots), Talk(slots)
    try:
        for engine in (prefill, decode):
            engine.process.start()
        ready = [await engine.hear(m.Ready) for engine in (prefill, decode)]
        assert isinstance(ready[0], m.Ready)
        assert isinstance(ready[1], m.Ready)
        assert ready[0].layout == ready[1].layout
        n = len(PROMPT)
        prefill.process.send(m.Begin(0, 1, PROMPT, n, m.Sampling()))
        whole = await prefill.greedy(0, n, 12)
        # The same prompt in pieces, handed over after its first token.
        prefill.process.send(m.Begin(1, 2, PROMPT, n, m.Sampling()))
        assert await prefill.step(1, 1, 2, samples=False) == []
        first = await prefill.step(2, 1, n)
        prefill.process.send(m.Export(1, 2, 5, slot=1, raw=raw))
        exported = await prefill.hear(m.Exported)
        assert isinstance(exported, m.Exported)
        assert exported.tokens == n
        decode.process.send(m.Begin(1, 2, (*PROMPT, *first), n, m.Sampling()))
        decode.process.send(m.Import(1, 2, 4, slot=1, raw=raw))
        broken = await decode.hear(m.Broken)
        assert isinstance(broken, m.Broken)
        assert broken.reason == "the slot holds another hand-over"
        decode.process.send(m.Import(1, 2, 5, slot=1, raw=raw))
        assert isinstance(await decode.hear(m.Imported), m.Imported)
        rest = await decode.greedy(1, n + 1, 11)
    finally:
        for engine in (prefill, decode):
            engine.process.close()
        slots.close()
    assert first + rest == whole == tiny.encode(tiny.spelled("c", 1, 12))


@pytest.mark.parametrize("raw", [True, False])
def test_a_prompt_that_is_handed_over_goes_on_with_the_same_tokens(raw: bool) -> None:
    asyncio.run(play(raw))
