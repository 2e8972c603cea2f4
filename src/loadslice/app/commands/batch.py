"""`loadslice batch`: submit a file of inputs as offline work."""

import asyncio
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click

from loadslice.app import batch_rows
from loadslice.app.batch_journal import Journal
from loadslice.app.batch_send import Asked, Sender, Told
from loadslice.app.ending import INCOMPLETE, NEGATIVE, code_of
from loadslice.app.output import Finite, allow_remote_option, emit, json_option, keep, out_option, say
from loadslice.evaluate import replay as replaying
from loadslice.spec.batch import SCHEMA, Batch, FailedRow
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolved, stamp
from loadslice.spec.pipeline import CLASSES

TOKEN_VARIABLE = "LOADSLICE_TOKEN"  # noqa: S105 - the variable's name
FAILED_SHOWN = 5


@click.command(
    "batch",
    epilog="Example: loadslice batch pages.jsonl http://127.0.0.1:8000 --concurrency 16 --out out/pages",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("url")
@click.option("--model", default=None, help="Name of the pipeline, where the server has several.")
@click.option("--class", "priority", type=click.Choice(CLASSES), default="sheddable", show_default=True)
@click.option("--tenant", default=None, help="Whose work it is.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=16, show_default=True, help="Open, at most.")
@click.option("--attempts", type=click.IntRange(1, 100), default=3, show_default=True, help="For a row that fails.")
@click.option("--timeout-s", type=Finite(0.001, 86_400), default=300.0, show_default=True, help="For one answer.")
@click.option(
    "--patience-s", type=Finite(0.1, 864_000), default=3600.0, show_default=True, help="Give up after no row ended."
)
@allow_remote_option
@json_option
@out_option
def command(
    file: Path,
    url: str,
    model: str | None,
    priority: str,
    tenant: str | None,
    concurrency: int,
    attempts: int,
    timeout_s: float,
    patience_s: float,
    allow_remote: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """Submit every row of FILE to the server at URL as work that may wait, and keep the results.

    FILE is JSONL (inference bodies with `inputs`, or `{"file": "page.png"}`), an .npz whose arrays have one row per
    request, or a folder with one input per file. Results go to FILE.results.jsonl, or into --out. A run that was cut
    short goes on where it was when the same command is given again. LOADSLICE_TOKEN is sent as bearer token. Exit code
    3: rows failed; 4: no answers came any more, and rows are left.
    """
    inputs = batch_rows.look(file)
    where = replaying.target(url, allow_remote=allow_remote)
    headers = _headers(priority, tenant)
    results = (out or resolved(file).parent) / f"{resolved(file).name}.results.jsonl"
    replaying.require_server(where)
    asked = Asked(
        infer_url=_endpoint(where, model, tensors=True),
        raw_url=_endpoint(where, model, tensors=False),
        headers=headers,
        concurrency=concurrency,
        attempts=attempts,
        timeout_s=timeout_s,
        patience_s=patience_s,
    )
    with Journal(results, inputs) as journal:
        if journal.resumed:
            say(f"going on: {journal.resumed} of {inputs.rows} rows are finished")
        began_s = time.perf_counter()
        with click.progressbar(
            length=inputs.rows - journal.resumed, label="rows", file=sys.stderr, hidden=not sys.stderr.isatty()
        ) as bar:
            told = asyncio.run(Sender(inputs, journal, asked, on_row=lambda: bar.update(1)).run())
        wall_s = time.perf_counter() - began_s
        if journal.is_complete:
            journal.finish()
    document = _document(file, where.base, inputs, journal, told, wall_s, results)
    keep(document, out, "batch.json")
    emit(document, as_json=as_json, text=lambda: _lines(document))
    if told.interrupted_by is not None:
        say(f"interrupted; the same command goes on with the {inputs.rows - sum(journal.outcomes.values())} rows left")
        return code_of(told.interrupted_by)
    if told.gave_up is not None:
        say(f"gave up: {told.gave_up}; the same command goes on")
        return INCOMPLETE
    return 0 if document.complete and not document.outcomes["failed"] else NEGATIVE


def _headers(priority: str, tenant: str | None) -> dict[str, str]:
    headers = {"x-loadslice-priority": priority, "x-loadslice-source": "batch"}
    for name, value in (("--tenant", tenant), (TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE))):
        if value is not None and not (value.isprintable() and value.isascii()):
            raise InputError(f"{name}: is not printable ASCII.")
    if tenant is not None:
        headers["x-loadslice-tenant"] = tenant
    if token := os.environ.get(TOKEN_VARIABLE):
        headers["authorization"] = f"Bearer {token}"
    return headers


def _endpoint(where: replaying.Target, model: str | None, *, tensors: bool) -> str:
    return replaying.endpoint(where, model, tensors=tensors).url


def _document(
    file: Path, base: str, inputs: batch_rows.Inputs, journal: Journal, told: Told, wall_s: float, results: Path
) -> Batch:
    ended = sum(journal.outcomes.values())
    mine = ended - journal.resumed
    return Batch(
        file=str(file),
        url=base,
        rows=inputs.rows,
        outcomes={"completed": journal.outcomes["completed"], "failed": journal.outcomes["failed"]},
        resumed_rows=journal.resumed,
        refusals=told.refusals,
        attempts=told.sent,
        wall_s=wall_s,
        throughput_rows_per_s=mine / wall_s if mine and wall_s > 0 else None,
        concurrency_max=told.open_max,
        complete=journal.is_complete,
        results=str(results if journal.is_complete else journal.path),
        failed_rows=[
            FailedRow(row=kept.row, place=kept.place, status=kept.status, error=kept.error or "")
            for kept in journal.failed
        ],
        stamp=stamp(SCHEMA, tools=("aiohttp",)),
    )


def _lines(document: Batch) -> Iterable[str]:
    outcomes = document.outcomes
    left = document.rows - sum(outcomes.values())
    yield (
        f"rows        {document.rows} = {outcomes['completed']} completed, {outcomes['failed']} failed"
        + (f", {left} not sent" if left else "")
    )
    if document.resumed_rows:
        yield f"resumed     {document.resumed_rows} rows of an earlier run"
    rate = document.throughput_rows_per_s
    yield f"sent        {document.attempts} requests in {document.wall_s:.1f} s" + (
        f", {rate:.1f} rows/s" if rate else ""
    )
    yield f"refused     {document.refusals} times (429, 503), at most {document.concurrency_max} open at once"
    for failed in document.failed_rows[:FAILED_SHOWN]:
        yield f"failed      row {failed.row} ({failed.place}): {failed.error}"
    if outcomes["failed"] > FAILED_SHOWN:
        yield f"            and {outcomes['failed'] - FAILED_SHOWN} more, see the results"
    yield f"results     {document.results}"
