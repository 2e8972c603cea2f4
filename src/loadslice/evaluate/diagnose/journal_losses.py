"""What was lost in a recorded run: how its requests ended, and when its engines were absent."""

from typing import NamedTuple

import polars as pl

from loadslice.evaluate.diagnose.evidence import EndedSeen, OutageSeen
from loadslice.policy import events
from loadslice.spec.journal import Journal
from loadslice.spec.pipeline import Pipeline

NS_PER_S = 1e9


class Absence(NamedTuple):
    """One stretch in which an engine was lost."""

    begin_ns: int
    end_ns: int | None
    """``None``: it was not back when the run ended."""


def ended(journal: Journal) -> list[EndedSeen]:
    """Requests by outcome and reason."""
    groups = journal.requests.drop_nulls("outcome").group_by(["outcome", "reason"], maintain_order=True)
    counted = groups.agg(
        requests=pl.len(), first_s=pl.col("end_ns").min() / NS_PER_S, last_s=pl.col("end_ns").max() / NS_PER_S
    )
    return [EndedSeen(**row) for row in counted.iter_rows(named=True)]


def absences(journal: Journal, pipeline: Pipeline) -> dict[str, list[Absence]]:
    """When each engine was lost and when it was back, in order; engines that never were have none."""
    names = list(pipeline.engines)
    gone: dict[str, list[Absence]] = {name: [] for name in names}
    told = journal.events.filter(pl.col("kind").is_in([events.ENGINE_DOWN, events.ENGINE_UP]))
    for kind, now_ns, engine in told.select("kind", "now_ns", "a0").iter_rows():
        if engine is None or not 0 <= engine < len(names):
            continue  # `loadslice check` says what is wrong with such a row
        known = gone[names[engine]]
        is_out = bool(known) and known[-1].end_ns is None
        if kind == events.ENGINE_DOWN and not is_out:
            known.append(Absence(now_ns, None))
        elif kind == events.ENGINE_UP and is_out:
            known[-1] = known[-1]._replace(end_ns=now_ns)
    return gone


def outages(journal: Journal, pipeline: Pipeline) -> tuple[list[OutageSeen], dict[str, float]]:
    """Engines that were lost, and for how many seconds stages had none at all."""
    last = journal.events["now_ns"].max()
    end_ns = int(last) if isinstance(last, int) else 0
    gone = absences(journal, pipeline)
    closed = {
        name: [(one.begin_ns, end_ns if one.end_ns is None else one.end_ns) for one in known]
        for name, known in gone.items()
    }
    seen = [
        OutageSeen(
            engine=name,
            downs=len(known),
            is_down=known[-1].end_ns is None,
            down_s=sum(end - begin for begin, end in closed[name]) / NS_PER_S,
            # Unless it says so, a server decides; an engine that was lost and came back had something to start anew.
            has_process=True if pipeline.engines[name].isolation == "process" else None,
        )
        for name, known in gone.items()
        if known
    ]
    without = {
        stage.name: together / NS_PER_S
        for stage in pipeline.stages
        if (together := _together_ns([closed[name] for name in stage.engine_names])) > 0
    }
    return seen, without


def _together_ns(stretches: list[list[tuple[int, int]]]) -> int:
    """Time that lies in a stretch of every list; those of one list do not overlap."""
    first, *others = stretches
    for other in others:
        first = [
            (max(begin, start), min(end, stop))
            for begin, end in first
            for start, stop in other
            if max(begin, start) < min(end, stop)
        ]
    return sum(end - begin for begin, end in first)
