"""What a simulation of the token desk reads, writes and has in hand: arrays, their columns and rows."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadslice.policy.kernel import by_reference, kernel
from loadslice.policy.layout import Int64s
from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens.layout import State, Tables

Float64s = NDArray[np.float64]

# A request's row of the result.
A_OUTCOME, A_REASON, A_ROUTE, A_PREFILL, A_DECODE, A_FIRST_NS, A_END_NS, A_PRODUCED, A_HIT, A_PLACED, ANSWER_COLUMNS = (
    range(11)
)

# A hand-over on its way.
H_ROW, H_EPOCH, H_EXPORTED_NS, H_IMPORTED_NS, H_HALF_NS, H_TO, HANDOVER_COLUMNS = range(7)

# A fault: engine down or up, its steps take so many parts (ppm) of their time, or it stands still and moves again.
X_AT_NS, X_ENGINE, X_KIND, X_PPM, FAULT_COLUMNS = range(5)
FAULT_DOWN, FAULT_UP, FAULT_SLOW, FAULT_HANG, FAULT_MOVE = range(5)
STILL = 1e6
"""Times longer that a step of an engine takes which stands still: it is ended long before, or moves again."""

COLD_AFTER_NS = 10_000_000
"""An engine that did nothing for so long finds its weights and KV where others left them: behind the caches."""

GAP_BINS = 4096
GAP_BINS_PER_E = 128.0
"""Histogram of the time between two tokens: bins a 128th of a power of e wide, 0.8 %, from 1 us."""

# What a step takes: this, and this per token of a prompt, sequence that decodes, token before one that decodes, and
# token before one of a prompt, which many tokens read at once.
S_STEP, S_TOKEN, S_ROW, S_ATTEND, S_PROMPT_ATTEND, STEP_COSTS = range(6)

# Totals of an engine.
B_BUSY_NS, B_ROWS, BUSY_COLUMNS = range(3)


class Prompts(NamedTuple):
    """The trace, lowered, R requests; not by reference: a prompt's blocks are a slice."""

    arrival_ns: Int64s
    priority: Int64s
    prompt: Int64s
    produce: Int64s
    """Tokens that its answer has."""
    new_max: Int64s
    first_by_ns: Int64s
    """Absolute, FOREVER: any time."""
    deadline_ns: Int64s
    block_start: Int64s
    """[R + 1] where its prefix blocks begin in ``blocks``"""
    blocks: Int64s
    block_tokens: int


class World(NamedTuple):
    """What surrounds the desk; not by reference: costs may be columns of another array."""

    costs: Float64s
    """[E, STEP_COSTS] what steps take, ns: not always what the desk is told to expect"""
    step_sd: Float64s
    """[E] spread of a step's time, as a share of it"""
    beside_ppm: Int64s
    """[E, E] how much longer a step of the first takes while the second computes"""
    shape: Float64s
    """[E, most seats + 1] what steps with so many decoding sequences take, in parts of what the settings say"""
    noise: Float64s
    """[E, points] quantiles of steps in parts of that; 0 first: they are drawn with ``step_sd``"""
    handover_noise: Float64s
    """[points] quantiles of hand-overs in parts of what their link says"""
    cold_ns: Int64s
    """[E] what a step takes longer when its engine did nothing for `COLD_AFTER_NS`"""
    reshape_ns: Int64s
    """[E] what a step takes longer that has not as many tokens as the one before"""
    faults: Int64s
    """[faults, FAULT_COLUMNS] in time order"""


@by_reference
class Hands(NamedTuple):
    """What engines have in hand; scratch, as `hands` makes it."""

    step_ends_ns: Int64s
    """[E] FOREVER: it computes nothing"""
    step_began_ns: Int64s
    """[E] when the step that runs was or will be taken up"""
    ended_ns: Int64s
    """[E] when the last step ended"""
    tokens: Int64s
    """[E] of the step that runs, or ran last"""
    pace: Float64s
    """[E] times longer that the step which runs takes than on an engine that is left alone"""
    slow_ppm: Int64s
    """[E]"""
    hung: Int64s
    """[E] 1: it stands still, 2: and has been ended for it"""
    free_ns: Int64s
    """[E] when it is done with the exports and imports that it has been told of"""
    handovers: Int64s
    """[slots of all links + 1, HANDOVER_COLUMNS] rows -1: none"""
    inside: Int64s
    """[N] request of each sequence row"""
    ends: Int64s
    """[R]"""
    hits: Int64s
    """[E]"""


def hands(tables: Tables, state: State) -> Hands:
    """Nothing in hand."""
    engines, sequences = tables.engines.shape[0], state.sequences.shape[0]
    slots = int(tables.links[:, :, c.K_SLOTS].sum())
    return Hands(
        step_ends_ns=np.full(engines, c.FOREVER, np.int64),
        step_began_ns=np.zeros(engines, np.int64),
        ended_ns=np.full(engines, -COLD_AFTER_NS, np.int64),
        tokens=np.zeros(engines, np.int64),
        pace=np.ones(engines),
        slow_ppm=np.full(engines, c.PPM, np.int64),
        hung=np.zeros(engines, np.int64),
        free_ns=np.zeros(engines, np.int64),
        handovers=np.full((slots + sequences + 1, HANDOVER_COLUMNS), -1, np.int64),
        inside=np.zeros(sequences, np.int64),
        ends=np.zeros(state.rows.shape[1], np.int64),
        hits=np.zeros(engines, np.int64),
    )


@by_reference
class Record(NamedTuple):
    """What a run leaves."""

    answers: Int64s
    """[R, ANSWER_COLUMNS]"""
    gaps: Int64s
    """[E, GAP_BINS] times between two tokens of one sequence, by the engine that decoded"""
    busy: Int64s
    """[E, BUSY_COLUMNS]"""
    journal: Int64s
    """[2] rolling hash of all effects, and their number"""


@kernel
def gap_bin(gap_ns: int) -> int:
    """Which bin of the histogram a time falls into."""
    if gap_ns <= 1000:
        return 0
    return min(GAP_BINS - 1, int(math.log(gap_ns / 1000.0) * GAP_BINS_PER_E))
