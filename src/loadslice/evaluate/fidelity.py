"""Predicted runs against live ones on the same held-out traffic, beside what live runs differ among themselves.

A session is several stretches of a trace played one after the other with a pause between them, so that one server
process serves them all. What a run did with each request is the same four columns whether it was simulated or live.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import polars as pl

from loadslice.evaluate import payloads
from loadslice.sim import record, replicas, simulate
from loadslice.spec.fidelity import FIGURES, FigureFidelity, StageFidelity, StretchFidelity
from loadslice.spec.journal import Journal
from loadslice.spec.latency import Drift, LatencyTable
from loadslice.spec.outcome import OUTCOMES, Outcome
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.report import Interval

PAUSE_S = 1.5
"""Between stretches, so that one does not queue into the next."""
REPLICAS = 20

Seen = pl.DataFrame
"""One row per request: ``row`` of the trace, ``due_s``, ``outcome``, ``latency_ms`` and ``path``, its engines."""


@dataclass(frozen=True, slots=True)
class Session:
    """Stretches to be played in one go."""

    frame: pl.DataFrame
    """As `payloads.cut` gives it, with ``stretch``, the number of each row's stretch."""
    from_s: list[float]
    """Where each stretch begins in the trace."""


class Prediction(NamedTuple):
    """What the simulator says about a session."""

    typical: list[Seen]
    """Replicas on a machine of typical speed; the first is what single requests are compared with."""
    drifting: list[Seen]
    """Replicas whose machine is as fast as it happens to be in that run."""
    stages: pl.DataFrame
    """Means over one replica: ``stage``, ``queue_ms``, ``service_ms``."""
    busy: float
    """Utilisation of the busiest engine in one replica, 0 to 1."""
    drift: Drift | None = None
    """Of the latency table; says how far off rehearsals were predicted."""


def session(frame: pl.DataFrame, *, stretch_s: float, speed: float, count: int) -> Session:
    """Cut stretches out of the second half of a trace, evenly spread.

    The second half, so that whoever chose a pace on the first has not seen them.

    Args:
        frame: The whole trace, inputs named.
        stretch_s: Length of one as served.
        speed: Pace against the recording.
        count: How many.
    """
    times_s = frame["arrival_s"].to_numpy()
    wanted_s = stretch_s * speed
    half_s = float(times_s[0] + times_s[-1]) / 2
    room_s = max(0.0, float(times_s[-1]) - half_s - count * wanted_s)
    from_s = [half_s + number * (wanted_s + room_s / count) for number in range(count)]
    parts = []
    for number, begin_s in enumerate(from_s):
        part = payloads.cut(frame, from_s=begin_s, for_s=wanted_s, speed=speed, limit=None)
        later_s = number * (stretch_s + PAUSE_S)
        parts.append(part.with_columns(arrival_s=pl.col("arrival_s") + later_s, stretch=pl.lit(number)))
    return Session(pl.concat(parts), from_s)


def predict(
    played: Session, pipeline: Pipeline, latency: LatencyTable, *, seed: int, count: int = REPLICAS
) -> Prediction:
    """Simulate a session ``count`` times on a typical machine, and as often on one that differs from run to run."""
    prepared = simulate.prepare(played.frame, pipeline, latency, seed=seed)
    seeds = range(seed, seed + count)
    first = simulate.run(prepared, seed=seed)
    typical = [_of_simulation(first, played)]
    typical += [
        _of_simulation(simulate.run(replicas.unevenly_late(prepared, number), seed=number), played)
        for number in seeds[1:]
    ]
    drifting = [
        _of_simulation(simulate.run(replicas.in_run(prepared, number), seed=number), played) for number in seeds
    ]
    busy = max(engine.utilisation for engine in simulate.summarise(first).engines.values())
    return Prediction(typical, drifting, _stages_of_simulation(first), busy, latency.drift)


