"""What clients should not send: refused in OpenAI's form by the name of the field, or it is text; never an end."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from tests.live.language_scenes import COST, NAME, TINY, marks, play, until
from tests.tiny_model.language import TOKENS

from loadslice.policy.tokens import columns as c
from loadslice.serve.language.server import LanguageServer
from loadslice.spec.language import Language, LanguageEngine, Router, check_language

pytestmark = marks

TEXT: dict[str, Any] = {"model": NAME, "prompt": "roll:", "max_tokens": 4}
CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "roll:"}], "max_tokens": 4}


def language() -> Language:
    engine = LanguageEngine(backend="openvino-paged", cost=COST, seats=4, kv_tokens=2048)
    return check_language(
        Language(
            version=1,
            language=NAME,
            model=str(TINY),
            context=512,
            engines={"all": engine},
            router=Router(policy="always-local"),
        ),
        "test",
    )


def body(one: dict[str, Any] | bytes) -> bytes:
    return one if isinstance(one, bytes) else json.dumps(one).encode()


REFUSED: tuple[tuple[str, dict[str, Any] | bytes, str | None], ...] = (
    # Too long, and nothing at all.
    ("completions", TEXT | {"prompt": "up c: " * 200}, "prompt"),
    ("completions", TEXT | {"prompt": [5] * 512}, "prompt"),
    ("chat/completions", CHAT | {"messages": [{"role": "user", "content": "roll: " * 400}]}, "prompt"),
    ("completions", TEXT | {"prompt": ""}, "prompt"),
    ("completions", TEXT | {"prompt": []}, "prompt"),
    ("completions", TEXT | {"prompt": ["roll:", ""]}, "prompt"),
    ("completions", TEXT | {"prompt": ["roll:"] * 17}, "prompt"),
    ("completions", TEXT | {"prompt": [[]]}, "prompt"),
    ("chat/completions", CHAT | {"messages": []}, "messages"),
    ("completions", b"", None),
    ("completions", b"{}", "model"),
    # Not text, not JSON, not numbers.
    ("completions", b'{"model":"tiny","prompt":"\xff\xfe"}', None),
    ("completions", b'{"model":"tiny","prompt":"\xc3("}', None),
    ("completions", b'{"model":"tiny","prompt":"\\ud800"}', None),
    ("completions", b'{"model":"tiny","prompt":"a"', None),
    ("completions", b'{"model":"tiny","prompt":"a","max_tokens":1e999}', None),
    ("completions", b'{"model":"tiny","prompt":"a","temperature":NaN}', None),
    ("completions", b'{"model":"tiny","prompt":' + b"[" * 3000, None),
    ("completions", TEXT | {"prompt": [len(TOKENS)]}, "prompt"),
    ("completions", TEXT | {"prompt": [2**80]}, "prompt"),
    ("completions", TEXT | {"prompt": [-1]}, "prompt"),
    # Too much.
    ("completions", TEXT | {"max_tokens": 512}, "max_tokens"),
    ("completions", TEXT | {"max_tokens": 2**31}, "max_tokens"),
    ("completions", TEXT | {"max_tokens": 2**80}, "max_tokens"),
    ("completions", TEXT | {"max_tokens": -1}, "max_tokens"),
    ("completions", TEXT | {"stop": [f"s{number}" for number in range(5000)]}, "stop"),
    ("completions", TEXT | {"stop": ["x" * 257]}, "stop"),
    ("completions", TEXT | {"n": 1000}, "n"),
    ("completions", TEXT | {"logprobs": 1000}, "logprobs"),
    ("completions", TEXT | {"logit_bias": {str(number): 1 for number in range(301)}}, "logit_bias"),
    # Unknown, as OpenAI's own interface has it, and what is known and not offered.
    ("completions", TEXT | {"max_token": 3}, "max_token"),
    ("completions", TEXT | {"x" * 10_000: 3}, "x" * 64),
    ("chat/completions", CHAT | {"prompt": "a"}, "prompt"),
    ("chat/completions", CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("chat/completions", CHAT | {"response_format": {"type": "json_object"}}, "response_format"),
    ("chat/completions", CHAT | {"messages": [{"role": "nobody", "content": "a"}]}, "messages"),
    (
        "chat/completions",
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages",
    ),
)


def test_what_cannot_be_answered_is_refused_by_name_and_the_server_goes_on() -> None:
    play(_refused, language())


async def _refused(server: LanguageServer, _: Any) -> None:
    async with aiohttp.ClientSession() as session:
        for path, asked, parameter in REFUSED:
            async with session.post(f"{server.url}/v1/{path}", data=body(asked)) as reply:
                raw = await reply.read()
            shown = f"{path} {body(asked)[:120]!r} {raw[:200]!r}"
            assert reply.status == 400, shown
            error = json.loads(raw)["error"]
            assert error["type"] == "invalid_request_error", shown
            assert set(error) == {"message", "type", "param", "code"}, shown
            assert "\n" not in error["message"], shown
            assert len(raw) < 1000, shown
            if parameter is not None:
                assert (error["param"] or "").split("[")[0] == parameter, shown
        # What cannot fit by its bytes alone is not even encoded, which would keep everybody waiting.
        for path, asked in (
            ("completions", TEXT | {"prompt": "up c: " * 50_000}),
            ("chat/completions", CHAT | {"messages": [{"role": "user", "content": "roll: " * 50_000}]}),
        ):
            async with session.post(f"{server.url}/v1/{path}", data=body(asked)) as reply:
                assert "the prompt alone has at least " in (await reply.json())["error"]["message"]
        assert server.state.counters[c.C_SUBMITTED] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_odd_text_is_text(stream: bool) -> None:
    async def scene(server: LanguageServer, client: Any) -> None:
        odd = "\x00\x01\x1b[2J\u202e\U0001f600\ufffd\ud7ff<|im_end|>\r\n\r\nHTTP/1.1 200 OK\r\n\r\ndata: [DONE]\n\n"
        for asked in (
            {"prompt": odd},
            {"prompt": [0, 1, 2, 200]},
            {"prompt": "roll:", "user": odd, "stop": [odd[:200]]},
        ):
            reply = await client.completions.create(
                model=NAME, max_tokens=6, temperature=0, stream=stream, **asked, extra_body={"ignore_eos": True}
            )
            if stream:
                assert [chunk async for chunk in reply][-1].choices[0].finish_reason == "length"
            else:
                assert reply.usage.completion_tokens == 6

    play(scene, language())


def test_clients_that_vanish_in_the_middle_or_never_read_hold_nobody_up() -> None:
    play(_vanish, language())


async def _vanish(server: LanguageServer, client: Any) -> None:
    port = int(server.url.rpartition(":")[2])
    asked = body(TEXT | {"max_tokens": 500, "stream": True, "ignore_eos": True})
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(asked)
    lines = []
    for number in range(6):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # Half a body, a whole one, and one that is read a little; then gone, or still there and silent.
        writer.write(head + (asked[:20] if number == 0 else asked))
        await writer.drain()
        if number % 2:
            assert (await reader.read(200)).startswith(b"HTTP/1.1 200")
        lines.append(writer)
        if number < 4:
            assert writer.transport is not None
            writer.transport.abort()
    async with asyncio.timeout(60):
        answer = await client.completions.create(**TEXT)
    assert answer.usage.completion_tokens == 4
    for writer in lines[4:]:
        writer.close()
    await until(lambda: int(server.state.counters[c.C_IN_SYSTEM]) == 0)
    ends = server.state.counters[c.C_OUTCOMES : c.C_OUTCOMES + 7].tolist()
    assert sum(ends) == server.state.counters[c.C_SUBMITTED]


def test_load_clients_find_out_that_it_is_ready() -> None:
    async def scene(server: LanguageServer, _: Any) -> None:
        async with aiohttp.ClientSession() as session:
            for path in ("/health", "/v2/health/ready", "/v2/health/live", "/v1/models", f"/v1/models/{NAME}"):
                async with session.get(f"{server.url}{path}") as reply:
                    assert reply.status == 200, path
            async with session.get(f"{server.url}/v1/models/other") as reply:
                assert reply.status == 404

    play(scene, language())
