"""Names of the columns of every table the core keeps. All cells are int64; times are nanoseconds since the run began.

Row-wise tables keep what one decision reads side by side in memory, and one array per table keeps a compiled call
cheap: every array is unboxed anew at each call from Python.
"""

FOREVER = 2**62
"""A time that never comes."""

LONG_AGO_NS = 10**12
"""Before any run began."""

PPM = 1_000_000
"""Shares and scales are integers in parts per million, so that no sum depends on rounding."""

CLASSES = 4

BLOCKED_NS = 2**59
"""Added to the expected completion on an engine that may not be used; two of them are still far from FOREVER."""

# Engine settings (tables.engines); E_IS_SHARED 1: a tenant or, E_HAS_SHARES, a stage has a guarantee there;
# E_FILLS_APART 1: it has several lanes, and batches of more than one row
(
    E_MAX_INFLIGHT,
    E_QUEUE_LIMIT,
    E_OVERFLOW_AT,
    E_WAIT_LIMIT_NS,
    E_FIRST_SLOT,
    E_MEMORY_BYTES,
    E_IS_SHARED,
    E_HAS_SHARES,
    E_FILLS_APART,
    ENGINE_SETTINGS,
) = range(10)

# Run settings (tables.run); the floor of class k stands at W_FLOOR_PPM + k
(
    W_RETRY_PPM,
    W_RETRY_PER_S_PPM,
    W_RETRY_RESERVE_PPM,
    W_ATTEMPTS,
    W_HAS_FLOORS,
    W_OFFLINE_CLASSES,
    W_FIRST_STEP,
    W_FLOOR_PPM,
) = range(8)
RUN_SETTINGS = W_FLOOR_PPM + CLASSES

# Stage settings (tables.stages); a lane is a bucket of one version: bucket + version * S_BUCKETS
(
    S_TIMEOUT_NS,
    S_PREFER,
    S_FAILOVER_TO,
    S_SHARE_PPM,
    S_FAILOVER_CLASSES,
    S_FIRST_LANE,
    S_LANES,
    S_BUCKETS,
    S_DEGRADED,
    S_EXACT,
    STAGE_SETTINGS,
) = range(11)
PREFER_STATIC, PREFER_FASTEST, PREFER_CHEAPEST, PREFER_RULES = range(4)

# Per stage and engine (tables.pairs); P_SLOW_PPM is a batch's 95th percentile by its typical time; pads stand at
# P_FIRST_PAD + k, ascending, 0: no more
(
    P_BATCH_SIZE,
    P_WINDOW_NS,
    P_MAX_ITEMS,
    P_PRECISION,
    P_SHARE_PPM,
    P_MEMORY_BYTES,
    P_LOAD_NS,
    P_SLOW_PPM,
    P_FIRST_PAD,
) = range(9)
PADS_MAX = 8
PAIR_SETTINGS = P_FIRST_PAD + PADS_MAX

# Rules (tables.rules)
(
    U_STAGE,
    U_ITEMS_MIN,
    U_ITEMS_MAX,
    U_TOKENS_MIN,
    U_TOKENS_MAX,
    U_CLASSES,
    U_SOURCE,
    U_BUCKET,
    U_TO,
    RULE_SETTINGS,
) = range(10)
ANY = -1

# Breaker settings of a stage (tables.breakers), the same for each of its engines
(
    K_WINDOW,
    K_MIN_CALLS,
    K_FAILURE_PPM,
    K_SLOW_NS,
    K_SLOW_PPM,
    K_OPEN_NS,
    K_OPEN_NS_MAX,
    K_PERMITS,
    K_HALF_OPEN_NS,
    BREAKER_SETTINGS,
) = range(10)

# Breakers (state.breakers): one per stage and engine
(
    X_STATE,
    X_EPOCH,
    X_UNTIL_NS,
    X_LEVEL,
    X_CHANGED_NS,
    X_PERMITS,
    X_PROBES,
    X_PROBED,
    X_PROBES_BAD,
    X_CALLS,
    X_FAILURES,
    X_SLOW,
    X_POSITION,
    X_TRANSITIONS,
    X_WITHHELD,
    BREAKER_COLUMNS,
) = range(16)
CLOSED, OPEN, HALF_OPEN = range(3)
WELL, FAILED_CALL, SLOW_CALL = 0, 1, 2
"""What a breaker remembers of a call; a call can be both failed and slow (3)."""

