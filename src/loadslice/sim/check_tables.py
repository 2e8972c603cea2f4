"""Holds what a journal tells of its requests to the decisions taken again.

Arrivals and answers are at the times of their events, live and simulated alike, so they are compared to the nanosecond.
A server keeps a row of every placement, a simulation the last one at each stage. A killed run is compared as far as it
goes: the requests of which both an answer among the decisions and rows in the tables are left.
"""

from collections.abc import Iterator

import polars as pl

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import Int64s
from loadslice.sim.finding import Finding
from loadslice.spec.journal import Journal
from loadslice.spec.outcome import OUTCOMES, REASONS, Outcome, Reason
from loadslice.spec.pipeline import CLASSES, Pipeline

REQUEST = ("arrival_ns", "class", "outcome", "reason", "hint_ns", "end_ns")
PASSAGE = ("tag", "stage", "engine", "placed", "enqueued_ns")


def compare(journal: Journal, pipeline: Pipeline, logged: Int64s, effects: Int64s) -> Iterator[Finding]:
    """Compare the head and both tables with what was decided.

    Args:
        journal: As it was read.
        pipeline: As it was run.
        logged: [n, EVENT_COLUMNS] its events.
        effects: [m, EFFECT_COLUMNS + 1] what the core says to them, each with the time of its event.

    Yields:
        Three findings.
    """
    answers = _answers(effects)
    yield _head(journal, pipeline, answers)
    yield _requests(journal, _arrivals(logged), answers)
    yield _passages(journal, _placements(pipeline, effects), answers, len(pipeline.stages))


def _arrivals(logged: Int64s) -> pl.DataFrame:
    rows = logged[logged[:, 0] == events.ARRIVAL]
    return pl.DataFrame(
        {"tag": rows[:, 2], "arrival_ns": rows[:, 1], "class": _named(rows[:, 3], CLASSES)}, schema_overrides=_STRINGS
    ).unique("tag", keep="first")


def _answers(effects: Int64s) -> pl.DataFrame:
    rows = effects[effects[:, c.F_KIND] == c.OUTCOME]
    return pl.DataFrame(
        {
            "tag": rows[:, c.F_TAG],
            "outcome": _named(rows[:, c.F_A] - Outcome.COMPLETED, OUTCOMES),
            "reason": _named(rows[:, c.F_B], REASONS),
            "hint_ns": rows[:, c.F_C],
            "end_ns": rows[:, c.EFFECT_COLUMNS],
            "reached": rows[:, c.F_D],
        },
        schema_overrides=_STRINGS,
    ).unique("tag", keep="first")


def _placements(pipeline: Pipeline, effects: Int64s) -> pl.DataFrame:
    rows = effects[effects[:, c.F_KIND] == c.PLACED]
    return pl.DataFrame(
        {
            "tag": rows[:, c.F_TAG],
            "index": rows[:, c.F_A],
            "stage": _named(rows[:, c.F_A], [stage.name for stage in pipeline.stages]),
            "engine": _named(rows[:, c.F_B], list(pipeline.engines)),
            "placed": _named(rows[:, c.F_C], REASONS),
            "enqueued_ns": rows[:, c.EFFECT_COLUMNS],
        },
        schema_overrides=_STRINGS,
    )


_STRINGS = dict.fromkeys(("class", "outcome", "reason", "stage", "engine", "placed"), pl.String)


def _named(codes: Int64s, names: "list[str] | tuple[str, ...]") -> list[str]:
    return [names[code] for code in codes.tolist()]


def _head(journal: Journal, pipeline: Pipeline, answers: pl.DataFrame) -> Finding:
    head = journal.head
    differs = []
    if head.pipeline != pipeline.pipeline:
        differs.append(f"its pipeline is '{head.pipeline}', the pipeline file in it says '{pipeline.pipeline}'")
    last_ns = int(answers["end_ns"].max() or 0)  # type: ignore[arg-type]
    if head.clean:
        counted = dict(answers.group_by("outcome").len().iter_rows())
        for name in sorted({*OUTCOMES, *head.outcomes}):
            told, decided = head.outcomes.get(name, 0), counted.get(name, 0)
            if told != decided:
                differs.append(f"{told} {name}, decided {decided}")
        # A server counts until it is closed, a simulation until the last answer.
        if head.span_ns < last_ns or (head.basis == "simulated" and head.span_ns != last_ns):
            differs.append(f"a span of {head.span_ns} ns, the last answer was at {last_ns} ns")
    return Finding(
        promise="the head says what was decided",
        held=not differs,
        figure="; ".join(differs) or f"pipeline, outcomes and span; the last answer at {last_ns} ns",
    )


