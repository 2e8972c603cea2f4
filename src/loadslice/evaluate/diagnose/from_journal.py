"""Evidence from a journal, live or simulated."""

from pathlib import Path

import numpy as np
import polars as pl

from loadslice.evaluate.diagnose import decisions
from loadslice.evaluate.diagnose.evidence import EngineSeen, Evidence, Floats, StageSeen, Timeline
from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.spec.journal import Journal, pipeline_of
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline

NS_PER_S = 1e9
NS_PER_MS = 1e6
BINS = 120
STEP_S_MIN = 0.25
ATTEMPT = "a8"
"""Argument of an arrival that says which attempt of its client it is (`policy.desk.on_arrival`)."""
BAD = (Outcome.FAILED, Outcome.EXPIRED, Outcome.SHED, Outcome.REJECTED, Outcome.CANCELLED)
"""A client that left has not got its answer either."""


def evidence(journal: Journal, folder: Path) -> Evidence:
    """Everything rules can be asked about a journal.

    Args:
        journal: Loaded.
        folder: Where it stands.

    Raises:
        InputError: Its pipeline or its events cannot be read.
    """
    pipeline = pipeline_of(journal, folder)
    basis = journal.head.basis
    found = Evidence(basis=basis, requests=journal.requests.height, read=[str(folder)])
    passed = journal.stages.filter(pl.col("done_ns").is_not_null() & pl.col("dispatched_ns").is_not_null())
    passed = passed.with_columns(start_ns=pl.coalesce("started_ns", "dispatched_ns"))
    found.batches = batches(passed)
    span_ns = _span_ns(journal)
    found.engines = [_engine(name, pipeline, found.batches, span_ns) for name in pipeline.engines]
    found.stages = _stages(passed, journal, pipeline)
    if journal.events.height and span_ns > 0:
        found.timeline = _timeline(journal, pipeline, folder, found.batches)
    return found


def _span_ns(journal: Journal) -> int:
    ends = [journal.requests["end_ns"].max(), journal.head.span_ns if journal.requests.height == 0 else 0]
    begin = journal.requests["arrival_ns"].min()
    last = max((int(one) for one in ends if isinstance(one, int)), default=0)
    return last - (int(begin) if isinstance(begin, int) else 0)


def batches(passed: pl.DataFrame) -> pl.DataFrame:
    """One row per batch: stage, engine, start_ns, done_ns, service_ms, bucket, rows."""
    return (
        passed.group_by(["stage", "engine", "dispatched_ns", "start_ns", "done_ns"], maintain_order=True)
        .agg(bucket=pl.col("bucket").first(), rows=pl.max_horizontal(pl.col("batch_rows").max(), pl.col("items").sum()))
        .with_columns(service_ms=(pl.col("done_ns") - pl.col("start_ns")) / NS_PER_MS)
        .sort("start_ns")
    )


def _engine(name: str, pipeline: Pipeline, found: pl.DataFrame, span_ns: int) -> EngineSeen:
    engine = pipeline.engines[name]
    own = found.filter(pl.col("engine") == name)
    stages = [stage for stage in pipeline.stages if name in stage.engine_names]
    sizes = [stage.batch[name].size for stage in stages if name in stage.batch]
    busy_ns = float((own["done_ns"] - own["start_ns"]).sum() or 0)
    rows = own["rows"].mean()
    return EngineSeen(
        name=name,
        backend=engine.backend,
        device=engine.device,
        slots=engine.max_inflight,
        utilisation=min(1.0, busy_ns / max(1, span_ns * engine.max_inflight)),
        rows_mean=float(rows) if isinstance(rows, int | float) else None,
        batch_size=max(sizes, default=1) if stages else None,
        alone=any(stage.python is None for stage in stages),
    )


def _stages(passed: pl.DataFrame, journal: Journal, pipeline: Pipeline) -> list[StageSeen]:
    door = _variation(journal.requests["arrival_ns"].sort().to_numpy())
    order = [stage.name for stage in pipeline.stages]
    seen = []
    for (stage, engine), part in passed.group_by(["stage", "engine"], maintain_order=True):
        wait = ((part["start_ns"] - part["enqueued_ns"]) / NS_PER_MS).to_numpy()
        service = ((part["done_ns"] - part["start_ns"]) / NS_PER_MS).to_numpy()
        reached = part["enqueued_ns"].sort().to_numpy()
        rows = part["batch_rows"].mean()
        position = order.index(str(stage))
        seen.append(
            StageSeen(
                stage=str(stage),
                engine=str(engine),
                position=position,
                requests=part.height,
                rows_mean=float(rows) if isinstance(rows, int | float) else None,
                wait_ms_p50=float(np.quantile(wait, 0.5)),
                wait_ms_p95=float(np.quantile(wait, 0.95)),
                service_ms_p50=float(np.quantile(service, 0.5)),
                service_ms_p99=float(np.quantile(service, 0.99)),
                gap_variation=door if position == 0 else _variation(reached),
                bunch=part.height / max(1, part["enqueued_ns"].n_unique()),
            )
        )
    return seen


