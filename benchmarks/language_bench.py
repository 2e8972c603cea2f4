"""How fast language models are served: decode beside openvino-genai's own batching, and split beside shared serving.

Interleaved rounds on one machine, one thread per engine, the same weights and KV precision; processor time beside wall
time, and what else the machine did. Greedy answers of all ways are compared first.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.language_runs import CHAT, WORDS, Machine, chat, sent, watch
from loadslice.app.output import say
from loadslice.app.process_apart import process_apart
from loadslice.backends.language.base import StepRow
from loadslice.backends.language.gguf import converted
from loadslice.backends.language.openvino_paged import PagedSession
from loadslice.backends.probe import usable_cores
from loadslice.evaluate.language_client import Ask, Heard
from loadslice.serve.language.server import LanguageServer
from loadslice.spec.files import resolve_model
from loadslice.spec.language import Language, RouterPolicy, StepCost

ROUNDS = int(os.environ.get("LANGUAGE_ROUNDS", "5"))
BATCH, PROMPT, TOKENS = 16, 16, 64
KV_PRECISION = "u8"
"""What openvino-genai takes on this device when nothing is said."""
MIX_ROUNDS = int(os.environ.get("LANGUAGE_MIX_ROUNDS", "4"))
MIX_S = float(os.environ.get("LANGUAGE_MIX_S", "20"))
MIX_PER_S = float(os.environ.get("LANGUAGE_MIX_PER_S", "2"))
MIX_THREADS = tuple(int(one) for one in os.environ.get("LANGUAGE_MIX_THREADS", "1,1").split(","))
"""Of the engine for prompts and of the one for answers."""
RESAMPLED = 400
MIX_LONG, MIX_SHORT, MIX_TOKENS, LONG_SHARE = 400, 24, 32, 0.3
PARTS = os.environ.get("LANGUAGE_PARTS", "decode,mix").split(",")


def run() -> dict[str, Any]:
    """All of it."""
    figures: dict[str, Any] = {}
    if "decode" in PARTS:
        figures |= asyncio.run(decode())
    if "mix" in PARTS:
        figures |= asyncio.run(mix())
    return figures


# Decode at a batch of sixteen.


def prompts() -> list[list[int]]:
    draws = np.random.default_rng(7)
    return [draws.integers(*WORDS, PROMPT).tolist() for _ in range(BATCH)]


class Timed(msgspec.Struct):
    """One batch."""

    tokens: list[list[int]]
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return sum(map(len, self.tokens)) / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        return sum(map(len, self.tokens)) / self.cpu_s


class Paged:
    """Our engine in this process, prompts together in one step and then decode steps, as the shell would order them."""

    def __init__(self, folder: Path) -> None:
        blocks = BATCH * (-(-(PROMPT + TOKENS) // 32) + 1)
        self._session = PagedSession(folder / "openvino_model.xml", threads=1, blocks=blocks, kv_precision=KV_PRECISION)

    def batch(self) -> Timed:
        began, cpu = time.perf_counter(), time.process_time()
        rows = [StepRow(index, prompt, samples=True) for index, prompt in enumerate(prompts())]
        answers: list[list[int]] = [[] for _ in rows]
        for _ in range(TOKENS):
            for answer, token in zip(answers, self._session.step(rows).argmax(axis=1).tolist(), strict=True):
                answer.append(token)
            rows = [StepRow(index, [answer[-1]], samples=True) for index, answer in enumerate(answers)]
        timed = Timed(answers, time.perf_counter() - began, time.process_time() - cpu)
        for index in range(BATCH):
            self._session.release(index)
        return timed


class GenAi:
    """openvino-genai's continuous batching in this process."""

    def __init__(self, folder: Path, tokens: int = TOKENS) -> None:
        import openvino as ov
        import openvino_genai

        self._ov, self._genai, self._tokens = ov, openvino_genai, tokens
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = BATCH
        scheduler.max_num_batched_tokens = 512
        scheduler.num_kv_blocks = BATCH * (-(-(PROMPT + TOKENS) // 32) + 2)
        scheduler.enable_prefix_caching = False
        options = {
            "INFERENCE_NUM_THREADS": 1,
            "KV_CACHE_PRECISION": KV_PRECISION,
            "INFERENCE_PRECISION_HINT": "f32",
            "ENABLE_CPU_PINNING": "NO",
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", options)

    def batch(self, asked: Sequence[list[int]]) -> Timed:
        """Continue these prompts, greedily."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = self._tokens, True, False
        config.apply_chat_template = False
        began, cpu = time.perf_counter(), time.process_time()
        handles = [
            self._pipeline.add_request(index, self._ov.Tensor(np.array([prompt], np.int64)), config)
            for index, prompt in enumerate(asked)
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        return Timed([list(handle.read_all()[0].generated_ids) for handle in handles], wall_s, cpu_s)


def shared(**changes: Any) -> Language:
    """One engine that does both."""
    language = chat()
    engine = msgspec.structs.replace(
        language.engines["decode"], seats=BATCH, options={"kv_precision": KV_PRECISION}, **changes
    )
    return msgspec.structs.replace(language, engines={"decode": engine}, links=[])


@contextlib.asynccontextmanager
async def served(language: Language, costs: Mapping[str, StepCost] | None = None) -> AsyncIterator[LanguageServer]:
    server = LanguageServer(language, resolve_model(language.model, CHAT.parent), port=0, costs=costs)
    await server.start()
    try:
        yield server
    finally:
        server.hurry()
        await server.stop()


async def decode() -> dict[str, Any]:
    """Tokens per second of sixteen answers at once."""
    folder = converted(resolve_model(chat().model, CHAT.parent))
    paged, genai = Paged(folder), GenAi(folder)
    ways: dict[str, list[float]] = {"paged": [], "genai": [], "http": []}
    cpu: dict[str, list[float]] = {"paged": [], "genai": [], "http": []}
    busy = []
    asks = [Ask(at_s=0.0, prompt=prompt, tokens=TOKENS) for prompt in prompts()]
    with process_apart() as pool:
        async with served(shared(chunk=None)) as server:
            same = [paged.batch().tokens, genai.batch(prompts()).tokens]
            await sent(pool, server, asks)
            for number in range(ROUNDS):
                order = ["paged", "genai", "http"]
                for way in order[number % 3 :] + order[: number % 3]:
                    end = watch()
                    if way == "http":
                        heard = await sent(pool, server, asks)
                        machine = end()
                        assert all(len(one.gaps_ms) == TOKENS - 1 for one in heard), "a token without its chunk"
                        whole_s = max(one.whole_ms or 0.0 for one in heard) / 1e3
                        ways[way].append(BATCH * TOKENS / whole_s)
                        cpu[way].append(BATCH * TOKENS / machine.ours_cpu_s)
                    else:
                        timed = paged.batch() if way == "paged" else genai.batch(prompts())
                        machine = end()
                        ways[way].append(timed.per_s)
                        cpu[way].append(timed.per_cpu_s)
                    busy.append(machine.others_cpu_s / machine.wall_s)
                    say(f"round {number + 1}, {way}: {ways[way][-1]:.0f} tokens/s, {cpu[way][-1]:.0f} per CPU-second")
    figures: dict[str, Any] = {
        "greedy_answers_as_genai": f"{sum(a == b for a, b in zip(*same, strict=True))} of {BATCH}",
        "others_cores": float(np.mean(busy)),
    }
    for way in ways:
        figures[f"{way}_tokens_per_s"] = float(np.median(ways[way]))
        figures[f"{way}_tokens_per_cpu_s"] = float(np.median(cpu[way]))
    for way in ("paged", "http"):
        wall = [mine / theirs for mine, theirs in zip(ways[way], ways["genai"], strict=True)]
        figures[f"{way}_of_genai_wall"] = float(np.median(wall))
        figures[f"{way}_of_genai_cpu"] = float(
            np.median([mine / theirs for mine, theirs in zip(cpu[way], cpu["genai"], strict=True)])
        )
    return figures


# Split beside shared.


class Way(NamedTuple):
    """What one way of serving did with the load of all rounds."""

    longs_ms: list[float]
    """First tokens of long prompts."""
    shorts_ms: list[float]
    firsts_ms: list[float]
    gaps_ms: list[list[float]]
    """Of each request."""
    tokens: int
    machines: list[Machine]


FIGURES: dict[str, Callable[[Way], float]] = {
    "first_long_p50": lambda way: float(np.median(way.longs_ms)),
    "first_short_p50": lambda way: float(np.median(way.shorts_ms)),
    "first_p50": lambda way: float(np.median(way.firsts_ms)),
    "first_p95": lambda way: float(np.quantile(way.firsts_ms, 0.95)),
    "first_p99": lambda way: float(np.quantile(way.firsts_ms, 0.99)),
    "between_p50": lambda way: float(np.quantile(np.concatenate(way.gaps_ms), 0.5)),
    "between_p99": lambda way: float(np.quantile(np.concatenate(way.gaps_ms), 0.99)),
}
STEP_MS = 40.0
"""Three steps of one sequence alone: what a step may take in the ways that keep steps short."""
COST, COST_SHORT, SPLIT = "split, cost", "split, cost, short steps", "split, always"
WHOLE, CHUNKS, SHORT = "two shared, whole prompts", "two shared, chunks of 64", "two shared, short steps"
JOINED, JOINED_SHORT = "one on all cores, whole prompts", "one on all cores, short steps"


def ways() -> dict[str, Language]:
    """The same threads as a split, as two engines that share all work, and as one engine with the threads of both."""
    prompts_threads, answers_threads = MIX_THREADS
    one = chat().engines["decode"]

    def split(policy: RouterPolicy, step_ms_max: float | None = None) -> Language:
        said = chat(policy)
        engines = {
            "prefill": msgspec.structs.replace(said.engines["prefill"], threads=prompts_threads),
            "decode": msgspec.structs.replace(one, threads=answers_threads, step_ms_max=step_ms_max),
        }
        return msgspec.structs.replace(said, engines=engines)

    def shared(*threads: int, **changes: float | None) -> Language:
        kind = msgspec.structs.replace(one, **changes)
        engines = {
            f"shared-{number}": msgspec.structs.replace(kind, threads=each) for number, each in enumerate(threads)
        }
        return chat(engines=engines, links=[])

    whole: dict[str, float | None] = {"chunk": None, "step_tokens": 2048}
    short = whole | {"step_ms_max": STEP_MS}
    joined = min(usable_cores(), sum(MIX_THREADS))
    return {
        COST: split("cost"),
        COST_SHORT: split("cost", STEP_MS),
        SPLIT: split("always-remote"),
        WHOLE: shared(*MIX_THREADS, **whole),
        CHUNKS: shared(*MIX_THREADS),
        SHORT: shared(*MIX_THREADS, **short),
        JOINED: shared(joined, **whole),
        JOINED_SHORT: shared(joined, **short),
    }


def load(seed: int) -> list[Ask]:
    """Poisson arrivals, most prompts short."""
    draws = np.random.default_rng(seed)
    count = max(8, round(MIX_S * MIX_PER_S))
    return [
        Ask(
            at_s=float(at_s),
            prompt=draws.integers(*WORDS, MIX_LONG if is_long else MIX_SHORT).tolist(),
            tokens=MIX_TOKENS,
        )
        for at_s, is_long in zip(
            np.cumsum(draws.exponential(1 / MIX_PER_S, count)), draws.random(count) < LONG_SHARE, strict=True
        )
    ]


async def mix() -> dict[str, Any]:
    """Times of one load, served in each way; all servers stay up, idle when it is not their turn."""
    asked: list[Ask] = []
    heard: dict[str, list[Heard]] = {name: [] for name in ways()}
    machines: dict[str, list[Machine]] = {name: [] for name in ways()}
    with process_apart() as pool:
        async with contextlib.AsyncExitStack() as stack:
            servers = {}
            costs: dict[int, StepCost] = {}
            for name, said in ways().items():
                known = {
                    each: costs[engine.threads] for each, engine in said.engines.items() if engine.threads in costs
                }
                servers[name] = await stack.enter_async_context(served(said, known))
                # Of engines that do all work, so that the next with as many threads need not be measured.
                costs |= {
                    engine.threads: servers[name].costs[each]
                    for each, engine in said.engines.items()
                    if len(engine.roles) > 1
                }
            for number in range(MIX_ROUNDS):
                asks = load(number)
                asked += asks
                names = list(servers)
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    end = watch()
                    mine = await sent(pool, servers[name], asks)
                    machines[name].append(end())
                    heard[name] += mine
                    told = figures_of(way_of(asks, mine, machines[name][-1:]))
                    say(
                        f"round {number + 1}, {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in told.items())
                    )
    found = {name: way_of(asked, heard[name], machines[name]) for name in heard}
    figures: dict[str, Any] = {"mix_threads_for_prompts_and_answers": f"{MIX_THREADS[0]} and {MIX_THREADS[1]}"}
    for name, way in found.items():
        for key, value in figures_of(way).items():
            figures[f"{name}: {key}"] = value
    return figures | ratios(asked, heard)


def way_of(asks: Sequence[Ask], heard: Sequence[Heard], machines: list[Machine]) -> Way:
    """What a client heard, sorted; requests that failed are not among them."""
    whole = [(ask, one, one.first_ms) for ask, one in zip(asks, heard, strict=True) if one.first_ms is not None]
    return Way(
        longs_ms=[first_ms for ask, _, first_ms in whole if len(ask.prompt) == MIX_LONG],
        shorts_ms=[first_ms for ask, _, first_ms in whole if len(ask.prompt) != MIX_LONG],
        firsts_ms=[first_ms for _, _, first_ms in whole],
        gaps_ms=[one.gaps_ms for _, one, _ in whole],
        tokens=sum(1 + len(one.gaps_ms) for _, one, _ in whole),
        machines=machines,
    )


def figures_of(way: Way) -> dict[str, float]:
    """Milliseconds, tokens per second, processor seconds, and cores that were with others."""
    return {key: figure(way) for key, figure in FIGURES.items()} | {
        "tokens_per_s": way.tokens / sum(one.wall_s for one in way.machines),
        "cpu_s": sum(one.ours_cpu_s for one in way.machines),
        "others_cores": float(np.mean([one.others_cpu_s / one.wall_s for one in way.machines])),
    }


def ratios(asks: Sequence[Ask], heard: dict[str, list[Heard]]) -> dict[str, str]:
    """Three ways beside the better of a strict split and chunks, figure by figure, and beside whole prompts.

    In brackets where 19 of 20 lie when requests are drawn anew, the same ones for every way.
    """
    draws = np.random.default_rng(0)
    samples = [list(range(len(asks)))]
    samples += [draws.integers(0, len(asks), len(asks)).tolist() for _ in range(RESAMPLED)]
    rows: dict[str, list[float]] = {}
    for sample in samples:
        chosen = [asks[index] for index in sample]
        found = {name: way_of(chosen, [mine[index] for index in sample], []) for name, mine in heard.items()}
        for key, figure in FIGURES.items():
            figures_ms = {name: figure(way) for name, way in found.items()}
            better_ms = min(figures_ms[SPLIT], figures_ms[CHUNKS])
            for name in (COST, COST_SHORT, SHORT):
                rows.setdefault(f"{name} / better of split and chunks: {key}", []).append(figures_ms[name] / better_ms)
                rows.setdefault(f"{name} / {WHOLE}: {key}", []).append(figures_ms[name] / figures_ms[WHOLE])
    return {
        key: "{:.3f} ({:.3f} to {:.3f})".format(values[0], *np.quantile(values[1:], (0.025, 0.975)))
        for key, values in rows.items()
    }
