"""Column numbers of the token desk's arrays. All values are int64; times are ns since the run began."""

from loadslice.policy.columns import FOREVER, PPM, REFUSED

__all__ = ["FOREVER", "PPM", "REFUSED"]

CLASSES = 4

# Run settings.
(
    T_POLICY,
    T_LENGTH,
    T_LOAD_TOKENS,
    T_PENALTY_PPM,
    T_LATE_PPM,  # share of tokens that may come late for prompts which could be computed elsewhere
    T_BLOCK,
    T_CONTEXT,
    T_LEASE_NS,
    T_ATTEMPTS,
    RUN_SETTINGS,
) = range(10)

# Router policies.
ALWAYS_LOCAL, ALWAYS_REMOTE, LENGTH, LENGTH_OR_LOAD, COST = range(5)

# Engine settings.
(
    E_PREFILLS,  # 1: computes prompts
    E_DECODES,  # 1: continues sequences
    E_BLOCKS,  # of KV
    E_SEATS,  # sequences that hold KV at once
    E_STEP_TOKENS,  # tokens of one step at most
    E_CHUNK,  # tokens of one prompt in one step at most
    E_STEP_NS_MAX,  # what a step may be expected to take when somebody decodes in it
    E_PROMPT_MAX,  # longest prompt
    E_QUEUE,  # sequences that may wait
    E_STEP_NS,  # a step's time: this,
    E_TOKEN_NS,  # and this per token of a prompt,
    E_ROW_NS,  # and this per sequence that decodes,
    E_ATTEND_PS,  # and this per sequence that decodes and token before it,
    E_PROMPT_ATTEND_PS,  # and this per token of a prompt and token before it
    ENGINE_SETTINGS,
) = range(15)

# From one engine to another.
(
    K_SLOTS,  # of the link by which the first hands KV to the second; 0: there is none
    K_BASE_NS,
    K_TOKEN_NS,
    K_BESIDE_PPM,  # by how much a step of the first takes longer while the second computes, millionths
    LINK_SETTINGS,
) = range(5)

# Sequences.
(
    Q_STATUS,
    Q_TAG,
    Q_CLASS,
    Q_NEXT,
    Q_PREVIOUS,
    Q_PROMPT,
    Q_NEW_MAX,
    Q_PRODUCED,
    Q_COMPUTED,  # tokens whose KV stands where the sequence is
    Q_HIT,  # of those, found in the prefix cache when it was placed
    Q_FILLING,  # 1: its prompt (and what it had produced) is still being computed
    Q_AT,  # engine whose queue or running set it is in
    Q_PREFILL,
    Q_DECODE,
    Q_PREFILL_BLOCKS,  # held at the prefilling engine while that is another one
    Q_DECODE_BLOCKS,  # held at the decoding engine
    Q_SEATED_NS,  # when it got its seat at the decoding engine
    Q_ARRIVAL_NS,
    Q_FIRST_BY_NS,  # its first token must be there by then
    Q_DEADLINE_NS,  # and its last by then
    Q_FIRST_NS,
    Q_LAST_NS,
    Q_IN_STEP,  # 1: in the step that runs now
    Q_SLOT,  # 1: it holds a slot of the link
    Q_IMPORTING,  # 1: its KV has left the first engine, and the second reads it before its next step
    Q_HANDED,  # 1: its KV has come, and no token since
    Q_LOST,  # 1: its decoding engine was lost while its prompt is being computed elsewhere
    Q_DOOMED,  # 1: its outcome is known; what it holds goes back when the step or the hand-over ends
    Q_ATTEMPTS,  # hand-overs begun, and engines lost
    Q_EPOCH,  # of its hand-over
    Q_LEASE_NS,  # the hand-over has failed at this time
    Q_ORDER,  # number of its admission: who is the newest
    SEQUENCE_COLUMNS,
) = range(33)

FREE, WAITING, RUNNING, HANDING_OVER = range(4)

# Engines.
(
    N_DOWN,
    N_EPOCH,
    N_STEPPING,  # rows of the step that runs now, 0: none
    N_STEP_BEGAN_NS,
    N_STEP_EXPECTED_NS,
    N_BLOCKS_USED,
    N_SEATS_USED,
    N_RUNNING,
    N_WAITING,
    N_SCALE_PPM,  # step times as seen, in parts of what the settings say
    N_HELD_NS,  # mean time that a sequence keeps its seat; 0: not known
    N_LATE_PPM,  # tokens that may still come late for prompts, in millionths; below 0: more did than should have
    N_MET_PPM,  # seats that requests found taken when they came, on average: Poisson arrivals see time averages
    N_STEPS,
    N_PREFILL_TOKENS,
    N_DECODE_TOKENS,
    N_PREEMPTIONS,
    N_DIRTY,
    N_ROWS_BEHIND,  # rows of the step before that had nothing to show yet
    N_IMPORTING,  # sequences whose KV it reads before its next step
    N_SECOND_NS,  # from the first token to the second, of answers whose KV was handed over; 0: not known
    ENGINE_COLUMNS,
) = range(22)

# Waiting lists, one per engine and class.
W_HEAD, W_TAIL, W_COUNT, WAITING_COLUMNS = range(4)

# A row of a step.
P_SEQUENCE, P_TOKENS, P_SAMPLES, ROW_COLUMNS = range(4)

# What a row of a step came to.
(
    GOES_ON,  # also of a row that sampled nothing
    ENDS,  # with the token that it sampled
    LATE,  # nothing yet, of an engine whose sequences do not advance together: it stands in the next step again
    LOST,  # the engine cannot go on with it
) = range(4)

# Counters.
(
    C_NOW_NS,
    C_EFFECTS,
    C_DIRTY,
    C_FREE_HEAD,
    C_IN_SYSTEM,
    C_SUBMITTED,
    C_ORDER,
    C_DRAINING,
    C_NEXT_TIMER_NS,
    C_EARLIEST_NS,  # no deadline or lease is earlier
    C_HANDOVERS,
    C_HANDOVERS_FAILED,
    C_LEASES_EXPIRED,
    C_FALLBACKS,
    C_OUTCOMES,  # by outcome code, 7 of them
) = range(15)
COUNTERS = C_OUTCOMES + 7

# Effects: kind, tag, row, a, b, c.
F_KIND, F_TAG, F_ROW, F_A, F_B, F_C, EFFECT_COLUMNS = range(7)
(
    PLACED,  # a prefilling engine, b decoding engine, c route
    STEP,  # tag -1, row -1, a engine, b epoch, c rows: `State.rows[engine, :c]`
    HAND_OVER,  # a from, b to, c epoch
    PREEMPTED,  # a engine
    FREED,  # a engine: its KV is to be given back there
    ENDED,  # a outcome, b reason, c hint (ns)
) = range(6)