def _variation(times_ns: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float | None:
    gaps = np.diff(times_ns)
    return float(gaps.std() / gaps.mean()) if len(gaps) >= 10 and gaps.mean() > 0 else None


def _timeline(journal: Journal, pipeline: Pipeline, folder: Path, found: pl.DataFrame) -> Timeline:
    said = decisions.effects(journal, pipeline, folder)
    times = journal.events["now_ns"]
    begin_ns, end_ns = int(times.min()), int(said["now_ns"].max())  # type: ignore[arg-type]
    step_ns = max(STEP_S_MIN * NS_PER_S, (end_ns - begin_ns) / BINS)
    bins = max(1, int(np.ceil((end_ns - begin_ns) / step_ns)))
    engines = list(pipeline.engines)
    places = {name: number for number, name in enumerate(engines)}

    def counted(times_ns: pl.Series) -> Floats:
        at = np.minimum(((times_ns.to_numpy() - begin_ns) // step_ns).astype(np.int64), bins - 1)
        return np.bincount(at, minlength=bins).astype(np.float64)

    placed = said.filter(pl.col("kind") == c.PLACED)
    ended = said.filter(pl.col("kind") == c.OUTCOME)
    arrivals = journal.events.filter(pl.col("kind") == events.ARRIVAL)
    again = placed.filter(pl.col("c") == int(Reason.RETRY))
    where = _where_ended(ended, placed, pipeline, places)
    bad = where.filter(pl.col("a").is_in([int(one) for one in BAD]))
    left = _left(said, journal)
    shape = (len(engines), bins)
    queue, errors, service, busy, came = (np.zeros(shape), np.zeros(shape), np.full(shape, np.nan), np.zeros(shape),
                                          np.zeros(shape))  # fmt: skip
    for name, number in places.items():
        came[number] = counted(placed.filter(pl.col("b") == number)["now_ns"])
        errors[number] = counted(bad.filter(pl.col("engine") == number)["now_ns"])
        queue[number] = _waiting(left.filter(pl.col("b") == number), begin_ns, step_ns, bins)
        own = found.filter(pl.col("engine") == name)
        slots = pipeline.engines[name].max_inflight
        service[number], busy[number] = _served(own, begin_ns, step_ns, bins, slots)
    return Timeline(
        step_s=step_ns / NS_PER_S,
        begin_s=begin_ns / NS_PER_S,
        engines=engines,
        queue=queue,
        errors=errors,
        placed=came,
        service_ms=service,
        busy=busy,
        arrivals=counted(arrivals["now_ns"]),
        retries=counted(arrivals.filter(pl.col(ATTEMPT) > 1)["now_ns"]) + counted(again["now_ns"]),
        completed=counted(ended.filter(pl.col("a") == int(Outcome.COMPLETED))["now_ns"]),
    )


def _where_ended(ended: pl.DataFrame, placed: pl.DataFrame, pipeline: Pipeline, places: dict[str, int]) -> pl.DataFrame:
    """Outcomes with the engine of their last placement; of those refused at the door, the one they would have had."""
    last = placed.group_by("tag").agg(engine=pl.col("b").last())
    preferred = [places[stage.engine_names[0]] for stage in pipeline.stages]
    at_door = pl.col("d").clip(0, len(preferred) - 1).replace_strict(dict(enumerate(preferred)), return_dtype=pl.Int64)
    return ended.join(last, on="tag", how="left").with_columns(engine=pl.coalesce("engine", at_door))


def _left(said: pl.DataFrame, journal: Journal) -> pl.DataFrame:
    """Placements with the time at which each left its queue: dispatched, or what befell the request next."""
    following = said.with_columns(next_ns=pl.col("now_ns").shift(-1).over("tag"))
    following = following.filter(pl.col("kind") == c.PLACED)
    names = journal.stages.select("tag", enqueued_ns="enqueued_ns", dispatched_ns="dispatched_ns").unique(
        ["tag", "enqueued_ns"]
    )
    joined = following.join(names, left_on=["tag", "now_ns"], right_on=["tag", "enqueued_ns"], how="left")
    return joined.with_columns(left_ns=pl.coalesce("dispatched_ns", "next_ns")).drop_nulls("left_ns")


def _waiting(own: pl.DataFrame, begin_ns: int, step_ns: float, bins: int) -> Floats:
    """Most that waited, by bin."""
    if own.height == 0:
        return np.zeros(bins)
    times = np.concatenate([own["now_ns"].to_numpy(), own["left_ns"].to_numpy()])
    steps = np.concatenate([np.ones(own.height), -np.ones(own.height)])
    # Who leaves at the moment he came has not waited: leaving counts first.
    order = np.lexsort((steps, times))
    level = np.maximum(np.cumsum(steps[order]), 0)
    at = np.minimum(((times[order] - begin_ns) // step_ns).astype(np.int64), bins - 1)
    most = np.zeros(bins)
    np.maximum.at(most, at, level)
    ends = np.full(bins, -1.0)
    ends[at] = level  # the last of each bin, for bins in which nothing happens
    carried = 0.0
    for number in range(bins):
        most[number] = max(most[number], carried)
        carried = ends[number] if ends[number] >= 0 else carried
    return most


def _served(own: pl.DataFrame, begin_ns: int, step_ns: float, bins: int, slots: int) -> tuple[Floats, Floats]:
    """Median service time and share of slot time, by bin of the batch's end."""
    service, busy = np.full(bins, np.nan), np.zeros(bins)
    if own.height == 0:
        return service, busy
    starts = (own["start_ns"].to_numpy() - begin_ns) / step_ns
    ends = (own["done_ns"].to_numpy() - begin_ns) / step_ns
    at = np.minimum(ends.astype(np.int64), bins - 1)
    times = own["service_ms"].to_numpy()
    order = np.argsort(at, kind="stable")
    for number, group in zip(*_groups(at[order], times[order]), strict=True):
        service[number] = float(np.median(group))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        for number in range(int(start), min(int(end), bins - 1) + 1):
            busy[number] += max(0.0, min(end, number + 1) - max(start, number))
    return service, busy / slots


def _groups(keys: np.ndarray[tuple[int, ...], np.dtype[np.int64]], values: Floats) -> tuple[list[int], list[Floats]]:
    names, begins = np.unique(keys, return_index=True)
    return names.tolist(), np.split(values, begins[1:])
