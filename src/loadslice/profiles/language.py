"""Measures a language model's engines as their server would use them: in their own processes, over its messages.

Kinds of steps are taken in turn, round after round in another order, so that a machine that slows down meanwhile slows
all of them alike.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadslice.profiles.language_fit import (
    Fit,
    Kind,
    Taken,
    expected_ms,
    fitted,
    handover_line,
    noise_of,
    step_times,
)
from loadslice.profiles.language_line import FILLING, FIRST, NEW, EngineLine, slots_for
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language, LanguageEngine
from loadslice.spec.language_profile import EngineTimes, HandoverTime

PROMPTS = (16, 32, 64, 128, 256, 512, 1024, 2048)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BEFORE = (48, 256, 768, 3072)
MIXED = (16, 64, 128)
MIXED_BEFORE = 256
CONTINUED = 64
"""Tokens of a prompt that goes on after what it has."""
ROUNDS_MIN = 2
STEPS_OF_GROUP = 40
"""Tokens that a group may grow by in one round."""
HANDOVERS = 6
BESIDE_S = 2.0
BESIDE_ROWS, BESIDE_PROMPT, BESIDE_BEFORE = 4, 128, 128
Tell = Callable[[str], None]


def measure(
    language: Language, model: Path, *, seconds: float, seed: int, tell: Tell
) -> tuple[dict[str, EngineTimes], list[HandoverTime], dict[str, dict[str, float]], str]:
    """Measure every engine alone, every link, and every two engines at once.

    Args:
        language: Checked.
        model: Resolved path.
        seconds: For each engine alone, besides loading it; every kind of step is taken at least twice.
        seed: Of the order of rounds.
        tell: Told what is going on.

    Returns:
        Times of engines, hand-overs, the matrix of company, and the model's SHA-256.

    Raises:
        InputError: An engine does not load, or two of a link have KV of different layouts.
    """
    return asyncio.run(_measure(language, model, seconds, seed, tell))


async def _measure(
    language: Language, model: Path, seconds: float, seed: int, tell: Tell
) -> tuple[dict[str, EngineTimes], list[HandoverTime], dict[str, dict[str, float]], str]:
    slots = slots_for(language)
    draws = np.random.default_rng(seed)
    lines = {name: EngineLine(name, language, model, slots) for name in language.engines}
    started: list[EngineLine] = []
    try:
        for name, line in lines.items():
            tell(f"engine {name}: loading")
            await line.__aenter__()
            started.append(line)
        tell(f"measuring each engine for {seconds:g} s, in turn, the others idle")
        engines = await _alone(lines, seconds, draws)
        handovers = [await _handover(lines[link.from_], lines[link.to], engines[link.from_]) for link in language.links]
        beside = {name: await _beside(line, lines, tell) for name, line in lines.items()}
        model_sha256 = next(iter(lines.values())).ready.layout.model_sha256
    finally:
        for line in started:
            await line.__aexit__(None, None, None)
        slots.close()
    return engines, handovers, beside, model_sha256


def groups(engine: LanguageEngine, language: Language) -> Iterator[tuple[int, list[Kind]]]:
    """Kinds of steps to measure, by tokens that sequences have before; what does not fit an engine is left out."""
    if "prefill" in engine.roles:
        longest = min(engine.prompt_max or language.context, language.context - 1)
        most = min(engine.step_tokens, engine.chunk or language.context, longest)
        prompts = sorted({tokens for tokens in PROMPTS if tokens < most} | {most})
        fits = [tokens for tokens in prompts if tokens + language.block <= engine.kv_tokens]
        yield 0, [Kind(tokens, 0, 0) for tokens in fits]
    if "decode" not in engine.roles:
        return
    for before in BEFORE:
        room = engine.kv_tokens // (before + STEPS_OF_GROUP + 2 * language.block)
        if before + STEPS_OF_GROUP + 2 > language.context or room < 1:
            continue
        most = min(engine.seats, room)
        rows = sorted({count for count in ROWS if count < most} | {most})
        kinds = [Kind(0, count, before) for count in rows]
        if "prefill" in engine.roles:
            piece = min(CONTINUED, engine.chunk or CONTINUED, engine.step_tokens)
            if before + piece < language.context and before + piece <= engine.kv_tokens:
                kinds.append(Kind(piece, 0, before))
        if "prefill" in engine.roles and before == MIXED_BEFORE:
            kinds += [
                Kind(tokens, count, before)
                for count in {min(4, most), most}
                for tokens in MIXED
                if tokens + count <= engine.step_tokens
                and tokens <= (engine.chunk or language.context)
                and count * (before + STEPS_OF_GROUP + language.block) + tokens <= engine.kv_tokens
            ]
        yield before, kinds


async def _alone(lines: dict[str, EngineLine], seconds: float, draws: np.random.Generator) -> dict[str, EngineTimes]:
    """Rounds of all engines in turn, so that none is measured at a better hour than another."""
    plans = {name: list(groups(line.engine, line.language)) for name, line in lines.items()}
    taken: dict[str, dict[Kind, list[Taken]]] = {name: {} for name in lines}
    reshaped_ms: dict[str, list[float]] = {name: [] for name in lines}
    spent_s = dict.fromkeys(lines, 0.0)
    for name, plan in plans.items():
        if not plan:
            raise InputError(f"engine '{name}': its kv_tokens hold nothing that could be measured.")
    rounds = 0
    while rounds < ROUNDS_MIN or min(spent_s.values()) < seconds:
        for name, line in lines.items():
            if rounds >= ROUNDS_MIN and spent_s[name] >= seconds:
                continue
            began = time.perf_counter()
            for before, kinds in plans[name]:
                found = await _round(line, before, kinds, draws)
                reshaped_ms[name] += found.reshaped_ms
                for kind, step in found.steps:
                    taken[name].setdefault(kind, []).append(step)
            spent_s[name] += time.perf_counter() - began
        rounds += 1
    return {
        name: described(line, taken[name], reshaped_ms[name], await _adopt_us(line)) for name, line in lines.items()
    }


class Round(NamedTuple):
    """Steps of one round."""

    steps: list[tuple[Kind, Taken]]
    reshaped_ms: list[float]
    """What steps of another shape than the one before took longer than the same again."""


async def _round(line: EngineLine, before: int, kinds: list[Kind], draws: np.random.Generator) -> Round:
    """Every kind of one group in a drawn order.

    Where sequences decode, every step is taken twice in a row: the first has another shape than the one before it, the
    second has not, as most steps that are served. Where they do not, every prompt has a shape of its own.
    """
    found = Round([], [])
    if before == 0:
        for index in draws.permutation(len(kinds)).tolist():
            for _ in range(2 if "decode" in line.engine.roles else 1):
                line.begin(NEW, kinds[index].prompt_tokens)
                await line.ping()
                taken = await line.step((NEW, kinds[index].prompt_tokens, True))
                line.release(NEW)
            found.steps.append((kinds[index], taken))
        return found
    group = await line.prepare(before, max(kind.rows for kind in kinds))
    last = await group.step(kinds[0])
    repeats = max(1, min(2, (STEPS_OF_GROUP - 1) // (2 * len(kinds))))
    for index in draws.permutation(np.repeat(np.arange(len(kinds)), repeats)).tolist():
        kind = kinds[index]
        is_same = kind.prompt_tokens + kind.rows == last[0].prompt_tokens + last[0].rows
        first, last = await group.step(kind), await group.step(kind)
        found.steps.append((kind, last[1]))
        if not is_same:
            found.reshaped_ms.append(first[1].time_ms - last[1].time_ms)
    group.release()
    return found


def described(
    line: EngineLine, taken: dict[Kind, list[Taken]], reshaped_ms: list[float], adopt_us: float | None
) -> EngineTimes:
    """What was measured of an engine, fitted."""
    fit = fitted(taken)
    layout = line.ready.layout
    return EngineTimes(
        backend=line.engine.backend,
        basis="measured",
        source=layout.raw,
        threads=line.engine.threads,
        cost=fit.cost,
        shape=fit.shape,
        noise=noise_of(parts_of(fit, taken)),
        fit_error_p50=fit.error_p50,
        fit_error_max=fit.error_max,
        reshape_ms=max(0.0, float(np.median(reshaped_ms))) if reshaped_ms else 0.0,
        adopt_us_per_token=adopt_us,
        kv_bytes_per_token=layout.raw_bytes_per_block // line.language.block,
        memory_bytes=line.ready.memory_bytes + line.ready.kv_bytes,
        steps=step_times(taken),
    )


def parts_of(fit: Fit, taken: dict[Kind, list[Taken]]) -> list[float]:
    """Single steps in parts of what they should take."""
    return [
        step.time_ms / expected_ms(fit.cost, fit.shape, *kind[:2], kind.pairs, kind.prompt_pairs)
        for kind, steps in taken.items()
        for step in steps
    ]


async def _adopt_us(line: EngineLine) -> float | None:
    """Microseconds per token to begin a sequence with a cached prefix instead of computing it."""
    block = line.language.block
    tokens = min(8 * block, line.engine.kv_tokens // 2, line.language.context // 2) // block * block
    if tokens == 0 or not line.shares:
        return None
    line.begin(NEW, tokens + 1, seed=5)
    await line.fill(NEW, tokens)
    await line.step((NEW, tokens + 1, True))  # a prompt is kept when it has its first token
    line.release(NEW)
    await line.ping()
    taken_us = []
    for _ in range(HANDOVERS):
        began = time.perf_counter()
        await line.ping()
        empty = time.perf_counter() - began
        began = time.perf_counter()
        line.begin(FILLING, tokens + 1, hit=tokens, seed=5)
        await line.ping()
        taken_us.append((time.perf_counter() - began - empty) / tokens * 1e6)
        line.release(FILLING)
    return max(0.0, float(np.median(taken_us)))


async def _handover(source: EngineLine, target: EngineLine, times: EngineTimes) -> HandoverTime:
    raw = source.ready.layout.raw == target.ready.layout.raw
    if not raw and not (source.ready.layout.has_neutral and target.ready.layout.has_neutral):
        raise InputError(
            f"links: from '{source.name}' to '{target.name}': quantised KV moves only between engines of one runtime "
            "and precision. Give both `options: {kv_precision: f32}`."
        )
    context = source.language.context
    most = min(context - 1, source.engine.kv_tokens, target.engine.kv_tokens, source.engine.prompt_max or context)
    sizes = sorted({tokens for tokens in (64, 256, 1024) if tokens < most} | {min(most, 1024)})
    tokens_of, times_ms = [], []
    for tokens in sizes:
        source.begin(NEW, tokens)
        await source.fill(NEW, tokens)
        for _ in range(HANDOVERS):
            export_ms = await source.export(NEW, raw=raw)
            target.begin(FIRST, tokens + 1)
            tokens_of.append(tokens)
            times_ms.append(export_ms + await target.take(FIRST, raw=raw))
            target.release(FIRST)
        source.release(NEW)
    line = handover_line(tokens_of, times_ms)
    longest = float(np.median([ms for tokens, ms in zip(tokens_of, times_ms, strict=True) if tokens == sizes[-1]]))
    prompt_ms = expected_ms(times.cost, times.shape, sizes[-1], 0, 0, sizes[-1] ** 2 / 2)
    return HandoverTime(
        from_=source.name,
        to=target.name,
        **line._asdict(),
        of_prefill=longest / prompt_ms,
        n=len(times_ms),
    )


async def _beside(line: EngineLine, lines: dict[str, EngineLine], tell: Tell) -> dict[str, float]:
    """How much longer an engine's steps take while each other one computes: alone and beside it in turn."""
    found = {}
    for name, other in lines.items():
        if name == line.name:
            continue
        tell(f"engines {line.name} and {name}: measuring at once")
        quiet: list[float] = []
        company: list[float] = []
        for _ in range(2):
            quiet += await _busy(line, BESIDE_S / 2)
            stop = asyncio.Event()
            noise = asyncio.ensure_future(_busy(other, 60.0, stop))
            company += await _busy(line, BESIDE_S / 2)
            stop.set()
            await noise
        found[name] = max(0.0, float(np.mean(company) / np.mean(quiet)) - 1)
    return found


