"""How far the next run of a plan may lie from what its rehearsals found."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadslice.evaluate.rehearsed import BLOCK_S, Rehearsed
from loadslice.spec.latency import Drift

Float64s = npt.NDArray[np.float64]

BLOCKS_ALIKE = 0.25
"""Correlation of neighbouring blocks, mean over eight runs of the OCR example; means of alike blocks spread wider."""


def drift(found: Sequence[Rehearsed], known: Drift | None) -> Drift | None:
    """How far the next run of a plan may lie from what its rehearsals found.

    A run is as fast as its blocks are on average: with ``m`` blocks of deviation ``s``, whole runs deviate by
    ``s / sqrt(m)``, times ``sqrt((1 + r) / (1 - r))`` where neighbouring blocks correlate by ``r`` (means of a
    first-order autoregression). Where plans were rehearsed several times, the runs' own spread says it directly and
    knows of drift over minutes as well; the wider of the two counts.

    How restless the machine is, all plans say together; what a plan's times are a mean of, its own rehearsals alone
    (`Drift.level_runs`). In histories drawn by chance, of one plan or several and one rehearsal of each or several,
    94.5 to 95.1 % of next runs lie within what is made of this as their 95 % interval; where a plan was rehearsed four
    times and runs differ no more than their blocks say, 98 %, because the wider counts.

    The time beside the engines is held to its own blocks, and how far rehearsals lay from what was predicted of them is
    what they say together.

    Args:
        found: Of plans on this machine, the one that is predicted last.
        known: From the profile; its slow periods are kept.

    Returns:
        ``known`` where the rehearsals were too short to tell.
    """
    spread, freedom = _between([list(plan.blocks) for plan in found])
    if not freedom:
        return known
    beside, beside_freedom = _between([list(plan.beside) for plan in found])
    own = sum(len(run) > 0 for run in found[-1].blocks)
    missed = [one for plan in found for one in plan.missed]
    return msgspec.structs.replace(
        known or Drift(period_ms=1000 * BLOCK_S, likeness=0.0),
        between_runs=round(min(spread, 1.0), 5),
        overhead_between_runs=round(min(beside, 1.0), 5) if beside_freedom else None,
        runs=1 + min(one for one in (freedom, beside_freedom) if one),
        level_runs=max(1, own),
        misses=round(math.sqrt(sum(missed) / len(missed)), 4) if missed else None,
        missed_runs=len(missed) or None,
    )


def _between(plans: Sequence[Sequence[Float64s]]) -> tuple[float, int]:
    """How far runs differ, by their blocks or by themselves, whichever is wider, and its degrees of freedom.

    Args:
        plans: Of each, the blocks of each of its runs.
    """
    blocks = [run for plan in plans for run in plan if len(run) > 1]
    freedom = sum(len(run) - 1 for run in blocks)
    if freedom < 1:
        return 0.0, 0
    deviation = math.sqrt(sum(float(np.sum((run - run.mean()) ** 2)) for run in blocks) / freedom)
    alike = math.sqrt((1 + BLOCKS_ALIKE) / (1 - BLOCKS_ALIKE))
    spread = alike * deviation / math.sqrt(float(np.mean([len(run) for run in blocks])))
    runs = [np.array([run.mean() for run in plan if len(run)]) for plan in plans]
    between = sum(len(means) - 1 for means in runs if len(means) > 1)
    if between:
        squares = sum(float(np.sum((means - means.mean()) ** 2)) for means in runs if len(means) > 1)
        if math.sqrt(squares / between) > spread:
            return math.sqrt(squares / between), between
    return spread, freedom
