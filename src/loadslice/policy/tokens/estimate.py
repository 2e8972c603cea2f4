"""How long steps, prompts and waits are expected to take; the router and the cap on steps read it.

A step's time is linear in what it holds: a base, so much per prompt token, so much per sequence that decodes, and so
much per token and token before it (attention: many tokens of a prompt read what came before at once, so theirs has a
price of its own). Measured steps fit it within a few per cent. Engines that share processors are longer while both
compute, by what is known of every two. What is left, and whatever else happens to an engine, is in ``N_SCALE_PPM``,
learned step by step.
"""

from loadslice.policy.kernel import kernel
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables

ATTENTION_PAIRS_MAX = 1 << 40
SCALE_PPM_MIN, SCALE_PPM_MAX = 10_000, 1_000_000_000
SECOND_STEPS = 4
LEAST_TOKENS = 8
"""Of a prompt, whatever the limit on steps says: else a slow engine would never finish one."""


@kernel
def scaled(tables: Tables, state: State, engine: int, time_ns: int) -> int:
    """A time by the settings at the speed that is seen now, beside those who compute now."""
    pace_ppm = state.engines[engine, c.N_SCALE_PPM] * 1
    for other in range(state.engines.shape[0]):
        if other != engine and state.engines[other, c.N_RUNNING] > 0:
            pace_ppm += pace_ppm // 1000 * (tables.links[engine, other, c.K_BESIDE_PPM] // 1000)
    return int(time_ns * (min(pace_ppm, SCALE_PPM_MAX) // 1000) // 1000)


@kernel
def step_ns(
    tables: Tables, state: State, engine: int, prompt_tokens: int, decoding: int, pairs: int, prompt_pairs: int
) -> int:
    """Expected time of a step.

    Args:
        tables: Settings.
        state: Read only.
        engine: Which.
        prompt_tokens: Tokens of prompts in it.
        decoding: Sequences that decode in it.
        pairs: Tokens before each of those, summed.
        prompt_pairs: Tokens before each token of a prompt, summed.
    """
    settings = tables.engines[engine]
    time_ns = (
        settings[c.E_STEP_NS]
        + prompt_tokens * settings[c.E_TOKEN_NS]
        + decoding * settings[c.E_ROW_NS]
        + min(pairs, ATTENTION_PAIRS_MAX) * settings[c.E_ATTEND_PS] // 1000
        + min(prompt_pairs, ATTENTION_PAIRS_MAX) * settings[c.E_PROMPT_ATTEND_PS] // 1000
    )
    return scaled(tables, state, engine, time_ns)


@kernel
def tokens_within(tables: Tables, state: State, engine: int, room_ns: int, computed: int) -> int:
    """Tokens of a prompt, with so many before them, that a step has so much time for; `LEAST_TOKENS` at least."""
    settings = tables.engines[engine]
    token_ns = settings[c.E_TOKEN_NS] + computed * settings[c.E_PROMPT_ATTEND_PS] // 1000
    return int(max(LEAST_TOKENS, room_ns // max(1, scaled(tables, state, engine, token_ns))))


@kernel
def steps_of(tables: Tables, engine: int, tokens: int) -> int:
    """Steps into which a prompt's missing tokens are cut."""
    chunk = min(tables.engines[engine, c.E_CHUNK], tables.engines[engine, c.E_STEP_TOKENS])
    return int((tokens + chunk - 1) // chunk)


@kernel
def prompt_ns(tables: Tables, state: State, engine: int, tokens: int, computed: int) -> int:
    """Expected time to compute a prompt's missing tokens, alone, chunk by chunk."""
    pairs = tokens * computed + tokens * tokens // 2
    once = step_ns(tables, state, engine, tokens, 0, 0, pairs)
    more = steps_of(tables, engine, tokens) - 1
    return int(once + more * scaled(tables, state, engine, tables.engines[engine, c.E_STEP_NS]))


@kernel
def packed_ns(tables: Tables, engine: int, tokens: int, pairs: int) -> int:
    """Time of tokens of prompts by the settings, in full steps: each token has its part of a step's base."""
    settings = tables.engines[engine]
    each_ns = settings[c.E_TOKEN_NS] + settings[c.E_STEP_NS] // settings[c.E_STEP_TOKENS]
    return int(tokens * each_ns + min(pairs, ATTENTION_PAIRS_MAX) * settings[c.E_PROMPT_ATTEND_PS] // 1000)


@kernel
def waits_ns(tables: Tables, state: State, engine: int, priority: int) -> int:
    """Time by the settings of prompts that wait, of a class and those above it.

    Those of the step that runs are in the backlog until it ends, and waited for with it.
    """
    tokens = state.backlog[engine, priority] * 1
    pairs = state.backlog_pairs[engine, priority] * 1
    for place in range(state.engines[engine, c.N_STEPPING]):
        row = state.rows[engine, place]
        sequence = state.sequences[row[c.P_SEQUENCE]]
        if sequence[c.Q_FILLING] == 1 and sequence[c.Q_CLASS] <= priority:
            tokens -= row[c.P_TOKENS]
            pairs -= row[c.P_TOKENS] * sequence[c.Q_COMPUTED] + row[c.P_TOKENS] * row[c.P_TOKENS] // 2
    return packed_ns(tables, engine, tokens, max(0, pairs))


@kernel
def wait_ns(now_ns: int, tables: Tables, state: State, engine: int, priority: int) -> int:
    """Expected time until a prompt that arrives now would be begun: the step that runs, the prompts not below it."""
    counts, settings = state.engines[engine], tables.engines[engine]
    left_ns = 0
    if counts[c.N_STEPPING] > 0:
        left_ns = max(0, counts[c.N_STEP_BEGAN_NS] + counts[c.N_STEP_EXPECTED_NS] - now_ns)
    backlog_ns = scaled(tables, state, engine, waits_ns(tables, state, engine, priority))
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
    ratio_ppm = took_ns * c.PPM // expected_ns if took_ns < 4 * expected_ns else 4 * c.PPM
    scale_ppm = counts[c.N_SCALE_PPM]
    seen_ppm = scale_ppm * ratio_ppm // c.PPM
    counts[c.N_SCALE_PPM] = min(SCALE_PPM_MAX, max(SCALE_PPM_MIN, (7 * scale_ppm + seen_ppm) // 8))


@kernel
def meet(state: State, engine: int) -> None:
    """A request has come: a sixteenth of what is known of the company that prompts have here is what it found."""
    counts = state.engines[engine]
    counts[c.N_MET_PPM] = (15 * counts[c.N_MET_PPM] + counts[c.N_SEATS_USED] * c.PPM) // 16


@kernel
def wait_for_second(state: State, engine: int, gap_ns: int) -> None:
    """An answer that was handed over has its second token: a sixteenth of what such a wait is taken for is this one."""
    counts = state.engines[engine]
    known_ns = counts[c.N_SECOND_NS]
    counts[c.N_SECOND_NS] = gap_ns if known_ns == 0 else (15 * known_ns + min(gap_ns, 4 * known_ns)) // 16


@kernel
def second_ns(tables: Tables, state: State, engine: int) -> int:
    """How long the second token of an answer that is handed over is waited for; 0: none has been.

    The wait is learned beside prompts that were computed here, so that it counts only up to `SECOND_STEPS` steps
    without one.
    """
    step = step_ns(tables, state, engine, 0, max(1, state.engines[engine, c.N_SEATS_USED]), 0, 0)
    return int(min(state.engines[engine, c.N_SECOND_NS], SECOND_STEPS * step))


@kernel
def late_ns(tables: Tables, state: State, engine: int) -> int:
    """The longest step whose tokens do not come late; 0: any with a prompt in it is longer.

    What the engine's file allows steps to take; or, in a split, what second tokens are waited for, the longest of its
    waits: a step that is no longer adds nothing to the tail.
    """
    allowed_ns = tables.engines[engine, c.E_STEP_NS_MAX] * 1
    return max(allowed_ns if allowed_ns < c.FOREVER else 0, second_ns(tables, state, engine))


@kernel
def handover_ns(tables: Tables, state: State, engine: int, decode: int, prompt: int) -> int:
    """Expected time by which the second token of an answer comes later for being handed over."""
    link = tables.links[engine, decode]
    least_ns = link[c.K_BASE_NS] + prompt * link[c.K_TOKEN_NS]
    step = step_ns(tables, state, decode, 0, max(1, state.engines[decode, c.N_SEATS_USED]), 0, 0)
    return int(max(least_ns, second_ns(tables, state, decode) - step))