def _of_simulation(run: simulate.Run, played: Session) -> Seen:
    names = list(OUTCOMES)
    engines = np.array([*run.pipeline.engines, "-"])
    line = np.where(run.record.timeline[:, :, record.T_DONE_NS] >= 0, run.record.timeline[:, :, record.T_ENGINE], -1)
    return pl.DataFrame(
        {
            "row": played.frame["row"],
            "due_s": played.frame["arrival_s"],
            "outcome": [names[code - Outcome.COMPLETED] for code in run.record.outcome],
            "latency_ms": simulate.taken_ns(run) / 1e6,
            "path": [",".join(engines[places]) for places in line],
        }
    )


def _stages_of_simulation(run: simulate.Run) -> pl.DataFrame:
    found = []
    for number, stage in enumerate(run.pipeline.stages):
        lines = run.record.timeline[:, number]
        lines = lines[lines[:, record.T_DONE_NS] >= 0]
        wait_ms = (lines[:, record.T_DISPATCHED_NS] - lines[:, record.T_ENQUEUED_NS]) / 1e6
        service_ms = (lines[:, record.T_DONE_NS] - lines[:, record.T_DISPATCHED_NS]) / 1e6
        if len(lines):
            found.append((stage.name, float(wait_ms.mean()), float(service_ms.mean())))
    return pl.DataFrame(found, schema=["stage", "queue_ms", "service_ms"], orient="row")


def of_live(rows: pl.DataFrame, journal: Journal, pipeline: Pipeline) -> Seen:
    """What a live run did.

    Args:
        rows: The client's, as `replay.replay` gives them.
        journal: The server's.
        pipeline: Its stages in order.
    """
    tags = journal.requests.with_columns(row=pl.col("id").cast(pl.Int64, strict=False)).select("tag", "row")
    # Only stages that were finished count: what waited somewhere when it ended has been nowhere.
    placed = journal.stages.drop_nulls("done_ns").join(tags, on="tag").select("row", "stage", "engine")
    of_row: dict[int, dict[str, str]] = {}
    for row, stage, engine in placed.iter_rows():
        of_row.setdefault(row, {})[stage] = engine
    order = [stage.name for stage in pipeline.stages]
    paths = [",".join(of_row.get(row, {}).get(name, "-") for name in order) for row in rows["row"].to_list()]
    return rows.select("row", "due_s", "outcome", "latency_ms").with_columns(path=pl.Series(paths, dtype=pl.String))


def stretch(
    name: str, rows: pl.Series, from_s: float, predictions: Sequence[Prediction], live: Sequence[Seen]
) -> StretchFidelity:
    """Compare one stretch, or several together.

    Args:
        name: For people.
        rows: Rows of the trace that it holds.
        from_s: Where it begins in the trace.
        predictions: Of the whole session, for each repeat.
        live: Each repeat, of the whole session.
    """
    typical = [[_figures(_only(seen, rows)) for seen in one.typical] for one in predictions]
    drifting = [[_figures(_only(seen, rows)) for seen in one.drifting] for one in predictions]
    measured = [_figures(_only(seen, rows)) for seen in live]
    return StretchFidelity(
        name=name,
        from_s=from_s,
        requests=len(rows),
        figures=[
            _compared(
                figure,
                [[run[figure] for run in one] for one in typical],
                [[run[figure] for run in one] for one in drifting],
                [run[figure] for run in measured],
                [one.drift for one in predictions],
            )
            for figure in FIGURES
        ],
    )


def _only(seen: Seen, rows: pl.Series) -> Seen:
    return seen.filter(pl.col("row").is_in(rows.implode()))


def _figures(seen: Seen) -> dict[str, float | None]:
    done = seen.filter(pl.col("outcome") == "completed")
    times_ms = done["latency_ms"].to_numpy()
    figures: dict[str, float | None] = dict.fromkeys(FIGURES)
    if len(times_ms):
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            figures[name] = float(np.quantile(times_ms, share))
        ends_s = done["due_s"].to_numpy() + times_ms / 1000
        due_s = seen["due_s"].to_numpy()
        figures["throughput"] = len(times_ms) / max(float(ends_s.max() - due_s.min()), 1e-9)
    figures["error rate"] = 1 - len(times_ms) / seen.height
    return figures


