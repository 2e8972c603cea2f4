"""What a profile learns from a load that is served: single steps as a server sees them, and what the way to it takes.

The server keeps a journal, and its decisions are taken again afterwards: that says what each step held and when it
began, and so what it took in parts of what it should have.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from loadslice.app.process_apart import process_apart
from loadslice.evaluate.language_client import Ask, Heard, send_apart
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.tables import fresh
from loadslice.profiles.language_fit import Held, as_served, expected_ms, handover_line
from loadslice.serve.language.server import LanguageServer
from loadslice.sim.language_check import call_desk
from loadslice.sim.language_layout import COLD_AFTER_NS
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language
from loadslice.spec.language_journal import EVENTS, LanguageJournal, load_language_journal
from loadslice.spec.language_profile import LanguageProfile, ServingTime, costs_of, with_links

UTILISATION = 0.5
"""Of the busiest engine, in the load that is served for a profile."""
HANDOVERS_LEAST = 20
"""Of a link, to say what one takes."""
ANSWER = 24
LENGTHS = (24, 400)
"""Tokens of prompts and answers of that load."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ServedStep(msgspec.Struct, frozen=True):
    """One step that was served."""

    engine: int
    prompt_tokens: int
    rows: int
    pairs: int
    prompt_pairs: int
    began_ns: int
    """When its engine could begin: it obeys in order, so after the KV that it was told to write or read before."""
    ended_ns: int


class ServedHandover(msgspec.Struct, frozen=True):
    """One hand-over that was served."""

    prefill: int
    decode: int
    tokens: int
    export_ns: int
    """From the end of the prompt's step to the answer of the engine that wrote."""
    import_ns: int
    """From when the engine that reads had nothing else to do to its answer."""
    ended_ns: int


class Served(NamedTuple):
    """What engines did, in order of its ends."""

    steps: list[ServedStep]
    handovers: list[ServedHandover]
    learned: list[Ints]
    """[E, ENGINE_COLUMNS] what the desk knew of its engines when each request came, in their order."""


class _Moving(NamedTuple):
    """A hand-over on its way."""

    prefill: int
    decode: int
    tokens: int
    began_ns: int
    exported_ns: int = 0


def served(journal: LanguageJournal) -> Served:
    """Take a server's decisions again from its journal, and say what each step held, and what steps and KV took.

    Raises:
        InputError: The journal is damaged.
    """
    tables = Tables(
        run=np.array(journal.head.tables.run, np.int64),
        engines=np.array(journal.head.tables.engines, np.int64),
        links=np.array(journal.head.tables.links, np.int64),
    )
    state = fresh(tables, journal.head.file.max_sequences)
    count_engines = len(journal.head.file.engines)
    running: list[ServedStep | None] = [None] * count_engines
    free_ns = [0] * count_engines
    """By engine: when it last ended a step or had read KV."""
    moving: dict[tuple[int, int], _Moving] = {}
    found = Served([], [], [])
    values = journal.arguments["value"].to_numpy()
    place = 0
    for kind, now_ns, count in journal.events.iter_rows():
        mine = [int(one) for one in values[place : place + count]]
        place += count
        if EVENTS[kind] == "step_done":
            step = running[mine[0]]
            if step is not None:
                found.steps.append(msgspec.structs.replace(step, ended_ns=now_ns))
            running[mine[0]], free_ns[mine[0]] = None, now_ns
        elif EVENTS[kind] == "arrival":
            found.learned.append(state.engines.copy())
        elif EVENTS[kind] == "handover":
            _moved(now_ns, mine, moving, running, free_ns, found.handovers)
        if not call_desk(kind, now_ns, np.array(mine, np.int64), tables, state):
            raise InputError(f"journal: an event at {now_ns} ns cannot be taken again. Run `loadslice check` on it.")
        for effect in state.effects[: int(state.counters[c.C_EFFECTS])].tolist():
            if effect[c.F_KIND] == c.STEP:
                running[effect[c.F_A]] = _held(state, effect[c.F_A], now_ns)
            elif effect[c.F_KIND] == c.HAND_OVER:
                tokens = int(state.sequences[effect[c.F_ROW], c.Q_COMPUTED])
                key = (effect[c.F_ROW], effect[c.F_C])
                moving[key] = _Moving(effect[c.F_A], effect[c.F_B], tokens, now_ns)
    return found


