"""The core and its plain twin, side by side: the same effects, outcomes and next timer after every event."""

from hypothesis import given
from hypothesis import strategies as st

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.histories_test import SOURCES, Effect, Run, Setup, setups
from loadslice.policy.machine_test import Histories, budget, play
from loadslice.policy.naive import Naive
from loadslice.spec.outcome import Outcome


class TwinRun(Run):
    """A run whose every event goes to both."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.naive = Naive(self.pipeline, self.latency, SOURCES)
        self.dues_ns: set[int] = {c.FOREVER}

    def tell(self, event: str, *arguments: int, results: list[tuple[int, int]] | None = None) -> int:
        call = getattr(self.naive, event)
        expected = call(self.now_ns, *arguments) if results is None else call(self.now_ns, *arguments, results)
        answer = super().tell(event, *arguments, results=results)
        assert answer == expected, "the row of a request, or a refusal"
        return answer

    def heard(self, event: str, effects: list[Effect]) -> None:
        assert effects == self.naive.effects
        counted = self.state.counters[c.C_OUTCOMES :].tolist()
        assert counted == [self.naive.outcomes[outcome] for outcome in Outcome]
        self.compare_timers()
        super().heard(event, effects)

    def compare_timers(self) -> None:
        """Never later than something is due. Earlier only for something that was due and has gone since."""
        for engine in range(len(self.naive.engines)):
            self.dues_ns.update(self.naive.dues_ns(engine))
        timer_ns = desk.next_timer_ns(self.state)
        assert timer_ns <= self.naive.next_timer_ns()
        assert timer_ns in self.dues_ns


class Twins(Histories):
    """Every event of a random history goes to both."""

    kind = TwinRun


Twins.TestCase.settings = budget(60)
TestTwins = Twins.TestCase


@budget(150)
@given(setup=setups(), seed=st.integers(0, 2**32), steps=st.integers(1, 150))
def test_both_decide_alike_in_busy_histories(setup: Setup, seed: int, steps: int) -> None:
    play(TwinRun(setup), seed, steps)
