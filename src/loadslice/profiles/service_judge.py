"""What a service answers in the end, and how good that is.

Two judges see different inputs: combinations are chosen by one, and what was chosen is judged by the other.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from loadslice.backends.base import EngineError
from loadslice.backends.gather import gather, scatter
from loadslice.profiles.chain import Step
from loadslice.profiles.service_stage import grouped, shape_in
from loadslice.spec.errors import InputError
from loadslice.spec.work import Sample, StageError, Work
from loadslice.variants.metrics import COSINE_MIN, LABELLED_LOSS_MAX, cosine

Scorer = Callable[[list[str], list[str]], tuple[int, int]]
"""(truth, read) -> characters wrong, characters in the truth."""

TEXT = "text"
"""The output that a scorer reads."""


class Judge:
    """Marks a service's final answers to some inputs.

    Args:
        samples: The inputs.
        source: The untuned service's answers.
        scorer: ``None``: answers are compared with the source's by cosine.

    Raises:
        InputError: The scorer finds nothing right in the source's answers.
    """

    def __init__(self, samples: Sequence[Sample], source: list[Work], scorer: Scorer | None) -> None:
        self.samples = samples
        self.name = "cosine" if scorer is None else "characters"
        self._source, self._scorer = source, scorer
        self.source_mark = self.of(source)
        if scorer is not None and self.source_mark <= 0.0:
            # Half a point below nothing is a floor for anything.
            raise InputError(
                f"the inputs module's `score` finds no character right in the untuned service's answers to "
                f"{len(samples)} inputs. Check `score` and the truths of its samples."
            )
        self.floor = COSINE_MIN if scorer is None else self.source_mark - LABELLED_LOSS_MAX
        """The least that a squeezed service must reach on these inputs."""

    def mark(self, steps: Sequence[Step], rows: Mapping[str, int]) -> float:
        """Of the service that ``steps`` are; see `answers`."""
        return self.of(answers(self.samples, steps, rows))

    def of(self, found: Sequence[Work]) -> float:
        """Of answers in the order of the samples."""
        if self._scorer is None:
            return float(
                np.mean([cosine(left.tensors, right.tensors) for left, right in zip(self._source, found, strict=True)])
            )
        marks = [
            self._scorer(sample.truth if sample.truth is not None else _texts(source), _texts(answer))
            for sample, source, answer in zip(self.samples, self._source, found, strict=True)
        ]
        wrong, characters = np.sum(marks, axis=0).tolist()
        return float(1 - wrong / max(1, characters))


def answers(samples: Sequence[Sample], steps: Sequence[Step], rows: Mapping[str, int]) -> list[Work]:
    """A service's answers when requests run together, as a busy server's do.

    Args:
        samples: Requests, all there at once.
        steps: The service.
        rows: Model stage to rows of a batch; a stage that is absent, or has 1, takes each request alone.

    Raises:
        InputError: A stage refuses an input.
    """
    works = [sample.work() for sample in samples]
    for step in steps:
        limit = rows.get(step.stage.name, 1)
        try:
            works = [step.run(work) for work in works] if limit < 2 else _together(step, works, limit)
        except (StageError, EngineError) as error:
            raise InputError(f"stage '{step.stage.name}' refuses one of the inputs: {error}") from error
    return works


def _together(step: Step, works: Sequence[Work], limit: int) -> list[Work]:
    (session,) = step.sessions.values()
    made: dict[int, Work] = {}
    filled = [index for index, work in enumerate(works) if work.items]
    for batch in grouped(step.stage, [works[index] for index in filled], session.inputs, limit):
        places = [filled[place] for place in batch]
        parts = [works[place] for place in places]
        outputs = session.run(gather(parts, shape_in(step.stage, session, parts[0]), session.inputs))
        for place, share in zip(places, scatter(dict(outputs), [part.items for part in parts]), strict=True):
            kept = {name: works[place].tensors[name] for name in step.stage.carry if name in works[place].tensors}
            made[place] = Work(kept | share, works[place].context)
    return [made[index] if index in made else step.run(work) for index, work in enumerate(works)]


def _texts(work: Work) -> list[str]:
    found = work.tensors.get(TEXT)
    if found is None:
        raise InputError(f"the inputs module has a `score`, which reads texts; the answer has no output '{TEXT}'.")
    return [str(line) for line in found.tolist()]