def _moved(
    now_ns: int,
    said: Sequence[int],
    moving: dict[tuple[int, int], _Moving],
    running: list[ServedStep | None],
    free_ns: list[int],
    found: list[ServedHandover],
) -> None:
    """KV has been written, or read: what its engine was told to compute next begins only now."""
    row, epoch, what = said
    one = moving.pop((row, epoch), None)
    if one is None or what == desk.BROKEN:
        return
    engine = one.prefill if what == desk.EXPORTED else one.decode
    step = running[engine]
    if step is not None and step.began_ns >= (one.began_ns if what == desk.EXPORTED else one.exported_ns):
        running[engine] = msgspec.structs.replace(step, began_ns=now_ns)
    if what == desk.EXPORTED:
        moving[row, epoch] = one._replace(exported_ns=now_ns)
        return
    export_ns, import_ns = one.exported_ns - one.began_ns, now_ns - max(one.exported_ns, free_ns[engine])
    found.append(ServedHandover(one.prefill, one.decode, one.tokens, export_ns, import_ns, now_ns))
    free_ns[engine] = now_ns


def _held(state: State, engine: int, now_ns: int) -> ServedStep:
    rows = state.rows[engine, : int(state.engines[engine, c.N_STEPPING])]
    members = state.sequences[rows[:, c.P_SEQUENCE]]
    tokens, computed = rows[:, c.P_TOKENS], members[:, c.Q_COMPUTED]
    decodes = members[:, c.Q_FILLING] == 0
    pairs = tokens * computed + tokens * tokens // 2
    return ServedStep(
        engine=engine,
        prompt_tokens=int(tokens[~decodes].sum()),
        rows=int(decodes.sum()),
        pairs=int(pairs[decodes].sum()),
        prompt_pairs=int(pairs[~decodes].sum()),
        began_ns=now_ns,
        ended_ns=0,
    )


def held_by(steps: Sequence[ServedStep], profile: LanguageProfile, names: Sequence[str]) -> dict[str, list[Held]]:
    """Single steps by engine, with how much longer those that computed meanwhile should have made them."""
    held: dict[str, list[Held]] = {name: [] for name in names}
    spans = {
        name: np.array([(one.began_ns, one.ended_ns) for one in steps if names[one.engine] == name]).reshape(-1, 2)
        for name in names
    }
    for index, name in enumerate(names):
        mine = [one for one in steps if one.engine == index]
        took_ns = np.maximum(1, spans[name][:, 1] - spans[name][:, 0])
        company = np.ones(len(mine))
        for other, longer in profile.beside.get(name, {}).items():
            if other in spans:
                company *= 1 + longer * shared_ns(spans[name], spans[other]) / took_ns
        idle_ns = spans[name][:, 0] - np.concatenate(([0], spans[name][:-1, 1])) if mine else np.zeros(0)
        tokens = np.array([0, *(one.prompt_tokens + one.rows for one in mine)])
        found = zip(mine, company, took_ns / 1e6, idle_ns >= COLD_AFTER_NS, tokens[1:] != tokens[:-1], strict=True)
        held[name] = [
            Held(one.prompt_tokens, one.rows, one.pairs, one.prompt_pairs, float(times), float(took), *map(bool, how))
            for one, times, took, *how in found
        ]
    return held


def shared_ns(spans: Ints, others: Ints) -> Floats:
    """For how long each span runs beside others that do not overlap: [N, 2] and [M, 2] of when they began and ended."""
    if not len(others):
        return np.zeros(len(spans))
    ordered = others[np.argsort(others[:, 0])]
    before = np.concatenate(([0], np.cumsum(ordered[:, 1] - ordered[:, 0])))
    busy = np.column_stack((before[:-1], before[1:])).reshape(-1)
    knots = ordered.reshape(-1)
    until: Floats = np.interp(spans, knots, busy)
    return until[:, 1] - until[:, 0]


def parts_of(steps: Sequence[ServedStep], profile: LanguageProfile, names: Sequence[str]) -> dict[str, list[float]]:
    """Single steps by engine, in parts of what they should take beside those that computed meanwhile."""
    return {
        name: [
            one.took_ms
            / one.company
            / (
                expected_ms(profile.engines[name].cost, profile.engines[name].shape, *one[:4])
                + profile.engines[name].cold_ms * one.is_cold
                + profile.engines[name].reshape_ms * one.is_reshaped
            )
            for one in held
        ]
        for name, held in held_by(steps, profile, names).items()
    }


