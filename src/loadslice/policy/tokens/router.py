"""Where a sequence is prefilled and where it is decoded, with the reason.

The decoding engine is chosen first: its KV is reserved before the prompt is begun. Then one of five policies says
whether the prompt is computed there or handed over. Four are what other systems offer; ``cost`` compares what each way
is expected to take until the first token, charges each way for the tokens of others that it would hold up, and stops
when as many have been held up as may be: means hide what the last hundredth of users sees.
"""

from loadslice.policy.kernel import kernel, rare
from loadslice.policy.layout import Int64s
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.estimate import (
    handover_ns,
    late_ns,
    prompt_ns,
    scaled,
    step_ns,
    steps_of,
    tokens_within,
    wait_ns,
)
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.memory import blocks_for
from loadslice.spec.route import Route

NONE, ONLY_LOCAL, ONLY_REMOTE = int(Route.NONE), int(Route.ONLY_LOCAL), int(Route.ONLY_REMOTE)
POLICY_LOCAL, POLICY_REMOTE = int(Route.POLICY_LOCAL), int(Route.POLICY_REMOTE)
SHORT, LONG, BUSY = int(Route.SHORT), int(Route.LONG), int(Route.BUSY)
LOCAL_FASTER, REMOTE_FASTER = int(Route.LOCAL_FASTER), int(Route.REMOTE_FASTER)
SPARING = int(Route.SPARING)


@kernel
def may_decode(tables: Tables, state: State, engine: int, tokens: int) -> bool:
    """Whether an engine is up, decodes, and could ever hold a sequence of so many tokens."""
    settings = tables.engines[engine]
    return bool(
        state.engines[engine, c.N_DOWN] == 0
        and settings[c.E_DECODES] == 1
        and blocks_for(tables, tokens + 1) <= settings[c.E_BLOCKS]
    )


@kernel
def may_prefill(tables: Tables, state: State, engine: int, decode: int, prompt: int) -> bool:
    """Whether an engine is up, takes a prompt of this length, and reaches the decoding engine."""
    settings = tables.engines[engine]
    if state.engines[engine, c.N_DOWN] == 1 or settings[c.E_PREFILLS] == 0 or prompt > settings[c.E_PROMPT_MAX]:
        return False
    if engine == decode:
        return True
    return bool(tables.links[engine, decode, c.K_SLOTS] > 0 and blocks_for(tables, prompt) <= settings[c.E_BLOCKS])


@kernel
def remote_ns(
    now_ns: int, tables: Tables, state: State, priority: int, engine: int, decode: int, prompt: int, hit: int
) -> int:
    """Expected time until a prompt has its first token at another engine, and what its second comes later for it."""
    compute_ns = prompt_ns(tables, state, engine, prompt - hit, hit)
    return int(
        wait_ns(now_ns, tables, state, engine, priority)
        + compute_ns
        + handover_ns(tables, state, engine, decode, prompt)
    )


@kernel
def local_ns(now_ns: int, tables: Tables, state: State, priority: int, decode: int, prompt: int, hit: int) -> int:
    """The same on the decoding engine itself, where every chunk shares its step with sequences that decode."""
    settings = tables.engines[decode]
    at_once = piece_of(tables, state, decode, prompt - hit, hit)
    steps = (prompt - hit + at_once - 1) // at_once
    more_ns = (steps - steps_of(tables, decode, prompt - hit)) * settings[c.E_STEP_NS]
    beside_ns = steps * state.engines[decode, c.N_SEATS_USED] * settings[c.E_ROW_NS]
    compute_ns = prompt_ns(tables, state, decode, prompt - hit, hit)
    others_ns = scaled(tables, state, decode, more_ns + beside_ns)
    return int(wait_ns(now_ns, tables, state, decode, priority) + compute_ns + others_ns)


@kernel
def piece_of(tables: Tables, state: State, decode: int, missing: int, hit: int) -> int:
    """Tokens of a prompt that a step takes with those who decode there now."""
    settings = tables.engines[decode]
    tokens = min(missing, min(settings[c.E_CHUNK], settings[c.E_STEP_TOKENS]))
    beside = state.engines[decode, c.N_SEATS_USED]
    if beside == 0 or settings[c.E_STEP_NS_MAX] == c.FOREVER:
        return int(tokens)
    room_ns = settings[c.E_STEP_NS_MAX] - step_ns(tables, state, decode, 0, beside, 0, 0)
    return int(min(tokens, tokens_within(tables, state, decode, room_ns, hit)))


@kernel
def held_up_ppm(state: State, decode: int) -> int:
    """Who decodes while a prompt is computed, in millionths of a sequence.

    Whoever comes meanwhile is held up too: an empty engine is not empty for long in a busy hour.
    """
    counts = state.engines[decode]
    return int(max(counts[c.N_SEATS_USED] * c.PPM, counts[c.N_MET_PPM]))


