"""What the core decided in a recorded run, taken again from its journal: who was placed where, and how each ended."""

import itertools
from pathlib import Path

import numpy as np
import polars as pl

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import Int64s, fresh, lower, rule_sources
from loadslice.spec import journal as spec
from loadslice.spec import latency as latency_file
from loadslice.spec.errors import InputError
from loadslice.spec.journal import Journal
from loadslice.spec.pipeline import Pipeline

STEP = 2000
"""Events fed at once, so that room for their effects stays small."""


def effects(journal: Journal, pipeline: Pipeline, folder: Path) -> pl.DataFrame:
    """Placements and outcomes in order: kind, tag, a, b, reason, stage, now_ns.

    Raises:
        InputError: An event cannot be one of this run.
    """
    table = folder / "latency.json"
    tables = lower(pipeline, latency_file.load(table) if table.is_file() else None, rule_sources(pipeline))
    state = fresh(tables, pipeline.max_requests)
    rows = journal.events.select(list(spec.EVENT_COLUMNS))
    if any(rows.null_count().row(0)):
        raise InputError(f"{folder}/events.parquet: columns must be whole numbers without gaps.")
    logged: Int64s = np.ascontiguousarray(rows.to_numpy())
    scratch = np.zeros((state.members.shape[1], 2), np.int64)
    starts = np.flatnonzero(logged[:, 0] != events.RESULT)
    step = min(STEP, max(1, 1_000_000 // len(state.effects)))
    room = np.zeros((len(state.effects) * step, c.EFFECT_COLUMNS + 1), np.int64)
    said: list[Int64s] = [room[:0]]
    cuts = [0, *starts[step::step].tolist(), len(logged)]
    for begin, end in itertools.pairwise(cuts):
        count = events.decide(logged[begin:end], tables, state, scratch, room)
        if count < 0:
            raise InputError(f"{folder}: the events cannot be decided again; `loadslice check {folder}` says why.")
        kept = room[:count]
        said.append(kept[kept[:, c.F_KIND] != c.DISPATCH].copy())
    names = ["kind", "tag", "a", "b", "c", "d", "now_ns"]
    return pl.DataFrame(np.concatenate(said), schema=dict.fromkeys(names, pl.Int64), orient="row")
