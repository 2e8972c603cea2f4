"""What answers are worth when inputs run together, as a server's batches do.

A scale that is taken as inputs come is taken over the whole batch: what a row answers then depends on the rows beside
it. So a variant that is served in batches is judged in batches, of different inputs.
"""

from collections.abc import Sequence

import numpy as np

from loadslice.backends.base import EngineError, Session
from loadslice.backends.gather import scatter
from loadslice.variants.buckets import shape_of
from loadslice.variants.exam import Exam, Marks
from loadslice.variants.metrics import Outputs
from loadslice.variants.recorded import Feeds


def judge_together(session: Session, exam: Exam, rows_max: int) -> tuple[Exam, Marks] | None:
    """Run inputs of an exam in batches of those that have one shape, and mark the answers.

    Args:
        session: Loaded; the model takes any number of rows.
        exam: Its inputs are batched in their order; one without company is left out.
        rows_max: Of a batch.

    Returns:
        The exam of the inputs that had company, and their marks; ``None``: none had.

    Raises:
        EngineError: The runtime fails on a batch, or its outputs do not count rows.
    """
    answers: dict[int, Outputs] = {}
    for batch in _batches(exam.inputs.feeds, rows_max):
        feeds = [exam.inputs.feeds[index] for index in batch]
        together = {name: np.concatenate([one[name] for one in feeds]) for name in feeds[0]}
        shares = scatter(session.run(together), [_rows(one) for one in feeds])
        answers.update(zip(batch, shares, strict=True))
    if not answers:
        return None
    part = exam.part(sorted(answers))
    return part, part.marks([answers[index] for index in sorted(answers)])


def takes_rows(session: Session, feeds: Feeds) -> bool:
    """Whether a model takes more rows than one input has, and answers as many."""
    if any(not info.shape or info.shape[0] is not None for info in session.inputs):
        return False
    twice = {name: np.concatenate([tensor, tensor]) for name, tensor in feeds.items()}
    try:
        outputs = session.run(twice)
    except EngineError:
        return False
    return all(tensor.ndim and len(tensor) == 2 * _rows(feeds) for tensor in outputs.values())


def _batches(feeds: Sequence[Feeds], rows_max: int) -> list[list[int]]:
    """Indices of inputs of one shape, as many as fit; those with company only."""
    groups: dict[object, list[list[int]]] = {}
    for index, one in enumerate(feeds):
        batches = groups.setdefault(shape_of(one), [[]])
        if batches[-1] and sum(_rows(feeds[other]) for other in batches[-1]) + _rows(one) > rows_max:
            batches.append([])
        batches[-1].append(index)
    return [batch for batches in groups.values() for batch in batches if len(batch) > 1]


def _rows(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))
