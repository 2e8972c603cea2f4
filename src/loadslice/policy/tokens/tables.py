"""Lowers a language file to arrays, once, for both shells; and makes the state they are decided on."""

from collections.abc import Mapping

import numpy as np

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables
from loadslice.spec.errors import InputError
from loadslice.spec.language import ROUTER_POLICIES, Language, LanguageEngine, StepCost

Company = Mapping[str, Mapping[str, float]]

_NS_PER_MS, _NS_PER_US, _PS_PER_NS = 1_000_000, 1_000, 1_000


def lower(
    language: Language,
    costs: Mapping[str, StepCost] | None = None,
    beside: Company | None = None,
) -> Tables:
    """Lower a checked language file.

    Args:
        language: From `spec.language.load_language`.
        costs: Step costs by engine, as measured; they stand before those in the file.
        beside: ``[first][second]``, by which share a step of the first is longer while the second computes, as
            measured; engines that are not in the file are passed over.

    Returns:
        Arrays as `Tables` describes them.

    Raises:
        InputError: An engine's costs are known from neither.
    """
    names = list(language.engines)
    engines = np.zeros((len(names), c.ENGINE_SETTINGS), np.int64)
    links = np.zeros((len(names), len(names), c.LINK_SETTINGS), np.int64)
    for index, (name, engine) in enumerate(language.engines.items()):
        cost = (costs or {}).get(name, engine.cost)
        if cost is None:
            raise InputError(
                f"engine '{name}': what its steps cost is not known. Run `loadslice profile` on the language file, or "
                "give it `cost: {step_ms, token_us, row_us}`."
            )
        engines[index] = _engine_row(engine, cost, language)
    for link in language.links:
        row = links[names.index(link.from_), names.index(link.to)]
        row[c.K_SLOTS] = link.slots
        row[c.K_BASE_NS] = round(link.base_ms * _NS_PER_MS)
        row[c.K_TOKEN_NS] = round(link.token_us * _NS_PER_US)
    for first, others in (beside or {}).items():
        for second, longer in others.items():
            if first in names and second in names:
                links[names.index(first), names.index(second), c.K_BESIDE_PPM] = round(longer * c.PPM)
    return Tables(run=_run_row(language), engines=engines, links=links)


def _run_row(language: Language) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    row = np.zeros(c.RUN_SETTINGS, np.int64)
    router = language.router
    row[c.T_POLICY] = ROUTER_POLICIES.index(router.policy)
    row[c.T_LENGTH] = router.length
    row[c.T_LOAD_TOKENS] = router.load_tokens
    row[c.T_PENALTY_PPM] = round(router.penalty * c.PPM)
    row[c.T_LATE_PPM] = round(router.late_share * c.PPM)
    row[c.T_BLOCK] = language.block
    row[c.T_CONTEXT] = language.context
    row[c.T_LEASE_NS] = round(language.lease_ms * _NS_PER_MS)
    row[c.T_ATTEMPTS] = language.attempts
    return row


def _engine_row(
    engine: LanguageEngine, cost: StepCost, language: Language
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    row = np.zeros(c.ENGINE_SETTINGS, np.int64)
    row[c.E_PREFILLS] = "prefill" in engine.roles
    row[c.E_DECODES] = "decode" in engine.roles
    row[c.E_BLOCKS] = engine.kv_tokens // language.block
    row[c.E_SEATS] = engine.seats
    row[c.E_STEP_TOKENS] = engine.step_tokens
    row[c.E_CHUNK] = engine.chunk or language.context
    row[c.E_STEP_NS_MAX] = c.FOREVER if engine.step_ms_max is None else round(engine.step_ms_max * _NS_PER_MS)
    row[c.E_PROMPT_MAX] = engine.prompt_max or language.context
    row[c.E_QUEUE] = engine.queue
    row[c.E_STEP_NS] = round(cost.step_ms * _NS_PER_MS)
    row[c.E_TOKEN_NS] = round(cost.token_us * _NS_PER_US)
    row[c.E_ROW_NS] = round(cost.row_us * _NS_PER_US)
    row[c.E_ATTEND_PS] = round(cost.attend_ns * _PS_PER_NS)
    prompt_attend_ns = cost.attend_ns if cost.prompt_attend_ns is None else cost.prompt_attend_ns
    row[c.E_PROMPT_ATTEND_PS] = round(prompt_attend_ns * _PS_PER_NS)
    return row


def fresh(tables: Tables, max_sequences: int) -> State:
    """An empty state.

    Args:
        tables: Lowered.
        max_sequences: Requests in the system at once.
    """
    count = tables.engines.shape[0]
    seats = int(tables.engines[:, c.E_SEATS].max())
    state = State(
        sequences=np.zeros((max_sequences, c.SEQUENCE_COLUMNS), np.int64),
        engines=np.zeros((count, c.ENGINE_COLUMNS), np.int64),
        waiting=np.zeros((count, c.CLASSES, c.WAITING_COLUMNS), np.int64),
        backlog=np.zeros((count, c.CLASSES), np.int64),
        backlog_pairs=np.zeros((count, c.CLASSES), np.int64),
        running=np.zeros((count, seats), np.int64),
        rows=np.zeros((count, seats, c.ROW_COLUMNS), np.int64),
        gaps=np.zeros((count, seats), np.int64),
        slots=np.zeros((count, count), np.int64),
        blocked=np.zeros(count, np.int64),
        counters=np.zeros(c.COUNTERS, np.int64),
        dirty=np.zeros(2 * count, np.int64),
        # In one event every sequence may end or be moved, giving back at two engines on its way.
        effects=np.zeros((6 * max_sequences + count + 8, c.EFFECT_COLUMNS), np.int64),
    )
    state.sequences[:, c.Q_NEXT] = np.arange(1, max_sequences + 1)
    state.sequences[-1, c.Q_NEXT] = -1
    state.waiting[:, :, : c.W_COUNT] = -1
    state.engines[:, c.N_SCALE_PPM] = c.PPM
    # Until requests have come, one is believed to be there: an empty engine says nothing of the minute after.
    state.engines[:, c.N_MET_PPM] = c.PPM
    state.counters[c.C_EARLIEST_NS] = c.FOREVER
    state.counters[c.C_NEXT_TIMER_NS] = c.FOREVER
    return state
