"""What benchmarks of language models share: stretches of the public traces, live servers, what else the machine did."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl
import psutil

from loadslice.evaluate.language_client import Ask, Heard, send_apart
from loadslice.serve.language.server import LanguageServer
from loadslice.sim.language_world import fit_context
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model
from loadslice.spec.language import Language, RouterPolicy, load_language
from loadslice.spec.language_profile import LanguageProfile, costs_of, with_links
from loadslice.workload.importing import load as load_trace

REPOSITORY = Path(__file__).parent.parent
CHAT = REPOSITORY / "examples" / "chat" / "chat.yaml"
WORDS = (100, 4000)
"""Tokens of prompts are drawn among these: plain pieces of words."""


def trace_of(name: str) -> pl.DataFrame:
    """A public trace: ``conv`` or ``code``.

    Raises:
        InputError: It is not beside the checkout.
    """
    for root in REPOSITORY.parents:
        path = root / f"shared/data/traces/azure_llm_2023/AzureLLMInferenceTrace_{name}.csv"
        if path.is_file():
            return load_trace(path).frame
    raise InputError(
        f"AzureLLMInferenceTrace_{name}.csv is not in shared/data/traces/azure_llm_2023 beside the checkout."
    )


def stretch_of(
    trace: pl.DataFrame, language: Language, *, begins: float, requests: int, scale: float, answers: float
) -> pl.DataFrame:
    """Consecutive requests of a trace, from a share of it on, times counted from the first; tokens fit the context.

    ``scale`` and ``answers``: tokens of a prompt, and of an answer, for one of the trace.
    """
    first = int(begins * len(trace))
    part = trace.slice(first, requests)
    part = part.with_columns(
        arrival_s=pl.col("arrival_s") - part["arrival_s"][0], tokens_out=pl.col("tokens_out") * (answers / scale)
    )
    return fit_context(part, language.context, scale).trace


def asks_of(stretch: pl.DataFrame, speed: float, seed: int) -> list[Ask]:
    """Requests of a stretch, with prompts of drawn words."""
    draws = np.random.default_rng(seed)
    return [
        Ask(at_s=at_s / speed, prompt=draws.integers(*WORDS, tokens_in).tolist(), tokens=tokens_out)
        for at_s, tokens_in, tokens_out in stretch.select("arrival_s", "tokens_in", "tokens_out").iter_rows()
    ]


def chat(policy: RouterPolicy | None = None, **changes: Any) -> Language:
    """The example's language file, with another router."""
    language = load_language(CHAT)
    if policy is not None:
        language = msgspec.structs.replace(language, router=msgspec.structs.replace(language.router, policy=policy))
    return msgspec.structs.replace(language, **changes)


@contextlib.asynccontextmanager
async def served(
    language: Language, profile: LanguageProfile | None, journal: Path | None = None
) -> AsyncIterator[LanguageServer]:
    """A live server on a profile's costs."""
    model = resolve_model(language.model, CHAT.parent)
    if profile is not None:
        language = with_links(language, profile)
    server = LanguageServer(
        language,
        model,
        port=0,
        costs=None if profile is None else costs_of(profile),
        beside=None if profile is None else profile.beside,
        journal=journal,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def sent(pool: ProcessPoolExecutor, server: LanguageServer, asks: Sequence[Ask]) -> list[Heard]:
    """Send from the client's process."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(pool, send_apart, server.url, server.language.language, list(asks))


class Machine(NamedTuple):
    """What processors did over a while."""

    wall_s: float
    ours_cpu_s: float
    others_cpu_s: float


def watch() -> Callable[[], Machine]:
    """Begin to watch; call the answer to end. Ours: this process and all that it started."""
    began, busy, ours = time.perf_counter(), _busy_s(), processor_s()

    def end() -> Machine:
        wall_s, busy_s, ours_s = time.perf_counter() - began, _busy_s() - busy, processor_s() - ours
        return Machine(wall_s, ours_s, max(0.0, busy_s - ours_s))

    return end


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def processor_s(pid: int | None = None) -> float:
    """Processor time of a process and all that it started; ``None``: this one."""
    whole = psutil.Process(pid)
    total = 0.0
    for process in (whole, *whole.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = process.cpu_times()
            total += used.user + used.system
    return total


class Tails(NamedTuple):
    """Percentiles of one run, milliseconds."""

    first_p50: float
    first_p95: float
    first_p99: float
    between_p50: float
    between_p95: float
    between_p99: float


def tails_of(heard: Sequence[Heard]) -> Tails:
    """Of what a client heard."""
    first = [one.first_ms for one in heard if one.first_ms is not None]
    gaps = np.concatenate([one.gaps_ms for one in heard if one.gaps_ms] or [[np.nan]])
    return Tails(
        *(float(value) for value in np.percentile(first, [50, 95, 99])),
        *(float(value) for value in np.percentile(gaps, [50, 95, 99])),
    )
