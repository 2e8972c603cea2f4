"""A server elsewhere as an engine: our own, and one that breaks off, refuses, hangs, is slow or talks nonsense."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from tests.live.language_scenes import COST, EXACT, NAME, TINY, marks, served, streamed, until

from loadslice.policy.tokens import columns as c
from loadslice.serve.language.server import LanguageServer
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language, LanguageEngine, Router, check_language

pytestmark = marks

PROMPTS = ("up c:", "down q:", "roll:", "up k: l m n")


def said(engines: dict[str, dict[str, Any]], **changes: Any) -> Language:
    common: dict[str, Any] = {"cost": COST, "seats": 8, "kv_tokens": 8192, "step_tokens": 4096}
    language = Language(
        version=1,
        language=NAME,
        model=str(TINY),
        context=512,
        engines={name: LanguageEngine(**{**common, **one}) for name, one in engines.items()},
        router=Router(policy="always-local"),
        **changes,
    )
    return check_language(language, "test")


def local() -> dict[str, Any]:
    return {"backend": "openvino-paged", "options": EXACT}


def remote(url: str, **options: Any) -> dict[str, Any]:
    return {"backend": "remote-openai", "options": {"url": url, "model": "tiny", **options}}


def test_our_own_server_is_relayed_token_by_token() -> None:
    asyncio.run(_relayed())


async def _relayed() -> None:
    async with (
        served(said({"all": local()})) as (upstream, direct),
        served(said({"there": remote(upstream.url)})) as (server, client),
    ):
        wanted = await asyncio.gather(*(streamed(direct, prompt, 24) for prompt in PROMPTS))
        assert await asyncio.gather(*(streamed(client, prompt, 24) for prompt in PROMPTS)) == wanted
        assert len(set(wanted)) > 1
        for way in (
            {"max_tokens": 9, "extra_body": {"return_token_ids": True}},
            {"max_tokens": 40, "stop": " h"},
            {"max_tokens": 12, "temperature": 1, "seed": 4, "n": 2},
        ):
            mine, theirs = [
                await one.completions.create(**{"model": "tiny", "prompt": PROMPTS[0], "temperature": 0, **way})
                for one in (client, direct)
            ]
            assert mine.choices == theirs.choices, way
            assert mine.usage.completion_tokens == theirs.usage.completion_tokens
        asked = [{"role": "user", "content": "What is the capital of Peru?"}]
        mine, theirs = [
            await one.chat.completions.create(model="tiny", messages=asked, temperature=0, max_tokens=30)
            for one in (client, direct)
        ]
        assert mine.choices == theirs.choices
        assert mine.usage == theirs.usage
        # A client that vanishes is gone over there too.
        stream = await client.completions.create(
            model="tiny", prompt="roll:", max_tokens=480, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: int(server.state.counters[c.C_IN_SYSTEM]) == 0)
        await until(lambda: int(upstream.state.counters[c.C_IN_SYSTEM]) == 0, 5)


def following(tokens: list[int]) -> int:
    """What the stand-in takes for the likeliest next token: a letter, by all that came before."""
    return 100 + (sum(tokens) * 31 + len(tokens)) % 26


class StandIn:
    """A server whose answers are known, and which can be made to misbehave."""

    def __init__(self) -> None:
        self.plans: list[str] = []
        """What it does with the next requests, in turn; then it behaves."""
        self.always = ""
        self.heads: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.go_on = asyncio.Event()
        self.tells = True
        self.url = ""

    async def models(self, _: web.Request) -> web.Response:
        if self.always == "down":
            return web.Response(status=500, text="down")
        return web.json_response({"object": "list", "data": [{"id": "tiny", "max_model_len": 600}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        with contextlib.suppress(ConnectionResetError):  # whom it answers has gone
            return await self._complete(request)
        return web.Response(status=499)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if "return_token_ids" in asked and not self.tells:
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        is_trial = asked["max_tokens"] == 1 and "x-loadslice-deadline-ms" not in request.headers
        plan = self.always or ("" if is_trial or not self.plans else self.plans.pop(0))
        self.heads.append({key.lower(): value for key, value in request.headers.items()})
        self.bodies.append(asked)
        if plan in ("down", "429", "400"):
            status = 500 if plan == "down" else int(plan)
            return web.json_response({"error": {"message": "no"}}, status=status, headers={"retry-after": "0"})
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        if plan == "waits":
            await self.go_on.wait()
        tokens = list(asked["prompt"])
        for at in range(asked["max_tokens"]):
            if plan == "breaks" and at == 5:
                assert request.transport is not None
                request.transport.abort()
                return reply
            if plan == "stands" and at == 5:
                await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=30)
            if plan == "nonsense" and at == 5:
                await reply.write(b"data: {what is this\n\n")
            tokens.append(following(tokens))
            choice: dict[str, Any] = {"index": 0, "text": letters(tokens[-1:]), "finish_reason": None}
            if self.tells:
                choice["token_ids"] = tokens[-1:]
            await reply.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            if plan == "error" and at == 4:
                await reply.write(b'data: {"error": {"message": "out of memory"}}\n\n')
                return reply
        last = {"index": 0, "text": "", "finish_reason": "length"}
        await reply.write(b"data: " + json.dumps({"choices": [last]}).encode() + b"\n\ndata: [DONE]\n\n")
        return reply


def letters(tokens: list[int]) -> str:
    """Tokens 100 to 125 are the letters a to z of this model's tokenizer."""
    return "".join(chr(ord("a") + token - 100) for token in tokens)


