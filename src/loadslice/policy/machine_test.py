"""Random histories over the core: after every event every invariant holds, and at the end nothing is held."""

import os

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from loadslice.policy import columns as c
from loadslice.policy.histories_test import MS, Run, Setup, setups


class Histories(RuleBasedStateMachine):
    """Any order of events that a shell can send, and some that it must not be able to do harm with."""

    kind: type[Run] = Run

    @initialize(setup=setups())
    def start(self, setup: Setup) -> None:
        self.run = self.kind(setup)

    @rule(
        count=st.integers(1, 4),
        priority=st.integers(0, 3),
        deadline_ms=st.none() | st.integers(0, 80),
        items=st.integers(1, 4),
        bucket=st.integers(0, 2),
        tokens=st.sampled_from([-1, 100, 1000]),
        source=st.sampled_from([-1, 0]),
        precision=st.sampled_from([0, 0, 0, 4]),
        attempt=st.sampled_from([1, 1, 1, 2]),
        tenant=st.integers(0, 2),
        key=st.sampled_from([-1, 7, 123_456]),
    )
    def arrive(self, count: int, **request: int) -> None:
        for _ in range(count):
            self.run.arrive(**request)

    @precondition(lambda self: hasattr(self, "run") and self.run.busy())
    @rule(which=st.integers(0, 5), items=st.integers(-1, 3), bucket=st.integers(0, 2))
    def a_batch_is_done(self, which: int, items: int, bucket: int) -> None:
        slot = self.run.busy()[which % len(self.run.busy())]
        self.run.batch_ends(slot, [(items or 1, bucket)] * len(self.run.members_of(slot)))

    @precondition(lambda self: hasattr(self, "run") and self.run.busy())
    @rule(which=st.integers(0, 5))
    def a_batch_fails(self, which: int) -> None:
        self.run.batch_ends(self.run.busy()[which % len(self.run.busy())], None)

    @rule(ms=st.integers(0, 30))
    def time_passes(self, ms: int) -> None:
        self.run.pass_time(ms * MS)

    @rule(ms=st.integers(1, 30))
    def the_timer_is_late(self, ms: int) -> None:
        self.run.now_ns += ms * MS

    @precondition(lambda self: hasattr(self, "run") and self.run.watch.inside)
    @rule(which=st.integers(0, 20))
    def a_client_leaves(self, which: int) -> None:
        inside = list(self.run.watch.inside)
        self.run.leave(inside[which % len(inside)])

    @rule(engine=st.integers(0, 2), up=st.booleans())
    def an_engine_changes(self, engine: int, *, up: bool) -> None:
        self.run.tell("engine_up" if up else "engine_down", engine)

    @rule(slot=st.integers(0, 5), epoch=st.integers(0, 3), tag=st.integers(0, 40))
    def nonsense_comes_in(self, slot: int, epoch: int, tag: int) -> None:
        self.run.nonsense(slot, epoch)
        if tag not in self.run.watch.inside:
            self.run.leave(tag)

    @rule(verdict=st.integers(0, 4))
    def an_analysis_ends(self, verdict: int) -> None:
        self.run.tell("rollout", verdict)

    @precondition(lambda self: hasattr(self, "run") and self.run.submitted > 20)
    @rule()
    def the_server_drains(self) -> None:
        self.run.tell("drain")

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.run_out()


def budget(examples: int) -> settings:
    """How much is tried: twice as much compiled as interpreted, and the same histories in every CI run."""
    return settings(
        deadline=None,
        max_examples=examples if os.environ.get("NUMBA_DISABLE_JIT") else 2 * examples,
        stateful_step_count=50,
        # Without "explain", which traces every line of the core and takes minutes.
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
        derandomize=bool(os.environ.get("CI")),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def play(run: Run, seed: int, steps: int) -> None:
    """A busy history: mostly arrivals and ends of batches, with every trouble now and then."""
    draws = np.random.default_rng(seed)
    for _ in range(steps):
        dice = draws.integers(0, 100)
        if dice < 38:
            run.arrive(
                priority=int(draws.integers(0, 4)),
                deadline_ms=int(draws.integers(0, 120)) if draws.random() < 0.4 else None,
                items=int(draws.choice([1, 1, 1, 2, 3, 4])),
                bucket=int(draws.integers(0, 3)),
                tokens=int(draws.choice([-1, 100, 1000])),
                source=int(draws.integers(-1, 1)),
                precision=4 if draws.random() < 0.1 else 0,
                attempt=2 if draws.random() < 0.1 else 1,
                tenant=int(draws.integers(0, 3)),
                key=int(draws.choice([-1, -1, 3, 77, 123_456])),
            )
        elif dice < 72 and run.busy():
            slot = int(draws.choice(run.busy()))
            results = [
                (-1 if draws.random() < 0.1 else int(draws.integers(1, 4)), int(draws.integers(0, 3)))
                for _ in run.members_of(slot)
            ]
            run.batch_ends(slot, None if draws.random() < 0.25 else results)
        elif dice < 90:
            run.pass_time(int(draws.integers(0, 25)) * MS + int(draws.integers(0, 2)))
        elif dice < 92:
            run.now_ns += int(draws.integers(0, 25)) * MS
        elif dice < 96 and run.watch.inside:
            run.leave(int(draws.choice(list(run.watch.inside))))
        elif dice < 98:
            up = draws.random() < 0.7
            run.tell("engine_up" if up else "engine_down", int(draws.integers(0, len(run.state.engines))))
        elif dice < 99 and draws.random() < 0.5:
            run.tell("rollout", int(draws.choice([0, 0, 1, 2, 9])))
        elif dice < 99:
            run.nonsense(int(draws.integers(0, 5)), int(draws.integers(0, 40)))
    run.run_out()


Histories.TestCase.settings = budget(100)
TestHistories = Histories.TestCase


@budget(150)
@given(setup=setups(), seed=st.integers(0, 2**32), steps=st.integers(1, 150))
def test_busy_histories_keep_every_promise(setup: Setup, seed: int, steps: int) -> None:
    play(Run(setup), seed, steps)


@budget(40)
@given(setup=setups(), seed=st.integers(0, 2**32), steps=st.integers(1, 120))
def test_after_any_history_healthy_traffic_closes_every_breaker_that_it_reaches(
    setup: Setup, seed: int, steps: int
) -> None:
    """Each engine alone in turn, so that whatever its breakers were left in, all traffic comes to them."""
    run = Run(setup)
    play(run, seed, steps)
    everyone = range(len(run.state.engines))
    for alone in everyone:
        for engine in everyone:
            run.tell("engine_up" if engine == alone else "engine_down", engine)
        before = len(run.said)
        send_healthy_traffic(run, 40)
        reached = {effect[c.F_A] for effect in run.said[before:] if effect[c.F_KIND] == c.PLACED}
        send_healthy_traffic(run, 20)
        for stage, breaker in enumerate(run.state.breakers[:, alone]):
            assert breaker[c.X_STATE] != c.OPEN, "(21) from open, half-open comes"
            assert breaker[c.X_STATE] == c.CLOSED or stage not in reached, "(21) with traffic, half-open ends"


def send_healthy_traffic(run: Run, requests: int) -> None:
    """One request every 5 ms; each batch is answered within a millisecond, which no breaker calls slow."""
    for _ in range(requests):
        run.arrive(priority=0)
        for _ in range(5):
            while run.busy():
                run.batch_ends(run.busy()[0], [(1, 0)] * len(run.members_of(run.busy()[0])))
            run.pass_time(1 * MS)