Values = list[float | None]
"""One figure of several runs."""


def _compared(
    figure: str, typical: list[Values], drifting: list[Values], measured: Values, drifts: list[Drift | None]
) -> FigureFidelity:
    predicted = [_mean(values) for values in typical]
    intervals = [_interval(*one) for one in zip(drifting, typical, drifts, strict=True)]
    mean = _mean(measured)
    # Rates of errors are compared in points, for a share of next to nothing has no meaning.
    unit = 0.01 if figure == "error rate" else (mean or 0.0) / 100
    known = [value for value in measured if value is not None]
    errors = [
        None if first is None or second is None or not unit else (first - second) / unit
        for first, second in zip(predicted, measured, strict=False)
    ]
    return FigureFidelity(
        figure=figure,
        unit=FIGURES[figure],
        predicted=predicted,
        predicted_95=intervals,
        measured=measured,
        error=_mean(errors),
        error_size=_mean([None if one is None else abs(one) for one in errors]),
        noise=float(np.std(known, ddof=1)) / unit if len(known) > 1 and unit else None,
        covered=sum(
            interval is not None and value is not None and interval.low <= value <= interval.high
            for interval, value in zip(intervals, measured, strict=False)
        ),
    )


def _mean(values: Values) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _interval(values: Values, typical: Values, drift: Drift | None) -> Interval | None:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    left_out = replicas.left_out([value for value in typical if value is not None], drift)
    low, high = replicas.interval(known, left_out)
    return Interval(low=low, high=high)


def coverage(stretches: Sequence[StretchFidelity]) -> float | None:
    """Share of the measured figures that lie in their predicted interval; ``None``: of none could it be told.

    A figure whose interval is a single value, and was met, could not miss (no errors predicted, none seen): it is left
    out, or four plans without errors would lift every coverage by a fifth of what is missing.
    """
    inside = [
        interval.low <= value <= interval.high
        for one in stretches
        for figure in one.figures
        for interval, value in zip(figure.predicted_95, figure.measured, strict=True)
        if interval is not None and value is not None and not interval.low == value == interval.high
    ]
    return float(np.mean(inside)) if inside else None


def agreement(first: Seen, second: Seen) -> float:
    """Share of requests that ended alike and were on the same engine at every stage."""
    both = first.join(second, on="row", how="inner", suffix="_second")
    assert both.height == first.height == second.height, "both runs saw the same requests"
    alike = (both["outcome"] == both["outcome_second"]) & (both["path"] == both["path_second"])
    return float(alike.mean() or 0.0)  # type: ignore[arg-type]


def agreement_live(live: Sequence[Seen]) -> float | None:
    """Mean over every two repeats; ``None`` for fewer than two."""
    pairs = [agreement(first, second) for first, second in combinations(live, 2)]
    return float(np.mean(pairs)) if pairs else None


def stages(pipeline: Pipeline, predictions: Sequence[Prediction], journals: Sequence[Journal]) -> list[StageFidelity]:
    """Mean times per stage, both ways."""
    measured = pl.concat([journal.stages for journal in journals]).group_by("stage").agg(
        queue_ms=((pl.col("dispatched_ns") - pl.col("enqueued_ns")) / 1e6).mean(),
        service_ms=((pl.col("done_ns") - pl.col("dispatched_ns")) / 1e6).mean(),
    )  # fmt: skip
    predicted = pl.concat([one.stages for one in predictions]).group_by("stage").mean()
    left = {row["stage"]: row for row in predicted.iter_rows(named=True)}
    right = {row["stage"]: row for row in measured.iter_rows(named=True)}
    return [
        StageFidelity(
            stage=stage.name,
            queue_ms_predicted=left.get(stage.name, {}).get("queue_ms"),
            queue_ms_measured=right.get(stage.name, {}).get("queue_ms"),
            service_ms_predicted=left.get(stage.name, {}).get("service_ms"),
            service_ms_measured=right.get(stage.name, {}).get("service_ms"),
        )
        for stage in pipeline.stages
    ]
