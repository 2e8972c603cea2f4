"""Public load clients against a live server: guidellm and aiperf, where their programs are.

They bring packages of their own, so they are no dependency: install each into an environment of its own and name its
program, ``LOADSLICE_LOAD_CLIENTS=guidellm=/.../bin/guidellm,aiperf=/.../bin/aiperf``, or have it on the path.
"""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.live.language_scenes import COST, NAME, TINY, marks, play
from tests.tiny_model.language import MERGES, SPECIALS, TEMPLATE, TOKENS

from loadslice.serve.language.server import LanguageServer
from loadslice.spec.language import Language, LanguageEngine, Router, check_language

pytestmark = marks

REQUESTS, PROMPT, TOKENS_OUT = 6, 24, 12
SECONDS = 240


def program(name: str) -> str:
    named = dict(one.split("=", 1) for one in os.environ.get("LOADSLICE_LOAD_CLIENTS", "").split(",") if "=" in one)
    found = named.get(name) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here; name its program in LOADSLICE_LOAD_CLIENTS")
    return found


def language() -> Language:
    engine = LanguageEngine(backend="openvino-paged", cost=COST, seats=8, kv_tokens=8192)
    return check_language(
        Language(
            version=1,
            language=NAME,
            model=str(TINY),
            context=1024,
            engines={"all": engine},
            router=Router(policy="always-local"),
        ),
        "test",
    )


def write_tokenizer(folder: Path) -> None:
    """The tiny model's tokenizer as clients read one, so that they count as the server does."""
    bytes_as_signs = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": TOKENS.index(token), "content": token, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for token in SPECIALS
        ],
        "normalizer": None,
        "pre_tokenizer": bytes_as_signs,
        "post_processor": None,
        "decoder": bytes_as_signs,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(TOKENS)},
            "merges": [list(merge) for merge in MERGES],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[2], "chat_template": TEMPLATE}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


async def ran(command: list[str], folder: Path, **environment: str) -> None:
    """Run a client to its end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"} | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode(errors="replace")[-3000:]


async def completed(server: LanguageServer) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as reply:
        lines = (await reply.text()).splitlines()
    ends = [line for line in lines if line.startswith("loadslice_lm_requests_total{")]
    assert all('outcome="completed"' in line for line in ends), ends
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in ends))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf_measures_what_it_asked_for(tmp_path: Path, kind: str) -> None:
    client = program("aiperf")
    write_tokenizer(tmp_path)

    async def scene(server: LanguageServer, _: Any) -> None:
        command = [
            *(client, "profile", "--model", NAME, "--url", server.url, "--endpoint-type", kind, "--streaming"),
            *("--tokenizer", str(tmp_path), "--ui", "none", "--concurrency", "2", "--request-count", str(REQUESTS)),
            *("--synthetic-input-tokens-mean", str(PROMPT), "--output-tokens-mean", str(TOKENS_OUT)),
            *("--extra-inputs", "ignore_eos:true", "--artifact-dir", str(tmp_path / "out")),
        ]
        await ran(command, tmp_path)
        found = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
        assert found["request_count"]["avg"] == REQUESTS
        assert found["time_to_first_token"]["avg"] > 0
        assert found["inter_token_latency"]["avg"] > 0
        assert await completed(server) == REQUESTS

    play(scene, language())


@pytest.mark.timeout(300)
def test_guidellm_measures_what_it_asked_for(tmp_path: Path) -> None:
    client = program("guidellm")
    write_tokenizer(tmp_path)

    async def scene(server: LanguageServer, _: Any) -> None:
        command = [
            *(client, "run", "--backend", f"kind=openai_http,target={server.url},model={NAME}"),
            *("--profile", "kind=constant,rate=4", "--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS_OUT}"),
            *("--tokenizer", f"kind=hf_auto,model={tmp_path}"),
        ]
        await ran(command, tmp_path, HF_HUB_OFFLINE="1")
        (run,) = json.loads((tmp_path / "benchmarks.json").read_text())["benchmarks"]
        assert run["metrics"]["request_totals"]["successful"] == REQUESTS
        assert run["metrics"]["output_token_count"]["successful"]["mean"] == TOKENS_OUT
        assert await completed(server) >= REQUESTS

    play(scene, language())
