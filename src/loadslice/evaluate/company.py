"""What passages of a live journal would have taken on a machine of their own: the simulator's clockwork, backwards.

A passage progresses at ``1 / (crowding * (1 + company * (contention - 1)))`` (`loadslice.sim.clockwork`), and who held
a slot beside it, and when, stands in the journal. The contention is not known: every value of a range is tried.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.sim.service import Service
from loadslice.spec.pipeline import Pipeline

Float64s = npt.NDArray[np.float64]

CONTENTIONS = np.linspace(1.0, 3.0, 101)
"""What is tried; more than three times as slow beside others was not seen."""


class Passages(NamedTuple):
    """Batches of one stage on one engine in one run, [n] each, in order of their dispatch."""

    stage: str
    engine: str
    kinds: list[tuple[int, tuple[int, ...] | None]]
    """Rows and shape."""
    work_ms: Float64s
    """Copying and computing."""
    way_ms: Float64s
    """To the worker and back."""
    middle_s: Float64s
    slower: Callable[[float], Float64s]
    """Contention -> [n] how much longer each took than it would have alone, if that were it. Not kept for all that are
    tried: a rehearsal of many requests would take a hundred times its own memory."""


def passages(stages: pl.DataFrame, pipeline: Pipeline, service: Service) -> Iterator[Passages]:
    """Batches of a live journal by stage and engine.

    Args:
        stages: A live journal's rows; what was not finished, not timed or had no rows is left out.
        pipeline: As it was served.
        service: Lowered for it; says which engines share this processor, and how many cores that has.
    """
    engines = list(pipeline.engines)
    numbers = {stage.name: number for number, stage in enumerate(pipeline.stages)}
    # Members of one batch have a row each, alike but for the request.
    done = (
        stages.drop_nulls(["done_ns", "copy_ns", "compute_ns"])
        .unique(["stage", "engine", "dispatched_ns", "done_ns"], maintain_order=True)
        .filter(pl.col("done_ns") > pl.col("dispatched_ns"), pl.col("batch_rows") > 0)
        .sort("dispatched_ns")
    )
    machine = _Machine(done, [int(service.threads[engines.index(name)]) for name in done["engine"].to_list()], service)
    for (stage, engine), own in done.group_by(["stage", "engine"], maintain_order=True):
        place = numbers[str(stage)], engines.index(str(engine))
        begin_ns, end_ns = own["dispatched_ns"].to_numpy(), own["done_ns"].to_numpy()
        work_ms = (own["copy_ns"] + own["compute_ns"]).to_numpy() / 1e6
        yield Passages(
            stage=str(stage),
            engine=str(engine),
            kinds=[
                (rows, None if shape is None else tuple(shape))
                for rows, shape in own.select("batch_rows", "shape").iter_rows()
            ],
            work_ms=work_ms,
            way_ms=np.maximum((end_ns - begin_ns) / 1e6 - work_ms, 0.0),
            middle_s=(begin_ns + end_ns) / 2e9,
            slower=partial(machine.slower, begin_ns, end_ns, *place),
        )


class _Machine:
    """Who was busy when.

    Args:
        done: Every batch of a run.
        threads: That each kept busy on this processor.
        service: As in `passages`.
    """

    def __init__(self, done: pl.DataFrame, threads: list[int], service: Service) -> None:
        begin_ns, end_ns = done["dispatched_ns"].to_numpy(), done["done_ns"].to_numpy()
        self._service = service
        self._at_ns = np.unique(np.concatenate([begin_ns, end_ns]))
        change = np.zeros(len(self._at_ns))
        np.add.at(change, np.searchsorted(self._at_ns, begin_ns), threads)
        np.add.at(change, np.searchsorted(self._at_ns, end_ns), np.negative(threads))
        self._busy = np.cumsum(change)[:-1]
        """Threads, from each instant to the next."""

    def slower(self, begin_ns: Float64s, end_ns: Float64s, stage: int, engine: int, contention: float) -> Float64s:
        """How many times longer work takes for what runs beside it.

        Args:
            begin_ns: [n] when each began, of the instants this was made from.
            end_ns: [n] when it ended.
            stage: Index of its stage.
            engine: Index of its engine.
            contention: How many times longer a batch takes there while every other thread computes, 1 or more.

        Returns:
            [n] time taken over time alone, 1 or more.
        """
        service, threads = self._service, int(self._service.threads[engine])
        if threads == 0 or not np.isfinite(service.cores):
            return np.ones(len(begin_ns))
        company = np.clip((self._busy - threads) / service.company[stage, engine], 0.0, 1.0)
        crowding = np.maximum(1.0, (self._busy + service.background) / service.cores)
        speed = 1 / (crowding * (1.0 + company * (contention - 1.0)))
        progress_ns = np.concatenate([np.zeros(1), np.cumsum(speed * np.diff(self._at_ns))])
        from_, to = np.searchsorted(self._at_ns, begin_ns), np.searchsorted(self._at_ns, end_ns)
        slower: Float64s = (end_ns - begin_ns) / (progress_ns[to] - progress_ns[from_])
        return slower
