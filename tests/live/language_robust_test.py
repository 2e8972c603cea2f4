"""Language engines that hang, are cut off, lose their cache or are not alike: every stream still ends as it should."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.live.language_scenes import (
    EXACT,
    LONG,
    NAME,
    TINY,
    marks,
    nothing_is_held,
    play,
    said,
    split,
    streamed,
    until,
)
from tests.tiny_model.language import LETTERS, encode, spelled

from loadslice.policy.tokens import columns as c
from loadslice.serve.language import server as server_file
from loadslice.serve.language.layouts import check_layouts
from loadslice.serve.language.server import LanguageServer
from loadslice.sim.language_check import check_language_journal
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.language import Language
from loadslice.spec.language_journal import load_language_journal

pytestmark = marks
MODEL = str(TINY)
PROMPTS = [f"{'up' if index % 2 else 'down'} {LETTERS[4 * index]}:" for index in range(6)]
ANSWERS = [spelled(LETTERS[4 * index], 1 if index % 2 else -1, 12) for index in range(6)]


async def hits(client: Any, prompt: str, tokens: int = 12) -> tuple[str, int]:
    """Its text, and how many tokens of its prompt were found in a prefix cache."""
    whole = await client.completions.create(model=NAME, prompt=prompt, max_tokens=tokens, temperature=0)
    return whole.choices[0].text, whole.usage.prompt_tokens_details.cached_tokens


def test_prompts_that_begin_alike_are_computed_once_and_what_the_cache_has_lost_again() -> None:
    play(_alike, said({"all": {"prefix_tokens": 96}}, "always-local"))


async def _alike(server: LanguageServer, client: Any) -> None:
    assert len(encode(LONG)) == 60
    text, hit = await hits(client, LONG)
    assert (text, hit) == (spelled("g", 1, 12), 0)
    again, hit = await hits(client, LONG)
    assert again == text
    assert hit == 32  # LONG has 60 tokens: one whole block of it
    longer, hit = await hits(client, LONG + LONG)
    assert hit == 32
    assert (await hits(client, LONG + LONG)) == (longer, 96)
    # Other prompts push it out: it is computed again, and the tokens are the same.
    for start in ("One", "Two", "Three"):
        await hits(client, f"{start}. {LONG}{LONG}", 1)
    once_more, hit = await hits(client, LONG)
    assert (once_more, hit) == (text, 0)
    # An engine that has lost what the owner believes it has computes that too.
    known = server._shell._prefixes.of[0]  # type: ignore[union-attr]
    before = set(known)
    for start in ("Four", "Five", "Six"):
        await hits(client, f"{start}. {LONG}{LONG}", 1)
    known.update(before)
    assert (await hits(client, LONG))[0] == text
    nothing_is_held(server)


@pytest.mark.parametrize(
    ("prefill", "decode"), [("openvino-paged", "onnxruntime-slots"), ("onnxruntime-slots", "openvino-paged")]
)
def test_engines_of_two_runtimes_serve_one_model_together(prefill: str, decode: str) -> None:
    engines = [{"backend": name, "options": EXACT if "openvino" in name else {}} for name in (prefill, decode)]
    texts = {}

    def scene(policy: str) -> Callable[[LanguageServer, Any], Awaitable[None]]:
        async def run(server: LanguageServer, client: Any) -> None:
            texts[policy] = await asyncio.gather(*(streamed(client, prompt) for prompt in PROMPTS))
            assert int(server.state.counters[c.C_HANDOVERS]) == (6 if policy == "always-remote" else 0)
            assert int(server.state.counters[c.C_HANDOVERS_FAILED]) == 0
            nothing_is_held(server)

        return run

    for policy in ("always-local", "always-remote"):
        play(scene(policy), split(*engines, policy=policy))
    assert texts["always-local"] == texts["always-remote"] == ANSWERS


def test_an_engine_that_keeps_its_kv_to_itself_serves_whole_requests_with_the_same_tokens() -> None:
    texts: dict[str, list[str]] = {}

    def scene(backend: str) -> Callable[[LanguageServer, Any], Awaitable[None]]:
        async def run(server: LanguageServer, client: Any) -> None:
            import openai

            gone = asyncio.ensure_future(streamed(client, LONG, 300))
            texts[backend] = await asyncio.gather(*(streamed(client, prompt) for prompt in PROMPTS))
            gone.cancel()
            await asyncio.wait((gone,))
            if backend == "openvino-genai":
                with pytest.raises(openai.BadRequestError, match="'logprobs' is not offered by these engines"):
                    await client.completions.create(model=NAME, prompt="a", max_tokens=2, logprobs=1)
            await until(lambda: int(server.state.counters[c.C_IN_SYSTEM]) == 0)
            nothing_is_held(server)

        return run

    for backend in ("openvino-paged", "openvino-genai"):
        engine = {"backend": backend, "options": EXACT}
        play(scene(backend), said({"all": engine}, "always-local"))
    assert texts["openvino-paged"] == texts["openvino-genai"] == ANSWERS


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        ({"all": {"backend": "openvino-genai", "roles": ("decode",)}}, "computes whole requests"),
        ({"prefill": {"backend": "openvino-genai"}, "decode": {}}, "can neither give KV nor take it"),
        ({"all": {"buckets": (64, 64)}}, "buckets: 64 after 64"),
        ({"all": {"backend": "onnxruntime-slots", "prefix_tokens": 64}}, "shares no blocks"),
        ({"all": {"prefix_tokens": -1}}, "prefix_tokens: -1 is not between"),
    ],
)
def test_a_language_file_that_asks_for_what_cannot_be_is_refused(engines: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        said(engines)
    assert "\n" not in str(refused.value)


def test_a_prompt_whose_hand_over_hangs_is_computed_where_it_goes_on() -> None:
    play(_hangs, split(lease_ms=300))


async def _hangs(server: LanguageServer, client: Any) -> None:
    whole = await streamed(client, LONG)
    # The engine that exports stands still as soon as it is asked to; nobody ends it in time.
    shell = server._shell
    assert shell is not None
    pid = server.pids["prefill"]
    assert pid is not None
    begin = shell._begin_handover

    def stop_then_begin(*place: Any, **named: Any) -> bool:
        os.kill(pid, signal.SIGSTOP)
        return begin(*place, **named)

    shell._begin_handover = stop_then_begin  # type: ignore[method-assign]
    assert await streamed(client, LONG) == whole
    shell._begin_handover = begin  # type: ignore[method-assign]
    assert int(server.state.counters[c.C_LEASES_EXPIRED]) == 1
    assert int(server.state.counters[c.C_FALLBACKS]) == 1
    os.kill(pid, signal.SIGCONT)
    await until(lambda: server._slots.free == server._slots.slots)
    assert await streamed(client, LONG) == whole
    assert int(server.state.counters[c.C_HANDOVERS_FAILED]) == 1
    nothing_is_held(server)


def test_a_prompt_for_whose_hand_over_no_memory_is_free_is_computed_where_it_goes_on() -> None:
    play(_no_slot, split())


async def _no_slot(server: LanguageServer, client: Any) -> None:
    import httpx

    whole = await streamed(client, LONG)
    slots = server._slots
    taken = [slots.take() for _ in range(slots.free)]  # as hand-overs do whose leases ran out while they are written
    assert await streamed(client, LONG) == whole
    assert int(server.state.counters[c.C_FALLBACKS]) == 1
    async with httpx.AsyncClient() as reader:
        metrics = (await reader.get(f"{server.url}/metrics")).text
    assert 'loadslice_lm_handover_failures_total{reason="no_slot_is_free"} 1.0' in metrics
    for slot in taken:
        slots.give_back(slot)
    assert await streamed(client, LONG) == whole
    assert int(server.state.counters[c.C_HANDOVERS_FAILED]) == 1
    nothing_is_held(server)


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_an_engine_that_stands_still_is_ended_and_started_again(victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "LATE_NS", 500_000_000)

    async def scene(server: LanguageServer, client: Any) -> None:
        import openai

        whole = await streamed(client, LONG, 250)

        async def one() -> str:
            try:
                return await streamed(client, LONG, 250)
            except openai.APIError as error:
                return f"error: {error}"

        asked = [asyncio.ensure_future(one()) for _ in range(4)]
        index = list(server.language.engines).index(victim)
        if victim == "prefill":
            await asyncio.sleep(
                0
            )  # the prompts are under way; a step of so small a model is over before one could look
        else:
            before = int(server.state.engines[index, c.N_DECODE_TOKENS])
            await until(lambda: int(server.state.engines[index, c.N_DECODE_TOKENS]) > before)
        pid = server.pids[victim]
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        ends = await asyncio.gather(*asked)
        assert all(end == whole or end.startswith("error: ") for end in ends), ends
        await until(lambda: not server.state.engines[:, c.N_DOWN].any())
        assert server.pids[victim] != pid
        assert await streamed(client, LONG, 250) == whole
        nothing_is_held(server)

    play(scene, split())


def test_engines_whose_kv_is_not_alike_are_refused_at_the_start(tmp_path: Path) -> None:
    async def start(language: Language, model: Path | None = None) -> None:
        await LanguageServer(language, model or resolve_model(MODEL, Path()), port=0).start()

    def refusal(language: Language, model: Path | None = None) -> str:
        with pytest.raises(InputError) as refused:
            asyncio.run(start(language, model))
        assert "\n" not in str(refused.value)
        return str(refused.value)

    assert "quantised KV moves only between engines" in refusal(split({"options": {"kv_precision": "u8"}}))
    assert "context: 65536 is more than" in refusal(msgspec.structs.replace(split(), context=65_536))
    assert "Say `block: 32`" in refusal(split(block=16))
    cut = tmp_path / "cut.gguf"
    whole = resolve_model(MODEL, Path())
    with whole.open("rb") as file:
        cut.write_bytes(file.read(50_000))
    assert "truncated" in refusal(split(), cut)
    cut.write_bytes(b"GGUF" + bytes(100))
    assert "version 0" in refusal(split(), cut)
    cut.write_bytes(b"nonsense")
    assert "is not a GGUF file" in refusal(split(), cut)


def test_engines_with_models_of_other_hashes_are_refused_by_name() -> None:
    async def scene(server: LanguageServer, client: Any) -> None:
        layouts = [server.ready[name].layout for name in server.language.engines]
        layouts[1] = msgspec.structs.replace(layouts[1], model_sha256="00" * 32)
        with pytest.raises(InputError, match="from 'prefill' to 'decode': their model_sha256 differ"):
            check_layouts(server.language, layouts)

    play(scene, split())


def test_what_is_too_much_is_refused_and_what_is_broken_is_text() -> None:
    play(_too_much, said({"all": {"queue": 2, "seats": 1}}, "always-local"))


async def _too_much(server: LanguageServer, client: Any) -> None:
    import openai

    for changes, parameter in (
        ({"stop": [f"s{number}" for number in range(5000)]}, "stop"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"seed": 2**90}, "seed"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(**{"model": NAME, "prompt": "hello", "max_tokens": 4, **changes})
        assert refused.value.param == parameter
    odd = "\x00\x01\x1b[2J \u202e \U0001f600 \ufffd" * 3
    assert (
        await client.completions.create(model=NAME, prompt=odd, max_tokens=3, temperature=0)
    ).usage.prompt_tokens > 9

    async def one() -> str:
        try:
            return await streamed(client, LONG, 250)
        except openai.RateLimitError as error:
            return f"refused, {error.response.headers['retry-after'].isdigit()}"

    ends = await asyncio.gather(*(one() for _ in range(8)))
    assert 1 <= ends.count("refused, True") <= 6
    assert len(set(ends)) == 2
    nothing_is_held(server)


def test_a_killed_server_leaves_no_engine_and_so_none_of_their_memory_behind(tmp_path: Path) -> None:
    async def scene() -> None:
        async with command(tmp_path) as (process, ready):
            pids = list(ready["pids"].values())
            assert all(_runs(pid) for pid in pids)
            process.kill()
            await process.wait()
            await until(lambda: not any(_runs(pid) for pid in pids), 20)

    asyncio.run(scene())


def test_a_journal_of_what_was_served_gives_the_same_decisions_again(tmp_path: Path) -> None:
    import openai

    folder = tmp_path / "kept"

    async def scene() -> None:
        async with command(tmp_path, "--journal", str(folder)) as (process, ready):
            client = openai.AsyncOpenAI(base_url=f"{ready['url']}/v1", api_key="none", max_retries=0)
            gone = asyncio.ensure_future(streamed(client, LONG, 200))
            await asyncio.gather(*(streamed(client, prompt, 8) for prompt in (LONG, "Once", LONG)))
            os.kill(ready["pids"]["prefill"], signal.SIGKILL)
            await streamed(client, LONG, 8)
            gone.cancel()
            await asyncio.wait((gone,))
            await client.close()
            process.terminate()
            assert await process.wait() == 0

    asyncio.run(scene())
    findings = check_language_journal(load_language_journal(folder))
    assert [finding for finding in findings if not finding.held] == []
    requests = load_language_journal(folder).requests
    assert requests["outcome"].to_list().count("completed") >= 4
    assert requests["handover_ns"].max() > 0  # type: ignore[operator]


@contextlib.asynccontextmanager
async def command(folder: Path, *options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """`loadslice serve` on a file with two engines, until the block ends."""
    file = folder / "chat.yaml"
    document = msgspec.to_builtins(split())
    for key, value in document["engines"].items():
        document["engines"][key] = {name: one for name, one in value.items() if one is not None}
    file.write_bytes(msgspec.yaml.encode(document))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadslice", "serve", str(file), "--http", "0", "--json", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(200):
            ready = msgspec.json.decode(await process.stdout.read(4096))
        yield process, ready
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
