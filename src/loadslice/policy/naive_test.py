"""The core and its plain twin, side by side: the same effects, outcomes and next timer after every event."""

from loadslice.policy import columns as c
from loadslice.policy import desk
from loadslice.policy.machine_test import SOURCES, Effect, Histories, budget
from loadslice.policy.naive import Naive
from loadslice.spec.outcome import Outcome


class Twins(Histories):
    """Every event of a random history goes to both."""

    def started(self) -> None:
        self.naive = Naive(self.pipeline, self.latency, SOURCES)
        self.dues_ns: set[int] = {c.FOREVER}

    def call(self, event: str, *arguments: int, results: list[tuple[int, int]] | None = None) -> int:
        answer = super().call(event, *arguments, results=results)
        tell = getattr(self.naive, event)
        expected = tell(self.now_ns, *arguments) if results is None else tell(self.now_ns, *arguments, results)
        assert answer == expected, f"{event}: the row or the refusal"
        if answer != c.REFUSED or event == "arrival":
            self.compare(self.effects())
        return answer

    def compare(self, effects: list[Effect]) -> None:
        assert effects == self.naive.effects
        counted = self.state.counters[c.C_OUTCOMES :].tolist()
        assert counted == [self.naive.outcomes[outcome] for outcome in Outcome]
        self.compare_timers()

    def compare_timers(self) -> None:
        """Never later than something is due. Earlier only for something that was due and has gone since."""
        for engine in range(len(self.naive.engines)):
            self.dues_ns.update(self.naive.dues_ns(engine))
        timer_ns, due_ns = desk.next_timer_ns(self.state), self.naive.next_timer_ns()
        assert timer_ns <= due_ns
        assert timer_ns in self.dues_ns


Twins.TestCase.settings = budget(150)
TestTwins = Twins.TestCase