def load_for(profile: LanguageProfile, language: Language, *, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals of prompts of all lengths that keep the busiest engine about half busy."""
    draws = np.random.default_rng(seed)
    most = min(LENGTHS[1], language.context - ANSWER - 1)
    lengths = np.exp(draws.uniform(np.log(min(LENGTHS[0], most)), np.log(most), 4096)).astype(int)
    needs_ms = []
    for name, engine in language.engines.items():
        times = profile.engines[name]
        each = 0.0
        if "prefill" in engine.roles:
            each += float(
                np.mean([expected_ms(times.cost, times.shape, int(n), 0, 0, n * n / 2) for n in lengths[:200]])
            )
        if "decode" in engine.roles:
            # Four share a step at this load.
            each += ANSWER * expected_ms(times.cost, times.shape, 0, 4, 4 * float(np.mean(lengths)), 0) / 4
        needs_ms.append(each)
    rate_per_s = UTILISATION * 1e3 / max(needs_ms)
    count = max(8, round(seconds * rate_per_s))
    at_s = np.cumsum(draws.exponential(1 / rate_per_s, count))
    return [
        Ask(at_s=float(at), prompt=draws.integers(100, 4000, int(length)).tolist(), tokens=ANSWER)
        for at, length in zip(at_s, lengths, strict=False)
    ]


def under_load(
    profile: LanguageProfile, language: Language, model: Path, *, seconds: float, seed: int
) -> LanguageProfile:
    """Serve a load on this machine and put what it says into a profile."""
    asks = load_for(profile, language, seconds=seconds, seed=seed)
    journal, heard = serve(profile, language, model, asks)
    return as_seen(profile, served(journal), journal.requests.sort("tag"), heard, asks[-1].at_s)


def as_seen(
    profile: LanguageProfile, found: Served, requests: pl.DataFrame, heard: Sequence[Heard], seconds: float
) -> LanguageProfile:
    """A profile whose steps and hand-overs take what they took in a server.

    Args:
        profile: Of each engine alone.
        found: Served.
        requests: Of the journal, in order of arrival.
        heard: What the client heard of each.
        seconds: For which the load was served.
    """
    engines = dict(profile.engines)
    names = list(engines)
    for name, held in held_by(found.steps, profile, names).items():
        times = engines[name]
        fit = as_served(times.cost, times.shape, held, times.reshape_ms)
        engines[name] = msgspec.structs.replace(
            times, cost=fit.cost, noise=fit.noise or times.noise, cold_ms=fit.cold_ms, reshape_ms=fit.reshape_ms
        )
    handovers = []
    for link in profile.handovers:
        mine = [one for one in found.handovers if (names[one.prefill], names[one.decode]) == (link.from_, link.to)]
        if len(mine) >= HANDOVERS_LEAST:
            times_ms = [(one.export_ns + one.import_ns) / 1e6 for one in mine]
            line = handover_line([one.tokens for one in mine], times_ms)
            link = msgspec.structs.replace(link, **line._asdict(), n=link.n + len(mine))
        handovers.append(link)
    outside_ms = np.array([np.nan if one.first_ms is None else one.first_ms for one in heard])
    ways_ms = outside_ms - first_times_ms(requests)
    way_ms = max(0.0, float(np.nanmedian(ways_ms))) if np.isfinite(ways_ms).any() else 0.0
    serving = ServingTime(request_ms=way_ms, seconds=seconds, requests=len(heard))
    return msgspec.structs.replace(profile, engines=engines, handovers=handovers, serving=serving)


def first_times_ms(requests: pl.DataFrame) -> Floats:
    """Arrival to first token as the desk saw it, of each request of a journal; NaN: it had none."""
    times = (requests["first_ns"] - requests["arrival_ns"]).cast(pl.Float64)
    return times.fill_null(np.nan).to_numpy() / 1e6


def serve(
    profile: LanguageProfile, language: Language, model: Path, asks: Sequence[Ask]
) -> tuple[LanguageJournal, list[Heard]]:
    """Start a server on a profile's costs, send it requests from a process of its own, and stop it.

    Returns:
        Its journal, and what the client heard.
    """
    with tempfile.TemporaryDirectory(prefix="loadslice-") as scratch:
        folder = Path(scratch) / "journal"
        heard = asyncio.run(_serve(profile, language, model, asks, folder))
        return load_language_journal(folder), heard


async def _serve(
    profile: LanguageProfile, language: Language, model: Path, asks: Sequence[Ask], journal: Path
) -> list[Heard]:
    server = LanguageServer(
        with_links(language, profile),
        model,
        port=0,
        costs=costs_of(profile),
        beside=profile.beside,
        journal=journal,
    )
    await server.start()
    try:
        with process_apart() as pool:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, send_apart, server.url, language.language, list(asks))
    finally:
        await server.stop()