def wanted(prompt: list[int], count: int) -> str:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return letters(tokens[len(prompt) :])


@contextlib.asynccontextmanager
async def standing_in() -> AsyncIterator[StandIn]:
    stand_in = StandIn()
    app = web.Application()
    app.router.add_get("/v1/models", stand_in.models)
    app.router.add_post("/v1/completions", stand_in.complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield stand_in
    finally:
        await runner.cleanup()


def play(
    scene: Callable[[StandIn, LanguageServer, Any], Awaitable[None]],
    *,
    engines: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> None:
    async def whole() -> None:
        async with standing_in() as stand_in:
            stand_in.tells = options.pop("tells", True)
            both = {"there": remote(stand_in.url, **options), **(engines or {})}
            async with served(said(both)) as (server, client):
                await scene(stand_in, server, client)

    asyncio.run(whole())


PROMPT = [70, 71, 72]


@pytest.mark.parametrize("tells", [True, False])
def test_what_breaks_off_is_taken_up_where_it_broke(tells: bool) -> None:
    async def scene(stand_in: StandIn, server: LanguageServer, client: Any) -> None:
        for plan in ("", "breaks", "nonsense", "error", "429", "down"):
            await one(stand_in, client, plan)
        assert server.starts == {"there": 1}

    async def one(stand_in: StandIn, client: Any, plan: str) -> None:
        stand_in.plans = [plan, plan] if plan else []
        assert await streamed(client, PROMPT, 24) == wanted(PROMPT, 24)
        assert await streamed(client, PROMPT, 24) == wanted(PROMPT, 24)
        if plan in ("breaks", "nonsense", "error"):
            assert [len(body["prompt"]) for body in stand_in.bodies[-4:-1]] == [3, 8, 13]

    play(scene, tells=tells)


def test_a_request_that_is_refused_over_there_fails_alone_and_says_why() -> None:
    async def scene(stand_in: StandIn, server: LanguageServer, client: Any) -> None:
        import openai

        stand_in.plans = ["waits", "400"]
        other = asyncio.ensure_future(streamed(client, PROMPT, 24))
        await until(lambda: len(stand_in.plans) == 1)
        with pytest.raises(openai.APIStatusError, match="it answers 400") as refused:
            await streamed(client, PROMPT, 24)
        assert refused.value.status_code == 502
        stand_in.go_on.set()
        assert await other == wanted(PROMPT, 24)
        assert server.starts == {"there": 1}

    play(scene)


def test_nobody_waits_for_anothers_first_token() -> None:
    async def scene(stand_in: StandIn, server: LanguageServer, client: Any) -> None:
        stand_in.plans = ["waits"]
        slow = asyncio.ensure_future(streamed(client, PROMPT, 24))
        await until(lambda: not stand_in.plans)
        async with asyncio.timeout(10):
            assert await streamed(client, PROMPT, 200) == wanted(PROMPT, 200)
        assert not slow.done()
        stand_in.go_on.set()
        assert await slow == wanted(PROMPT, 24)

    play(scene)


def test_a_deadline_is_told_and_kept_whatever_happens_over_there() -> None:
    async def scene(stand_in: StandIn, server: LanguageServer, client: Any) -> None:
        import openai

        stand_in.plans = ["stands"]
        headers = {"x-loadslice-deadline-ms": "700"}
        with pytest.raises(openai.APIError, match="deadline"):
            async with asyncio.timeout(5):
                await streamed(client, PROMPT, 24, extra_headers=headers)
        assert 0 < int(stand_in.heads[-1]["x-loadslice-deadline-ms"]) <= 700
        assert await streamed(client, PROMPT, 24) == wanted(PROMPT, 24)

    play(scene)


def test_a_server_that_is_down_is_left_alone_until_it_is_back() -> None:
    async def scene(stand_in: StandIn, server: LanguageServer, client: Any) -> None:
        import openai

        stand_in.always = "down"
        with pytest.raises(openai.APIStatusError) as refused:
            await asyncio.gather(*(streamed(client, PROMPT, 24) for _ in range(4)))
        assert refused.value.status_code == 502
        await until(lambda: bool(server.state.engines[0, c.N_DOWN]))
        with pytest.raises(openai.APIStatusError) as refused:
            await streamed(client, PROMPT, 24)
        assert (refused.value.status_code, refused.value.code) == (503, "no_engine")
        stand_in.always = ""
        await until(lambda: not server.state.engines[0, c.N_DOWN])
        assert server.starts["there"] >= 2
        assert await streamed(client, PROMPT, 24) == wanted(PROMPT, 24)

    play(scene)


def test_what_a_server_that_is_down_cannot_do_an_engine_here_does() -> None:
    async def scene(stand_in: StandIn, server: LanguageServer, client: Any) -> None:
        stand_in.always = "down"
        ends = await asyncio.gather(*(streamed(client, prompt, 24) for prompt in PROMPTS * 2))
        await until(lambda: bool(server.state.engines[0, c.N_DOWN]))
        assert ends == await asyncio.gather(*(streamed(client, prompt, 24) for prompt in PROMPTS * 2))
        assert int(server.state.counters[c.C_FALLBACKS]) > 0

    play(scene, engines={"here": local()})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "other"}, r"has no model 'other' \(tiny\). Set options.model"),
        ({"url": "http://127.0.0.1:9"}, "cannot be reached, no connection"),
        ({"url": "ftp://x"}, "not like http://"),
        ({"nothing": 1}, "options.nothing: not known"),
        ({"token_env": "LOADSLICE_NO_SUCH_TOKEN"}, "holds no token"),
    ],
)
def test_what_cannot_be_an_engine_is_refused_at_the_start_in_one_line(options: dict[str, Any], words: str) -> None:
    async def whole() -> None:
        async with standing_in() as stand_in:
            engine = remote(stand_in.url)
            engine["options"] |= options
            await LanguageServer(said({"there": engine}), TINY, port=0).start()

    with pytest.raises(InputError, match=words) as refused:
        asyncio.run(whole())
    assert "\n" not in str(refused.value)
