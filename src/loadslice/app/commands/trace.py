"""`loadslice trace import|info|sample|synth`."""

from pathlib import Path
from typing import Any

import click

from loadslice.app.output import Finite, emit, json_option, say, seed_option
from loadslice.spec import portrait as portraits
from loadslice.workload import importing, sample, synth, trace, words
from loadslice.workload.readers.log_lines import Taken
from loadslice.workload.readers.said import classes_of
from loadslice.workload.readers.times import Clock

target_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Trace file to write (.parquet or .jsonl)."
)


@click.group(epilog="Example: loadslice trace import access.log -o traffic.parquet")
def command() -> None:
    """Import, describe, sample and synthesise request traces."""


@command.command(
    "import",
    epilog="Example: loadslice trace import requests.csv --map when=arrival_s --map prompt_len=tokens_in -o t.parquet",
)
@click.argument("src", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(["auto", *importing.FORMATS]), default="auto", show_default=True)
@click.option(
    "--map",
    "pairs",
    multiple=True,
    metavar="COLUMN=FIELD[:UNIT]",
    help="Tables (CSV, JSON lines, Parquet): which column holds which field; may repeat. A duration's unit "
    "where it is not ms: dur=latency_ms:us.",
)
@click.option(
    "--time-unit", type=click.Choice(["iso", "s", "ms", "us", "ns"]), help="Tables: how arrival times are written."
)
@click.option(
    "--time-format", metavar="FORMAT", help="Tables: form of dates that are not ISO 8601, e.g. '%d.%m.%Y %H:%M:%S'."
)
@click.option("--zone", metavar="ZONE", help="Tables: of dates that say none, e.g. Europe/Berlin or +05:30.")
@click.option("--ended", is_flag=True, help="Tables: times are when requests ended; arrival is that less latency_ms.")
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="WORD=CLASS",
    help="Tables: what a word in the column of classes means, e.g. gold=critical; may repeat.",
)
@click.option("--sort", is_flag=True, help="Put a file that is out of order into arrival order.")
@click.option(
    "--spread",
    type=click.Choice(["uniform", "even", "none"]),
    default="uniform",
    show_default=True,
    help="How to spread arrivals inside ticks.",
)
@click.option(
    "--skip-bad",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Access logs and JSON lines: leave out up to N lines of another form (cut off, binary), and say so.",
)
@click.option(
    "--only",
    metavar="[COLUMN=]REGEX",
    help="Take only requests like this: of an access log e.g. '^POST /predict', of a table e.g. 'uri=^/predict'.",
)
@click.option("--first", type=click.IntRange(min=1), help="Keep only this many requests from the start.")
@click.option(
    "--set", "constants", multiple=True, metavar="FIELD=VALUE", help="Same text in every row, e.g. source=api."
)
@click.option("--source", help="Where the data came from, kept in the file.")
@click.option("--licence", help="Licence of the data, kept in the file.")
@target_option
@seed_option
@json_option
def import_(
    src: Path,
    kind: str,
    pairs: tuple[str, ...],
    time_unit: Any,
    time_format: str | None,
    zone: str | None,
    ended: bool,
    classes: tuple[str, ...],
    sort: bool,
    spread: Any,
    skip_bad: int,
    only: str | None,
    first: int | None,
    constants: tuple[str, ...],
    source: str | None,
    licence: str | None,
    output: Path,
    seed: int,
    as_json: bool,
) -> None:
    """Turn a log or a public trace into a trace file.

    SRC may be gzip-compressed, or the folder a `loadslice.record` recorder wrote.
    """
    mapping = importing.column_map(pairs)
    if kind == "auto":
        kind, why = importing.sniff(src, mapping)
        say(f"{src}: read as {kind} ({why})")
    options = importing.Options(
        mapping=mapping,
        units=importing.column_units(pairs),
        time_unit=time_unit,
        clock=Clock(time_format, zone),
        ended=ended,
        classes=classes_of(classes),
        sort=sort,
        spread=spread,
        seed=seed,
        lines=Taken(skip_bad, only),
    )
    found = importing.load(src, kind, options)
    found = importing.annotate(found, first=first, constants=constants, source=source, licence=licence)
    trace.write(found, output)
    _report(found, output, as_json)


@command.command(epilog="Example: loadslice trace info examples/ocr/traffic.parquet")
@click.argument("path", metavar="T", type=click.Path(path_type=Path))
@json_option
def info(path: Path, as_json: bool) -> None:
    """Rows, span, columns and notes of a trace."""
    _report(importing.load(path), path, as_json)


@command.command("sample", epilog="Example: loadslice trace sample week.parquet --n 500 -o sample.parquet")
@click.argument("path", metavar="T", type=click.Path(path_type=Path))
@click.option("--keep", type=click.Choice(["representative"]), default="representative", show_default=True)
@click.option("--n", type=click.IntRange(min=1), required=True, help="Requests to keep.")
@target_option
@seed_option
@json_option
def sample_(path: Path, keep: str, n: int, output: Path, seed: int, as_json: bool) -> None:
    """Keep N requests: the longest, the most complex, the burstiest stretch, and a fair draw of the rest."""
    assert keep == "representative"
    found = sample.representative(importing.load(path), n, seed)
    trace.write(found, output)
    _report(found, output, as_json)


@command.command("synth", epilog="Example: loadslice trace synth portrait.json --hours 24 --scale 2 -o busy.parquet")
@click.argument("path", metavar="PORTRAIT", type=click.Path(path_type=Path))
@click.option("--hours", type=Finite(min=0, min_open=True, max=24 * 366), required=True)
@click.option("--scale", type=Finite(min=0, min_open=True), default=1.0, show_default=True, help="Times the rate.")
@target_option
@seed_option
@json_option
def synth_(path: Path, hours: float, scale: float, output: Path, seed: int, as_json: bool) -> None:
    """Draw a trace that looks like a portrait."""
    found = synth.draw(portraits.load(path), hours, scale, seed)
    trace.write(found, output)
    _report(found, output, as_json)


def _report(found: trace.Trace, path: Path, as_json: bool) -> None:
    emit(words.trace_info(found, path.name), as_json=as_json, text=lambda: words.trace_lines(found, path.name))
