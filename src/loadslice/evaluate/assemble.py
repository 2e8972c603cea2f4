"""Puts what was predicted and what was measured about one plan side by side."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import numpy.typing as npt
import polars as pl

from loadslice.evaluate import accuracy, compare
from loadslice.evaluate.pace import Window
from loadslice.evaluate.predict import Prediction
from loadslice.spec.journal import Journal
from loadslice.spec.latency import LatencyTable
from loadslice.spec.replay import Replay
from loadslice.spec.report import Account, Agreement, Compared, Histogram, RateCurve, StageCompared

BINS = 24
RATE_COLUMNS = 120
RATE_BINS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)


def latencies_ms(rows: pl.DataFrame) -> npt.NDArray[np.float64]:
    """Latency of completed requests of a replay, in order of arrival."""
    return rows.filter(pl.col("outcome") == "completed")["latency_ms"].to_numpy().astype(np.float64)


def compared(prediction: Prediction | None, replay: Replay, rows: pl.DataFrame, seed: int) -> list[Compared]:
    """Figure by figure; without a prediction the measured column alone."""
    predicted = prediction.figures if prediction is not None else {}
    spread = prediction.intervals if prediction is not None else {}
    return compare.figures(predicted, spread, replay, latencies_ms(rows), seed)


def stages(
    order: list[str], prediction: Prediction | None, journal: Journal | None, rows: pl.DataFrame | None
) -> list[StageCompared]:
    """Stage by stage, then what lies outside queues and engines.

    Args:
        order: Stage names as they run.
        prediction: Its first run's journal is used.
        journal: The live server's.
        rows: The client's rows of the replay.
    """
    live_stages = extra_ms = None
    if journal is not None and rows is not None:
        live_requests = with_rows(journal.requests)
        live_stages = journal.stages.join(live_requests.select("tag"), on="tag", how="semi")
        done = rows.filter(pl.col("outcome") == "completed")
        client_ms = dict(zip(done["row"].to_list(), done["latency_ms"].to_list(), strict=True))
        extra_ms = compare.overhead_ms(live_requests, live_stages, client_ms)
    predicted_stages = prediction.stages if prediction is not None else None
    predicted_requests = prediction.requests if prediction is not None else None
    return [
        *compare.stages(order, predicted_stages, live_stages),
        compare.outside(predicted_requests, extra_ms),
    ]


def with_rows(requests: pl.DataFrame) -> pl.DataFrame:
    """A live journal's requests that a replay sent, with the client's row number in ``row``."""
    return requests.with_columns(row=pl.col("id").cast(pl.Int64, strict=False)).filter(pl.col("row").is_not_null())


def accounts(
    submitted: int, prediction: Prediction | None, replay: Replay | None, journal: Journal | None
) -> list[Account]:
    """Does every run add up?

    Args:
        submitted: Requests of the stretch.
        prediction: The simulated run.
        replay: What the client saw.
        journal: What the server wrote.
    """
    found = []
    if prediction is not None:
        outcomes = prediction.simulation.outcomes
        found.append(
            Account(run="simulated", submitted=submitted, outcomes=outcomes, holds=sum(outcomes.values()) == submitted)
        )
    if replay is not None:
        outcomes = replay.outcomes
        found.append(
            Account(
                run="live, client", submitted=submitted, outcomes=outcomes, holds=sum(outcomes.values()) == submitted
            )
        )
    if journal is not None:
        head = journal.head
        unseen = submitted - with_rows(journal.requests).height
        notes = [] if head.clean else ["the journal was not closed in order"]
        notes += [f"{unseen} requests never reached the server's core"] if unseen else []
        found.append(
            Account(
                run="live, server",
                submitted=head.requests,
                outcomes=head.outcomes,
                holds=sum(head.outcomes.values()) == head.requests == journal.requests.height,
                note="; ".join(notes) or None,
            )
        )
    return found


def agreements(texts: dict[str, dict[str, list[str]]], scorer: accuracy.Scorer | None) -> list[Agreement]:
    """What every two plans read in the same inputs.

    Args:
        texts: Plan -> input -> lines.
        scorer: Counts differing characters; ``None``: nothing can be compared.
    """
    if scorer is None:
        return []
    found = []
    for first, second in combinations(texts, 2):
        inputs, alike, different, characters = accuracy.agreement(texts[first], texts[second], scorer)
        if inputs:
            found.append(
                Agreement(
                    first=first,
                    second=second,
                    inputs=inputs,
                    alike=alike,
                    different_characters=different,
                    characters=characters,
                )
            )
    return found


def texts_by_input(rows: pl.DataFrame) -> dict[str, list[str]]:
    """The first answer to each input."""
    answered = rows.filter(pl.col("texts").is_not_null()).unique("input", keep="first", maintain_order=True)
    return dict(zip(answered["input"].to_list(), answered["texts"].to_list(), strict=True))


def rate_curve(frame: pl.DataFrame, window: Window | None) -> RateCurve:
    """Requests per second over the trace, in at most `RATE_COLUMNS` columns."""
    times_s = frame["arrival_s"].to_numpy()
    span_s = float(times_s[-1])
    bin_s = next((step for step in RATE_BINS_S if span_s / step <= RATE_COLUMNS), span_s / RATE_COLUMNS)
    counts = np.bincount((times_s / bin_s).astype(np.int64))
    return RateCurve(
        bin_s=bin_s,
        rate_per_s=[float(count) / bin_s for count in counts],
        replayed_from_s=window.from_s if window else 0.0,
        replayed_to_s=window.from_s + window.for_s if window else 0.0,
    )


def histograms(frame: pl.DataFrame, table: LatencyTable | None) -> list[Histogram]:
    """Sizes the trace records, and rows of work of the inputs that stand for its requests."""
    found = [
        _histogram(column, unit, frame[column].drop_nulls().to_numpy())
        for column, unit in (("items", "rows"), ("tokens_in", "tokens"), ("tokens_out", "tokens"))
        if column in frame.columns and frame[column].null_count() < frame.height
    ]
    if table is not None and table.inputs and "input" in frame.columns and "items" not in frame.columns:
        rows = {work.input: work.size for work in table.inputs}
        named = [rows[name] for name in frame["input"].to_list() if name in rows]
        if named and max(named) > 1:
            found.insert(0, _whole("rows_per_request", "rows of the widest stage", named))
    return found


def _histogram(column: str, unit: str, values: npt.NDArray[np.generic]) -> Histogram:
    counts, edges = np.histogram(values.astype(np.float64), bins=BINS)
    return Histogram(column=column, unit=unit, edges=edges.tolist(), requests=counts.tolist())


def _whole(column: str, unit: str, values: Iterable[int]) -> Histogram:
    """One bin per whole number, centred on it."""
    counts = np.bincount(np.fromiter(values, np.int64))
    edges = np.arange(len(counts) + 1) - 0.5
    return Histogram(column=column, unit=unit, edges=edges[1:].tolist(), requests=counts[1:].tolist())
