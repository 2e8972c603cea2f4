"""What answers are marked by: inputs, the source model's answers to them, the metric and the floor.

There are two in a squeeze. Candidates, calibration sets and kept layers are chosen by one; what was chosen is judged by
the other, once. Whoever picks the best of many by some inputs has picked what these inputs flatter, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadslice.spec.variant import InputSet
from loadslice.variants.metrics import LABELLED_LOSS_MAX, Floor, Judge, Outputs, Score, cosine, default_floor
from loadslice.variants.recorded import Recorded


@dataclass(frozen=True)
class Marks:
    """Of one candidate's answers."""

    metric: float
    sqnr_db: float | None
    """Median over inputs; ``None``: equal."""
    cosine: float
    """Mean over inputs."""


class Exam:
    """One set of inputs with everything that marks answers to them.

    Args:
        metric: Its name.
        inputs: What is asked.
        source: The source model's answers.
        given: The floor that was asked for; ``None``: the metric's default, which depends on the source's own mark.
        score: The user's own function, when ``metric`` is its name.

    Raises:
        InputError: The metric is not known, or the user's function fails on the source's answers.
    """

    def __init__(
        self, metric: str, inputs: Recorded, source: list[Outputs], given: Floor | None, score: Score | None
    ) -> None:
        self._metric, self._given, self._score = metric, given, score
        self.inputs, self.source = inputs, source
        self.judge = Judge(metric, source, inputs, score)
        self.source_mark = self.judge.mark(source)
        self.floor = given or default_floor(self.judge, self.source_mark)

    def __len__(self) -> int:
        return len(self.inputs)

    def marks(self, answers: Sequence[Outputs]) -> Marks:
        """Mark answers, in the order of the inputs."""
        return Marks(self.judge.mark(answers), self.judge.sqnr_db(answers), mean_cosine(self.source, answers))

    def passes(self, marks: Marks) -> bool:
        """Whether they meet the floor."""
        return marks.metric >= self.floor.least

    def nearly_passes(self, marks: Marks) -> bool:
        """Whether one answer more would do, where a single one is worth more than the floor lets a candidate lose."""
        counts = self.judge.name not in {"cosine", "sqnr_db"} and 1 / len(self) > LABELLED_LOSS_MAX
        return counts and marks.metric >= self.floor.least - 1 / len(self)

    def part(self, indices: Sequence[int]) -> "Exam":
        """The same on some of the inputs; a default floor is that of these."""
        source = [self.source[index] for index in indices]
        return Exam(self._metric, self.inputs.take(list(indices)), source, self._given, self._score)

    def described(self) -> InputSet:
        """Which inputs these are."""
        return InputSet(names=self.inputs.names, sha256=self.inputs.sha256())


def mean_cosine(source: Sequence[Outputs], answers: Sequence[Outputs]) -> float:
    """Mean over inputs."""
    return float(np.mean([cosine(wanted, given) for wanted, given in zip(source, answers, strict=True)]))
