"""How long steps, prompts and waits are expected to take; the router and the cap on steps read it.

A step's time is linear in what it holds: a base, so much per prompt token, so much per sequence that decodes, and so
much per token and token before it (attention). Measured steps fit it within a few per cent; what is left, and whatever
else happens to an engine, is in ``N_SCALE_PPM``, learned step by step.
"""

from loadslice.policy.kernel import kernel
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables

ATTENTION_PAIRS_MAX = 1 << 40
SCALE_PPM_MIN, SCALE_PPM_MAX = 10_000, 1_000_000_000


@kernel
def scaled(state: State, engine: int, time_ns: int) -> int:
    """A time by the settings at the speed that is seen now."""
    return int(time_ns * (state.engines[engine, c.N_SCALE_PPM] // 1000) // 1000)


@kernel
def step_ns(tables: Tables, state: State, engine: int, prompt_tokens: int, decoding: int, pairs: int) -> int:
    """Expected time of a step.

    Args:
        tables: Settings.
        state: Read only.
        engine: Which.
        prompt_tokens: Tokens of prompts in it.
        decoding: Sequences that decode in it.
        pairs: Sum over its tokens of the tokens before them.
    """
    settings = tables.engines[engine]
    time_ns = (
        settings[c.E_STEP_NS]
        + prompt_tokens * settings[c.E_TOKEN_NS]
        + decoding * settings[c.E_ROW_NS]
        + min(pairs, ATTENTION_PAIRS_MAX) * settings[c.E_ATTEND_PS] // 1000
    )
    return scaled(state, engine, time_ns)


@kernel
def prompt_ns(tables: Tables, state: State, engine: int, tokens: int, computed: int) -> int:
    """Expected time to compute a prompt's missing tokens, alone, chunk by chunk."""
    settings = tables.engines[engine]
    chunk = min(settings[c.E_CHUNK], settings[c.E_STEP_TOKENS])
    steps = (tokens + chunk - 1) // chunk
    pairs = tokens * computed + tokens * tokens // 2
    once = step_ns(tables, state, engine, tokens, 0, pairs)
    return int(once + (steps - 1) * scaled(state, engine, settings[c.E_STEP_NS]))


@kernel
def wait_ns(now_ns: int, tables: Tables, state: State, engine: int, priority: int) -> int:
    """Expected time until a prompt that arrives now would be begun: the step that runs, the prompts not below it."""
    counts, settings = state.engines[engine], tables.engines[engine]
    left_ns = 0
    if counts[c.N_STEPPING] > 0:
        left_ns = max(0, counts[c.N_STEP_BEGAN_NS] + counts[c.N_STEP_EXPECTED_NS] - now_ns)
    backlog_ns = scaled(state, engine, state.backlog[engine, priority] * settings[c.E_TOKEN_NS])
    over = counts[c.N_SEATS_USED] + counts[c.N_WAITING] + 1 - settings[c.E_SEATS]
    seat_ns = over * counts[c.N_HELD_NS] // settings[c.E_SEATS] if over > 0 else 0
    return int(left_ns + backlog_ns + seat_ns)


@kernel
def learn(state: State, engine: int, took_ns: int) -> None:
    """A step has ended: compare what it took with what was expected."""
    counts = state.engines[engine]
    expected_ns = counts[c.N_STEP_EXPECTED_NS]
    if expected_ns <= 0:
        return
    # An eighth of the way to what this step says; one stall of a hundred times counts as four times.
    took_ns = min(took_ns, 4 * expected_ns)
    scale_ppm = counts[c.N_SCALE_PPM]
    seen_ppm = scale_ppm * took_ns // expected_ns
    counts[c.N_SCALE_PPM] = min(SCALE_PPM_MAX, max(SCALE_PPM_MIN, (7 * scale_ppm + seen_ppm) // 8))
