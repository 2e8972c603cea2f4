"""What the token desk expects of prompts that wait, and what it refuses for it."""

import numpy as np
import pytest

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.tables import fresh, lower
from loadslice.spec.language import Language, LanguageEngine, StepCost, check_language
from loadslice.spec.outcome import Outcome, Reason

MS = 1_000_000
NO_HIT = np.zeros(1, np.int64)


def one_engine(sequences: int = 64) -> tuple[Tables, State]:
    """On a slow CPU: attention takes more of a long prompt than all else."""
    cost = StepCost(step_ms=10, token_us=1270, row_us=2150, attend_ns=1600)
    engine = LanguageEngine(backend="none", seats=8, kv_tokens=65536, step_tokens=512, chunk=256, cost=cost)
    language = Language(
        version=1, language="x", model="none", engines={"a": engine}, context=8192, block=16, max_sequences=sequences
    )
    tables = lower(check_language(language, "test"))
    return tables, fresh(tables, sequences)


def arrive(tables: Tables, state: State, tag: int, first_by_ns: int = c.FOREVER, deadline_ns: int = c.FOREVER) -> int:
    return int(desk.on_arrival(0, tables, state, tag, 1, 2000, 10, first_by_ns, deadline_ns, NO_HIT))


def test_the_expected_wait_counts_attention_and_the_base_of_steps() -> None:
    """Six prompts of 2000 tokens: 15.6 s were expected, and about 34.7 s is what they take.

    Each has 2000 * 1.27 ms, 2000 * 2000 / 2 * 1.6 us for what stands before its tokens, and four steps' worth of base.
    """
    tables, state = one_engine(sequences=6)
    for tag in range(6):
        arrive(tables, state, tag)
    assert arrive(tables, state, 6) == c.REFUSED
    assert state.effects[0, c.F_C] == pytest.approx(6 * (2540 + 3200 + 39) * MS, rel=0.01)


@pytest.mark.parametrize("named", ["first_by_ns", "deadline_ns"])
def test_a_prompt_that_cannot_be_computed_by_its_deadline_is_refused_at_once(named: str) -> None:
    tables, state = one_engine()
    assert arrive(tables, state, 0, **{named: 10 * MS}) == c.REFUSED
    assert state.effects[0, [c.F_KIND, c.F_A, c.F_B]].tolist() == [c.ENDED, Outcome.SHED, Reason.HOPELESS]


def test_what_waits_is_dropped_when_its_deadline_has_come_too_near_for_its_prompt() -> None:
    tables, state = one_engine()
    arrive(tables, state, 0)
    arrive(tables, state, 1, deadline_ns=16_000 * MS)
    ends = np.zeros(state.rows.shape[1], np.int64)
    desk.on_step_done(12_000 * MS, tables, state, 0, int(state.engines[0, c.N_EPOCH]), ends)
    ended = [row.tolist() for row in state.effects[: state.counters[c.C_EFFECTS]] if row[c.F_KIND] == c.ENDED]
    assert [row[c.F_TAG : c.F_C] for row in ended] == [[1, 1, Outcome.SHED, Reason.HOPELESS]]
    assert ended[0][c.F_C] >= 50 * MS


def test_a_refusal_for_want_of_rows_says_when_what_is_inside_will_have_drained() -> None:
    tables, state = one_engine(sequences=2)
    arrive(tables, state, 0), arrive(tables, state, 1)
    assert arrive(tables, state, 2) == c.REFUSED
    assert state.effects[0, c.F_C] > 10_000 * MS


def test_a_slow_engine_with_long_steps_is_not_taken_for_a_fast_one() -> None:
    """The product of a scale of 1000 and a step of 10 s does not fit 64 bits."""
    tables, state = one_engine()
    arrive(tables, state, 0)
    state.engines[0, c.N_SCALE_PPM] = 1_000_000_000
    state.engines[0, c.N_STEP_EXPECTED_NS] = 10_000 * MS
    desk.on_step_done(10_000 * MS, tables, state, 0, 1, np.zeros(state.rows.shape[1], np.int64))
    assert state.engines[0, c.N_SCALE_PPM] == 1_000_000_000