def _requests(journal: Journal, arrivals: pl.DataFrame, answers: pl.DataFrame) -> Finding:
    whole = journal.head.clean
    decided = arrivals.join(answers, on="tag", how="left" if whole else "inner").with_columns(arrived=True)
    kept = journal.requests.select(
        "tag", pl.col("hint_ns").fill_null(0), *(column for column in REQUEST if column != "hint_ns"), kept=True
    )
    both = decided.join(kept, on="tag", how="full" if whole else "inner", coalesce=True, suffix="_kept")
    wrong = both.filter(pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_kept")) for name in REQUEST))
    figure = f"{', '.join(REQUEST)}: {wrong.height} of {both.height} requests differ"
    if not whole:
        figure += f"; {journal.requests.height - both.height} rows without an answer among the decisions"
    if wrong.height > 0:
        figure += f"; first: {_first_request(wrong.sort('tag').row(0, named=True))}"
    return Finding(promise="the table of requests says what was decided", held=wrong.height == 0, figure=figure)


def _first_request(row: "dict[str, object]") -> str:
    if row["kept"] is None:
        return f"request {row['tag']} has no row"
    if row["arrived"] is None:
        return f"request {row['tag']} never arrived"
    column = next(name for name in REQUEST if row[name] != row[f"{name}_kept"])
    return f"request {row['tag']}: {column} is {row[f'{column}_kept']}, decided {row[column]}"


def _passages(journal: Journal, placements: pl.DataFrame, answers: pl.DataFrame, stages: int) -> Finding:
    kept = journal.stages.select(*PASSAGE, "done_ns")
    if not journal.head.clean:
        kept = kept.join(answers, on="tag", how="semi")
        placements = placements.join(kept, on="tag", how="semi")
    rows = kept.select(PASSAGE)
    last = placements.unique(["tag", "stage"], keep="last", maintain_order=True)
    passed = _passed(placements, last, answers, stages)
    superseded = placements.join(last, on=PASSAGE, how="anti")
    if journal.head.basis == "measured" or rows.join(superseded, on=PASSAGE, how="semi").height > 0:
        needed = placements.select(PASSAGE)
    else:
        needed = pl.concat([passed.select(PASSAGE), last.join(rows, on=["tag", "stage"], how="semi").select(PASSAGE)])
    invented = rows.join(placements, on=PASSAGE, how="anti")
    absent = needed.join(rows, on=PASSAGE, how="anti")
    repeated = rows.filter(rows.is_duplicated())
    # Where a request was placed twice at a stage, a batch that it had left may be what ended there last.
    once = passed.join(superseded, on=["tag", "stage"], how="anti").join(kept, on=PASSAGE)
    ended = once.filter(pl.col("done_ns").ne_missing(pl.col("went_on_ns"))).select(PASSAGE)
    wrong = pl.concat([invented, absent, repeated, ended]).unique(["tag", "stage"])
    figure = (
        f"engine, reason and time of {rows.height} placements, end of {once.height}: {wrong.height} passages differ "
        f"({invented.height} rows not decided, {absent.height} decided without a row, {repeated.height} repeated, "
        f"{ended.height} ends)"
    )
    if wrong.height > 0:
        first = wrong.sort("tag", "stage").row(0, named=True)
        figure += f"; first: request {first['tag']} at stage '{first['stage']}'"
    return Finding(promise="the table of passages says what was decided", held=wrong.height == 0, figure=figure)


def _passed(placements: pl.DataFrame, last: pl.DataFrame, answers: pl.DataFrame, stages: int) -> pl.DataFrame:
    """The last placement at every stage that was passed, and when the request went on: to a later stage, or out."""
    is_whole = (pl.col("outcome") == Outcome.COMPLETED.name.lower()) & (
        pl.col("reason") != Reason.DEGRADED.name.lower()
    )
    steps = pl.concat(
        [
            placements.select("tag", reached="index", at_ns="enqueued_ns"),
            answers.select(
                "tag", reached=pl.when(is_whole).then(stages).otherwise("reached").cast(pl.Int64), at_ns="end_ns"
            ),
        ]
    )
    onward = last.join(steps, on="tag").filter(pl.col("reached") > pl.col("index"))
    return onward.group_by(PASSAGE).agg(went_on_ns=pl.col("at_ns").min())