@kernel
def lost_beside_ns(tables: Tables, first: int, second: int, time_ns: int) -> int:
    """What an engine loses of its own time while another computes for so long: where the two share processors."""
    longer_ppm = tables.links[first, second, c.K_BESIDE_PPM]
    return int(time_ns // 1000 * (longer_ppm * 1000 // (c.PPM + longer_ppm)))


@kernel
def held_up_ns(tables: Tables, state: State, decode: int, engine: int, prompt: int, hit: int) -> int:
    """What all others together lose while a prompt is computed at ``engine``.

    Those who decode there stand still meanwhile. Those beside it, who decode or wait for their first tokens, are slower
    where the engines share processors.
    """
    time_ns = prompt_ns(tables, state, engine, prompt - hit, hit)
    own_ns = time_ns if engine == decode else lost_beside_ns(tables, decode, engine, time_ns)
    lost_ns = own_ns // 1000 * (held_up_ppm(state, decode) // 1000) // 1000 * (tables.run[c.T_PENALTY_PPM] // 1000)
    for other in range(state.engines.shape[0]):
        if other != engine and other != decode:
            prompts = state.engines[other, c.N_SEATS_USED] + state.engines[other, c.N_WAITING]
            lost_ns += prompts * lost_beside_ns(tables, other, engine, time_ns)
    return int(lost_ns)


@kernel
def is_late(tables: Tables, state: State, decode: int, missing: int, hit: int) -> bool:
    """Whether those who decode would say that their tokens came late, if a prompt were computed in their steps."""
    tokens = piece_of(tables, state, decode, missing, hit)
    beside = max(1, state.engines[decode, c.N_SEATS_USED])
    longest_ns = step_ns(tables, state, decode, tokens, beside, 0, tokens * tokens // 2)
    return bool(longest_ns > late_ns(tables, state, decode))


@rare
def choose_decode(
    now_ns: int, tables: Tables, state: State, priority: int, prompt: int, new_max: int, hits: Int64s
) -> int:
    """The decoding engine with the least expected wait, prefix found there counted; -1: none can hold it."""
    best, best_ns = -1, c.FOREVER
    for engine in range(tables.engines.shape[0]):
        if not may_decode(tables, state, engine, prompt + new_max):
            continue
        missing = prompt - hits[engine]
        time_ns = wait_ns(now_ns, tables, state, engine, priority) + scaled(
            tables,
            state,
            engine,
            missing * tables.engines[engine, c.E_TOKEN_NS]
            + state.engines[engine, c.N_SEATS_USED] * tables.engines[engine, c.E_ROW_NS],
        )
        if time_ns < best_ns:
            best, best_ns = engine, time_ns
    return best


@rare
def choose_prefill(
    now_ns: int, tables: Tables, state: State, priority: int, decode: int, prompt: int, hits: Int64s
) -> int:
    """The other engine from which the KV is expected first, what it takes from others counted; -1: there is none."""
    best, best_ns = -1, c.FOREVER
    for engine in range(tables.engines.shape[0]):
        if engine == decode or not may_prefill(tables, state, engine, decode, prompt):
            continue
        time_ns = remote_ns(now_ns, tables, state, priority, engine, decode, prompt, hits[engine])
        time_ns += held_up_ns(tables, state, decode, engine, prompt, hits[engine])
        if time_ns < best_ns:
            best, best_ns = engine, time_ns
    return best


@rare
def route(
    now_ns: int, tables: Tables, state: State, priority: int, remote: int, decode: int, prompt: int, hits: Int64s
) -> int:
    """Whether to compute a prompt at ``remote`` or at the decoding engine: a `Route`, positive codes are remote.

    Returns:
        NONE when neither can.
    """
    can_local = may_prefill(tables, state, decode, decode, prompt)
    if remote < 0:
        return ONLY_LOCAL if can_local else NONE
    if not can_local:
        return ONLY_REMOTE
    policy = tables.run[c.T_POLICY]
    missing = prompt - hits[decode]
    if policy == c.ALWAYS_LOCAL:
        return POLICY_LOCAL
    if policy == c.ALWAYS_REMOTE:
        return POLICY_REMOTE
    if policy == c.LENGTH or policy == c.LENGTH_OR_LOAD:
        if missing < tables.run[c.T_LENGTH]:
            return SHORT
        if policy == c.LENGTH_OR_LOAD and state.backlog[remote, priority] > tables.run[c.T_LOAD_TOKENS]:
            return BUSY
        return LONG
    here_ns = local_ns(now_ns, tables, state, priority, decode, prompt, hits[decode])
    here_ns += held_up_ns(tables, state, decode, decode, prompt, hits[decode])
    there_ns = remote_ns(now_ns, tables, state, priority, remote, decode, prompt, hits[remote])
    there_ns += held_up_ns(tables, state, decode, remote, prompt, hits[remote])
    if there_ns < here_ns:
        return REMOTE_FASTER
    if not is_late(tables, state, decode, missing, hits[decode]):
        return LOCAL_FASTER
    late_ppm = steps_of(tables, decode, missing) * held_up_ppm(state, decode)
    return SPARING if late_ppm > max(0, state.engines[decode, c.N_LATE_PPM]) else LOCAL_FASTER


@kernel
def is_remote_route(code: int) -> bool:
    """Whether a route hands over."""
    return code in (ONLY_REMOTE, POLICY_REMOTE, LONG, REMOTE_FASTER, SPARING)
