"""What live tests of language models share: a server on a loopback port with a client, on the tiny model or another."""

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_model.language import spelled

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.books import faults
from loadslice.serve.language.server import LanguageServer
from loadslice.spec.files import resolve_model
from loadslice.spec.language import Language, LanguageEngine, Link, Router, StepCost, check_language

TINY = Path(__file__).parents[1] / "tiny_model" / "tiny.gguf"
marks = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("openvino_genai", "openai")),
        reason="needs the extra llm and the package openai",
    ),
    pytest.mark.skipif(not TINY.is_file(), reason="needs tests/tiny_model/tiny.gguf; train.py beside it writes it"),
    pytest.mark.live,
]

NAME = "tiny"
COST = StepCost(step_ms=2, token_us=20, row_us=100)
LONG = f"up c:{spelled('c', 1, 56)}"
"""60 tokens; right is `spelled("g", 1, ...)`."""
EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
"""Has OpenVINO compute with activations as they are, as other runtimes do."""


def said(engines: dict[str, dict[str, Any]], policy: str = "always-remote", **changes: Any) -> Language:
    common: dict[str, Any] = {"backend": "openvino-paged", "cost": COST, "seats": 4, "kv_tokens": 2048}
    links = [Link(from_="prefill", to="decode", slots=2)] if "prefill" in engines else []
    return check_language(
        Language(
            version=1,
            language=NAME,
            model=str(TINY),
            context=512,
            engines={name: LanguageEngine(**{**common, **one}) for name, one in engines.items()},
            links=links,
            router=Router(policy=policy),  # type: ignore[arg-type]
            **changes,
        ),
        "test",
    )


def split(prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **changes: Any) -> Language:
    return said({"prefill": {"roles": ("prefill",), **(prefill or {})}, "decode": decode or {}}, **changes)


@contextlib.asynccontextmanager
async def served(said: Language) -> AsyncIterator[tuple[LanguageServer, Any]]:
    """A server and a client of it; in the end it holds nothing."""
    import openai

    server = LanguageServer(said, resolve_model(said.model, Path()), port=0)
    await server.start()
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
    try:
        yield server, client
        await until(lambda: int(server.state.counters[c.C_IN_SYSTEM]) == 0)
        nothing_is_held(server)
    finally:
        await client.close()
        server.hurry()
        await server.stop()


def play(scene: Callable[[LanguageServer, Any], Awaitable[None]], said: Language) -> None:
    """Run a scene on a server of its own."""

    async def whole() -> None:
        async with served(said) as (server, client):
            await scene(server, client)

    asyncio.run(whole())


async def until(holds: Callable[[], bool], within_s: float = 120) -> None:
    """Let the loop turn until something is true."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=0.02)


def nothing_is_held(server: LanguageServer) -> None:
    """The books balance and are empty."""
    assert faults(server.tables, server.state) == []
    assert server.state.counters[c.C_IN_SYSTEM] == 0
    assert not server.state.engines[:, c.N_BLOCKS_USED].any()
    assert not server.state.slots.any()


async def streamed(client: Any, prompt: Any, tokens: int = 12, *, model: str = NAME, **more: Any) -> str:
    """Text of a greedy answer that was read bit by bit."""
    text = ""
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, **more}
    async for chunk in await client.completions.create(**asked):
        text += chunk.choices[0].text
    return text
