"""What a hand-over does to the steps of the engine that takes it, and what a running step does to who comes."""

import numpy as np
import pytest

from loadslice.policy.tokens import columns as c
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.books import faults
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.tables import fresh, lower
from loadslice.spec.language import Language, LanguageEngine, Link, Router, StepCost, check_language
from loadslice.spec.outcome import Outcome
from loadslice.spec.route import Route

MS = 1_000_000
DECODE, PREFILL = 0, 1
COST = StepCost(step_ms=10, token_us=1000, row_us=1000)
NO_HITS = np.zeros(2, np.int64)


class Scene:
    """A desk of one engine for answers and one for prompts; if nothing is said, every prompt is handed over."""

    def __init__(
        self,
        router: Router = Router(policy="always-remote"),  # noqa: B008 - it is frozen
        step_ms_max: float | None = None,
    ) -> None:
        both = LanguageEngine(backend="none", cost=COST, chunk=64, step_ms_max=step_ms_max)
        alone = LanguageEngine(backend="none", roles=("prefill",), step_tokens=4096, cost=COST)
        said = Language(
            version=1,
            language="x",
            model="none",
            engines={"decode": both, "prefill": alone},
            links=[Link(from_="prefill", to="decode")],
            router=router,
            context=4096,
            max_sequences=8,
        )
        self.tables: Tables = lower(check_language(said, "test"))
        self.state: State = fresh(self.tables, said.max_sequences)
        self.now_ns = 0

    def effects(self, kind: int) -> list[list[int]]:
        assert faults(self.tables, self.state) == []
        said = self.state.effects[: int(self.state.counters[c.C_EFFECTS])].tolist()
        return [effect for effect in said if effect[c.F_KIND] == kind]

    def arrive(self, tag: int, prompt: int) -> int:
        desk.on_arrival(self.now_ns, self.tables, self.state, tag, 1, prompt, 20, c.FOREVER, c.FOREVER, NO_HITS)
        return int(self.effects(c.PLACED)[0][c.F_ROW])

    def step_done(self, engine: int) -> list[list[int]]:
        """End an engine's step; what follows of steps."""
        self.now_ns += 10 * MS
        ends = np.zeros(self.state.rows.shape[1], np.int64)
        epoch = int(self.state.engines[engine, c.N_EPOCH])
        assert desk.on_step_done(self.now_ns, self.tables, self.state, engine, epoch, ends) > 0
        return self.effects(c.STEP)

    def handover(self, row: int, what: int) -> list[list[int]]:
        self.now_ns += MS
        epoch = int(self.state.sequences[row, c.Q_EPOCH])
        assert desk.on_handover(self.now_ns, self.tables, self.state, row, epoch, what) == 0
        return self.effects(c.STEP)

    def decoding(self, tag: int) -> int:
        """A sequence that decodes; its step runs."""
        row = self.arrive(tag, 100)
        self.step_done(PREFILL)
        self.handover(row, desk.EXPORTED)
        self.handover(row, desk.IMPORTED)
        assert self.state.engines[DECODE, c.N_STEPPING] == 1
        return row

    def on_its_way(self) -> tuple[int, int]:
        """One sequence that decodes in a step, and one whose KV is about to be read by the same engine."""
        first = self.decoding(0)
        second = self.arrive(1, 50)
        self.step_done(PREFILL)
        self.handover(second, desk.EXPORTED)
        return first, second


def test_a_step_waits_for_who_is_read_before_it() -> None:
    scene = Scene()
    _, second = scene.on_its_way()
    assert scene.step_done(DECODE) == [], "what is planned now would be computed after the import, without it"
    (step,) = scene.handover(second, desk.IMPORTED)
    assert step[c.F_A] == DECODE
    assert step[c.F_C] == 2, "both advance in the next step"


def test_a_step_waits_no_more_when_the_import_comes_to_nothing() -> None:
    scene = Scene()
    _, second = scene.on_its_way()
    assert scene.step_done(DECODE) == []
    assert [step[c.F_A] for step in scene.handover(second, desk.BROKEN)] == [DECODE]


def test_a_step_waits_no_longer_than_the_lease() -> None:
    scene = Scene()
    _, second = scene.on_its_way()
    assert scene.step_done(DECODE) == []
    scene.now_ns = int(scene.state.sequences[second, c.Q_LEASE_NS])
    assert desk.next_timer_ns(scene.state) <= scene.now_ns
    desk.on_timer(scene.now_ns, scene.tables, scene.state)
    assert DECODE in [step[c.F_A] for step in scene.effects(c.STEP)]
    assert scene.state.counters[c.C_LEASES_EXPIRED] == 1