async def _busy(line: EngineLine, seconds: float, stop: asyncio.Event | None = None) -> list[float]:
    """Have an engine do what its role is for a while; times of its steps, milliseconds."""
    taken = []
    ends = time.perf_counter() + seconds
    if "decode" in line.engine.roles:
        rows = min(BESIDE_ROWS, line.engine.seats)
        before = min(BESIDE_BEFORE, line.language.context // 2, line.engine.kv_tokens // (2 * rows))
        room = min(line.language.context, line.engine.kv_tokens // rows) - before - line.language.block
        while time.perf_counter() < ends and not (stop is not None and stop.is_set()):
            group = await line.prepare(before, rows)
            for _ in range(min(room, 40)):
                taken.append((await group.step(Kind(0, rows, before)))[1].time_ms)
                if time.perf_counter() >= ends or (stop is not None and stop.is_set()):
                    break
            group.release()
        return taken
    longest = min(line.engine.prompt_max or line.language.context, line.language.context - 1)
    tokens = min(BESIDE_PROMPT, line.engine.step_tokens, longest)
    while time.perf_counter() < ends and not (stop is not None and stop.is_set()):
        line.begin(NEW, tokens)
        taken.append((await line.step((NEW, tokens, True))).time_ms)
        line.release(NEW)
    return taken