# Requests (state.requests); what is read again when a batch takes a request, and when it ends, stands together in front
# (R_LATEST_NS: when its batch must end, so that the stages after it still meet its deadline; as of its placement)
(
    R_STATUS,
    R_EPOCH,
    R_NEXT,
    R_PREVIOUS,
    R_TENANT,
    R_ITEMS,
    R_WORK_NS,
    R_DEADLINE_NS,
    R_EXPIRY_NS,
    R_LATEST_NS,
    R_TAG,
    R_TRIAL,
    R_PROBE,
    R_BREAKER_EPOCH,
    R_STAGE,
    R_VERSION,
    R_CLASS,
    R_ARRIVED_NS,
    R_SEQUENCE,
    R_BUCKET,
    R_ENGINE,
    R_ENQUEUED_NS,
    R_ATTEMPTS,
    R_TOKENS,
    R_SOURCE,
    R_PRECISION,
    REQUEST_COLUMNS,
) = range(27)
FREE, QUEUED, RUNNING = range(3)

# Lanes (state.lanes): one FIFO per lane (stage, version, bucket), tenant, engine and class
L_HEAD, L_TAIL, LANE_COLUMNS = range(3)

# Engines (state.engines); requests of class k that wait are counted at N_WAITING + k. N_BUSY_NS adds up over slots;
# N_ACTIVE_NS is the time in which any slot ran, N_SINCE_NS when the present such time began.
(
    N_UP,
    N_QUEUED,
    N_INFLIGHT,
    N_QUEUE_EXPIRY_NS,
    N_BREAKER_NS,
    N_DIRTY,
    N_BATCHES,
    N_DISPATCHED,
    N_FAILOVER_IN,
    N_BUSY_NS,
    N_ACTIVE_NS,
    N_SINCE_NS,
    N_DONE_NS,
    N_LOADS,
    N_WAITING,
) = range(15)
ENGINE_COLUMNS = N_WAITING + CLASSES

# Live estimates (state.live): service of n rows = V_BASE_NS + n * V_ROW_NS; a row's part of a full batch = V_PART_NS
V_BASE_NS, V_ROW_NS, V_PART_NS, LIVE_COLUMNS = range(4)

# The best that was ever seen of a stage on an engine (state.best): its quickest batch but for the first (0: none was),
# and the least that its scale has been
Z_TOOK_NS, Z_SCALE_PPM, BEST_COLUMNS = range(3)

# Flows (state.tenant_flows, state.stage_flows): who is served next among those with a guaranteed share. The last row of
# each is the engine's own: its virtual time.
Y_VIRTUAL_NS, Y_WAITING, Y_SERVED_NS, FLOW_COLUMNS = range(4)

# Batch slots (state.batches): max_inflight per engine
(
    B_BUSY,
    B_EPOCH,
    B_ENGINE,
    B_STAGE,
    B_BUCKET,
    B_COUNT,
    B_ROWS,
    B_STARTED_NS,
    B_EXPECTED_NS,
    B_EXPIRY_NS,
    B_PADDED,
    B_LOAD_NS,
    B_WHY,
    B_TRIAL,
    BATCH_COLUMNS,
) = range(15)
ALONE, FULL, WINDOW, SLACK, CLOSINGS = range(5)
"""Why a batch was closed: it does not wait for company, it is full, its window ended, a deadline would not wait."""

# Members of a batch slot (state.members)
M_REQUEST, M_EPOCH, M_TAG, MEMBER_COLUMNS = range(4)

# Stages (state.stages)
G_OVERFLOWS, G_SENT, G_CREDIT_PPM, STAGE_COLUMNS = range(4)

# Run-wide counters (state.counters); outcomes are counted at C_OUTCOMES + Outcome
(
    C_NOW_NS,
    C_SEQUENCE,
    C_FREE_HEAD,
    C_IN_SYSTEM,
    C_SUBMITTED,
    C_DRAINING,
    C_EFFECTS,
    C_DIRTY,
    C_NEXT_TIMER_NS,
    C_BUDGET_PPM,
    C_BUDGET_NS,
    C_RETRIES,
    C_RETRIES_DENIED,
    C_DEGRADED,
    C_STEP,
    C_SPLIT_SEEN,
    C_SPLIT_SENT,
    C_SPLIT_CREDIT_PPM,
    C_CANARY_INSIDE,
    C_INCONCLUSIVE,
    C_OUTCOMES,
) = range(21)
COUNTERS = C_OUTCOMES + 7

# What an analysis of the canary says (desk.on_rollout)
PASS, FAIL, INCONCLUSIVE = range(3)

STABLE, CANARY = range(2)

# Effects (state.effects): what the shell must now do, in order
F_KIND, F_TAG, F_A, F_B, F_C, F_D, EFFECT_COLUMNS = range(7)
DISPATCH = 1
"""tag = batch slot, a = engine, b = stage, c = lane of the stage (bucket + version * S_BUCKETS), d = epoch; members are
in state.members; rows to pad to and the time of loading, if the model must be loaded first, in state.batches."""
PLACED = 2
"""tag = request tag, a = stage, b = engine, c = reason, d = request row."""
OUTCOME = 3
"""tag = request tag, a = outcome, b = reason, c = hint_ns, d = stage."""

REFUSED = -1
"""Answer to an event that does not apply (old epoch, free row); it has changed nothing."""