def test_a_step_does_not_wait_for_who_has_gone() -> None:
    scene = Scene()
    _, second = scene.on_its_way()
    assert scene.step_done(DECODE) == []
    desk.on_cancel(scene.now_ns, scene.tables, scene.state, second, 1)
    assert [step[c.F_A] for step in scene.effects(c.STEP)] == [DECODE]


def test_who_has_gone_before_the_export_gives_everything_back_with_it() -> None:
    scene = Scene()
    row = scene.arrive(0, 100)
    scene.step_done(PREFILL)
    desk.on_cancel(scene.now_ns, scene.tables, scene.state, row, 0)
    scene.handover(row, desk.EXPORTED)
    assert scene.state.counters[c.C_IN_SYSTEM] == 0
    assert not scene.state.slots.any()
    assert not scene.state.engines[:, c.N_SEATS_USED].any()


@pytest.mark.parametrize("passed_ms", [0, 100])
def test_a_prompt_that_is_being_computed_is_waited_for_once(passed_ms: int) -> None:
    for spare_ms, outcome in ((0, None), (-1, Outcome.SHED)):
        scene = Scene()
        scene.arrive(0, 400)  # its step takes 410 ms
        scene.now_ns = passed_ms * MS
        # What comes now begins when that has ended, and takes 210 ms.
        first_by_ns = (410 + 210 + spare_ms) * MS
        desk.on_arrival(scene.now_ns, scene.tables, scene.state, 1, 1, 200, 20, first_by_ns, c.FOREVER, NO_HITS)
        ended = scene.effects(c.ENDED)
        assert [one[c.F_A] for one in ended] == ([] if outcome is None else [outcome])


def test_how_long_second_tokens_are_waited_for_is_learned() -> None:
    scene = Scene()
    row = scene.decoding(0)
    scene.step_done(DECODE)
    waited_ns = 2 * MS + 10 * MS
    assert scene.state.engines[DECODE, c.N_SECOND_NS] == waited_ns
    scene.step_done(DECODE)
    assert scene.state.engines[DECODE, c.N_SECOND_NS] == waited_ns, "a third token is no second one"
    assert scene.state.sequences[row, c.Q_HANDED] == 0


@pytest.mark.parametrize(
    ("second_ms", "prompt", "route"),
    [
        (0, 24, Route.SPARING),  # while nothing is known, any is late
        (40, 24, Route.LOCAL_FASTER),  # a step of 10 + 24 + 1 ms
        (40, 64, Route.SPARING),
        (1000, 64, Route.SPARING),  # four steps at most: what was waited for is learned beside prompts
    ],
)
def test_tokens_are_late_that_come_later_than_second_ones_of_a_split_do(
    second_ms: int, prompt: int, route: Route
) -> None:
    scene = Scene(Router(policy="cost", penalty=0))
    scene.decoding(0)
    scene.arrive(1, 2000)  # the engine for prompts is busy for two seconds
    counts = scene.state.engines[DECODE]
    counts[c.N_SECOND_NS], counts[c.N_LATE_PPM] = second_ms * MS, 0
    scene.arrive(2, prompt)
    (placed,) = scene.effects(c.PLACED)
    assert Route(placed[c.F_C]) == route


@pytest.mark.parametrize(
    ("step_ms_max", "prompt", "route"),
    [
        (30, 64, Route.LOCAL_FASTER),  # in four steps of 10 + 1 + 19 ms
        (15, 64, Route.SPARING),  # the least piece of a prompt is more than that leaves
        (30, 400, Route.LOCAL_FASTER),
        (30, 1200, Route.REMOTE_FASTER),  # in 64 steps, which is longer than to wait
    ],
)
def test_tokens_of_steps_that_are_kept_short_are_not_late(step_ms_max: float, prompt: int, route: Route) -> None:
    scene = Scene(Router(policy="cost", penalty=0), step_ms_max)
    scene.decoding(0)
    scene.arrive(1, 1000)  # the engine for prompts is busy for a second
    scene.state.engines[DECODE, c.N_LATE_PPM] = 0
    scene.arrive(2, prompt)
    (placed,) = scene.effects(c.PLACED)
    assert Route(placed[c.F_C]) == route


def test_a_step_is_kept_short_for_who_is_about_to_come() -> None:
    for expected, tokens in ((False, 64), (True, 20)):
        scene = Scene(Router(policy="cost", penalty=0), step_ms_max=30)
        if expected:
            scene.arrive(0, 2000)  # handed over when it is computed: the step that runs then is waited for
        else:
            desk.on_engine_down(0, scene.tables, scene.state, PREFILL)
        scene.arrive(1, 64)
        (step,) = scene.effects(c.STEP)
        assert step[c.F_A] == DECODE
        assert scene.state.rows[DECODE, 0, c.P_TOKENS] == tokens
