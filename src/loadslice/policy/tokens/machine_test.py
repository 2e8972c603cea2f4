"""Random histories over random fleets: after every event the books balance, and in the end everything has ended."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.books import faults
from loadslice.policy.tokens.layout import Tables
from loadslice.policy.tokens.tables import fresh, lower
from loadslice.spec.language import ROUTER_POLICIES, Language, LanguageEngine, Link, Router, StepCost, check_language

SAID = (c.GOES_ON, c.GOES_ON, c.GOES_ON, c.GOES_ON, c.ENDS, c.LATE, c.LATE, c.LOST)
COST = StepCost(step_ms=5, token_us=1000, row_us=2000, attend_ns=100)


class Run:
    """Plays the shell: carries effects out and lets the clock go."""

    def __init__(self, tables: Tables, sequences: int) -> None:
        self.tables, self.state = tables, fresh(tables, sequences)
        self.now_ns = 0
        self.steps: dict[int, tuple[int, int]] = {}
        self.handovers: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self.ended: dict[int, tuple[int, int]] = {}
        self.produced: dict[int, int] = {}
        self.tag = 0
        self.no_hits = np.zeros(tables.engines.shape[0], np.int64)

    def take(self) -> None:
        for kind, tag, row, a, b, detail in self.state.effects[: self.state.counters[c.C_EFFECTS]].tolist():
            if kind == c.STEP:
                assert a not in self.steps, "an engine computes one step at a time"
                self.steps[a] = (b, detail)
            elif kind == c.HAND_OVER:
                self.handovers[row] = detail
            elif kind == c.PLACED:
                self.placed[tag] = row
            elif kind == c.ENDED:
                assert tag not in self.ended, "one outcome per request"
                self.ended[tag] = (a, b)
        broken = faults(self.tables, self.state)
        assert not broken, broken

    def arrive(self, priority: int, prompt: int, new: int, first_by_ns: int, hits: list[int]) -> None:
        found = np.minimum(np.array(hits[: len(self.no_hits)], np.int64), prompt - 1)
        desk.on_arrival(
            self.now_ns, self.tables, self.state, self.tag, priority, prompt, new, first_by_ns, c.FOREVER, found
        )
        self.tag += 1
        self.take()

    def step_done(self, engine: int, took_ns: int, said: int) -> None:
        epoch, rows = self.steps.pop(engine)
        self.now_ns += took_ns
        flags = np.zeros(self.state.rows.shape[1], np.int64)
        flags[:rows] = said
        before = self.state.sequences[self.state.rows[engine, :rows, c.P_SEQUENCE]].copy()
        assert desk.on_step_done(self.now_ns, self.tables, self.state, engine, epoch, flags) == rows
        if said == c.LATE:
            after = self.state.sequences[self.state.rows[engine, :rows, c.P_SEQUENCE]]
            kept = (before[:, c.Q_DOOMED] == 0) & (before[:, c.Q_LOST] == 0) & (after[:, c.Q_TAG] == before[:, c.Q_TAG])
            assert (after[kept, c.Q_PRODUCED] == before[kept, c.Q_PRODUCED]).all(), "what is late is not counted"
        self.take()

    def handover(self, row: int, what: int) -> None:
        epoch = self.handovers[row] if what == desk.EXPORTED else self.handovers.pop(row)
        if desk.on_handover(self.now_ns, self.tables, self.state, row, epoch, what) != c.REFUSED:
            self.take()

    def engine(self, engine: int, up: bool) -> None:
        call = desk.on_engine_up if up else desk.on_engine_down
        if call(self.now_ns, self.tables, self.state, engine) != c.REFUSED:
            if not up:
                self.steps.pop(engine, None)
            self.take()

    def timer(self) -> None:
        at_ns = desk.next_timer_ns(self.state)
        if at_ns < c.FOREVER:
            self.now_ns = max(self.now_ns, at_ns)
            desk.on_timer(self.now_ns, self.tables, self.state)
            self.take()

    def settle(self) -> None:
        """Let everything end: engines up, steps done, hand-overs arriving."""
        for engine in range(self.tables.engines.shape[0]):
            self.engine(engine, up=True)
        for _ in range(20_000):
            if self.steps:
                self.step_done(min(self.steps), 1_000_000, c.GOES_ON)
            elif self.handovers:
                self.handover(min(self.handovers), desk.IMPORTED)
            else:
                break
        assert self.state.counters[c.C_IN_SYSTEM] == 0, "something waits for ever"
        assert len(self.ended) == self.tag


def fleet(draw: st.DrawFn) -> Language:
    block = draw(st.sampled_from([1, 4, 16]))

    def engine(roles: list[str]) -> LanguageEngine:
        seats = draw(st.integers(1, 4))
        return LanguageEngine(
            backend="none",
            roles=tuple(roles),  # type: ignore[arg-type]
            seats=seats,
            kv_tokens=block * draw(st.integers(4, 40)),
            step_tokens=seats + draw(st.integers(1, 40)),
            chunk=draw(st.sampled_from([None, 1, 7])),
            step_ms_max=draw(st.sampled_from([None, 1, 20])),
            queue=draw(st.integers(0, 6)),
            cost=COST,
        )

    engines = {"both": engine(["prefill", "decode"])}
    links = []
    if draw(st.booleans()):
        engines["decode"] = engine(["decode"])
    if draw(st.booleans()):
        engines["second"] = engine(["decode", "prefill"])
    if draw(st.booleans()) or "decode" in engines:
        engines["prefill"] = engine(["prefill"])
        links = [Link(from_="prefill", to=name, slots=draw(st.integers(1, 2))) for name in engines if name != "prefill"]
    return check_language(
        Language(
            version=1,
            language="x",
            model="none",
            engines=engines,
            links=links,
            router=Router(policy=draw(st.sampled_from(ROUTER_POLICIES)), length=8, load_tokens=20),
            context=64,
            block=block,
            max_sequences=draw(st.integers(1, 8)),
            attempts=draw(st.integers(1, 3)),
            lease_ms=3,
        ),
        "test",
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[Language, list[tuple[str, int, int, int, int]]]:
    kinds = (
        "arrive",
        "arrive",
        "arrive",
        "step",
        "step",
        "step",
        "handover",
        "broken",
        "cancel",
        "down",
        "up",
        "timer",
    )
    number = st.integers(0, 40)
    return fleet(draw), draw(
        st.lists(st.tuples(st.sampled_from(kinds), number, number, number, number), min_size=25, max_size=120)
    )


@given(histories())
@settings(max_examples=150, deadline=None)
def test_the_books_balance_after_every_event_and_everything_ends(
    case: tuple[Language, list[tuple[str, int, int, int, int]]],
) -> None:
    language, history = case
    run = Run(lower(language), language.max_sequences)
    for kind, p, q, r, s in history:
        if kind == "arrive":
            first_by_ns = run.now_ns + r * 5_000_000 if r % 3 == 0 else c.FOREVER
            run.arrive(p % 4, 1 + q, 1 + r % 12, first_by_ns, [s % 5, s % 3, 0, s % 7])
        elif kind == "step" and run.steps:
            run.step_done(sorted(run.steps)[p % len(run.steps)], 1 + q * 1_000_000, SAID[s % len(SAID)])
        elif kind in ("handover", "broken") and run.handovers:
            row = sorted(run.handovers)[p % len(run.handovers)]
            run.handover(row, desk.BROKEN if kind == "broken" else (desk.EXPORTED, desk.IMPORTED)[q % 2])
        elif kind == "cancel" and run.placed:
            tag = sorted(run.placed)[p % len(run.placed)]
            if desk.on_cancel(run.now_ns, run.tables, run.state, run.placed[tag], tag) != c.REFUSED:
                run.take()
        elif kind in ("down", "up"):
            run.engine(p % run.tables.engines.shape[0], up=kind == "up")
        elif kind == "timer":
            run.timer()
    run.settle()
