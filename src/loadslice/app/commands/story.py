"""`loadslice story`: what happened to one request, from a journal."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from loadslice.app.output import emit, json_option, say
from loadslice.spec import journal as journal_file
from loadslice.spec.errors import InputError

NS_PER_MS = 1_000_000
MATCHES_MAX = 100
"""Requests of one id that are told."""


@click.command("story", epilog="Example: loadslice story out/journal order-17")
@click.argument("journal", type=click.Path(path_type=Path, file_okay=False))
@click.argument("name")
@click.option("--tag", "is_tag", is_flag=True, help="NAME is a tag, even where a request has it as its id.")
@json_option
def command(journal: Path, name: str, *, is_tag: bool, as_json: bool) -> None:
    """Tell what happened to the request NAME in JOURNAL: the id its client gave, or its tag (its number in JOURNAL).

    Times are milliseconds from its arrival at the core; unknown is null. Several requests of one id are told in turn.
    """
    import polars as pl

    kept = journal_file.load(journal)
    number = int(name) if name.isascii() and name.isdigit() and len(name) < 19 else -1  # no request's
    of_id, of_tag = (kept.requests.filter(pl.col(column) == value) for column, value in (("id", name), ("tag", number)))
    found = of_tag if is_tag or of_id.height == 0 else of_id
    if found.height == 0:
        last = kept.requests.select(pl.col("tag").max()).item()
        raise InputError(
            f"{journal}: no request has the {'' if is_tag else 'id or '}tag '{name}'; tags go from 0 to {last}."
        )
    if found is of_id and of_tag.height and of_tag["tag"][0] not in of_id["tag"]:
        say(f"'{name}' is taken for an id; the request with the tag {name} is another one: add --tag")
    stories = [
        _story(request, kept.stages.filter(pl.col("tag") == request["tag"]).sort("enqueued_ns").iter_rows(named=True))
        for request in found.head(MATCHES_MAX).iter_rows(named=True)
    ]
    emit({"journal": str(journal), "stories": stories}, as_json=as_json, text=lambda: _lines(stories))


def _story(request: dict[str, Any], stages: Iterator[dict[str, Any]]) -> dict[str, Any]:
    begin_ns = request["arrival_ns"]

    def at_ms(ns: int | None) -> float | None:
        return None if ns is None else (ns - begin_ns) / NS_PER_MS

    return {
        **{key: request[key] for key in ("tag", "id", "outcome", "reason", "class", "tenant", "source", "input")},
        "version": request["version"],
        "arrival_s": begin_ns / 1e9,
        "took_ms": at_ms(request["end_ns"]),
        "parse_ms": _ms(request["parse_ns"]),
        "reply_ms": _ms(request["reply_ns"]),
        "hint_ms": _ms(request["hint_ns"] or None),
        "stages": [
            {
                **{key: stage[key] for key in ("stage", "engine", "placed", "items", "batch_rows")},
                "enqueued_ms": at_ms(stage["enqueued_ns"]),
                "dispatched_ms": at_ms(stage["dispatched_ns"]),
                "started_ms": at_ms(stage["started_ns"]),
                "copy_ms": _ms(stage["copy_ns"]),
                "compute_ms": _ms(stage["compute_ns"]),
                "done_ms": at_ms(stage["done_ns"]),
            }
            for stage in stages
        ],
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS


def _lines(stories: list[dict[str, Any]]) -> Iterator[str]:
    for told in stories:
        name = f"{told['tag']}" + (f" (id {told['id']})" if told["id"] else "")
        who = ", ".join(f"{key} {told[key]}" for key in ("class", "tenant", "source", "version") if told[key])
        yield f"request {name}: {who}"
        yield f"{0.0:10.3f} ms  arrived, {told['arrival_s']:.3f} s after the run began"
        for stage in told["stages"]:
            why = f", {stage['placed']}" if stage["placed"] else ""
            yield f"{stage['enqueued_ms']:10.3f} ms  waits for {stage['engine']} at {stage['stage']}{why}"
            if stage["dispatched_ms"] is not None:
                rows = "" if stage["batch_rows"] is None else f", in a batch of {stage['batch_rows']} rows"
                yield f"{stage['dispatched_ms']:10.3f} ms  dispatched{rows}"
            if stage["done_ms"] is not None:
                parts = [f"{key} {stage[f'{key}_ms']:.3f} ms" for key in ("copy", "compute") if stage[f"{key}_ms"]]
                yield f"{stage['done_ms']:10.3f} ms  done" + (f" ({', '.join(parts)})" if parts else "")
        why = "" if told["reason"] == "none" else f", {told['reason']}"
        hint = "" if not told["hint_ms"] else f"; told to come back in {told['hint_ms']:.0f} ms"
        yield f"{told['took_ms'] or 0.0:10.3f} ms  {told['outcome']}{why}{hint}"
