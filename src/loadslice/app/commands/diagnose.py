"""`loadslice diagnose`: from a symptom to its cause and remedy."""

from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from loadslice.app.output import Finite, admin_url_option, check_folder, emit, json_option, keep, out_option
from loadslice.spec import diagnosis
from loadslice.spec.files import stamp

_path = click.Path(path_type=Path)


@click.command("diagnose", epilog="Example: loadslice diagnose http://127.0.0.1:8000 --for-s 30")
@click.argument("source", metavar="URL|RUN")
@click.option(
    "--for-s", type=Finite(0.1, 3600), default=10.0, show_default=True, help="How long a server is looked at."
)
@click.option(
    "--every-s",
    type=Finite(0.05, 600),
    default=None,
    help="Between looks.  [default: 1, or less where --for-s is short: a dozen looks are taken]",
)
@admin_url_option
@click.option("--pipeline", type=_path, default=None, help="Its models are held against its engines' devices too.")
@click.option("--budget", type=_path, default=None, help="Limit of a box, power.per_box_w, for a recorded run.")
@json_option
@out_option
def command(
    source: str, for_s: float, every_s: float | None, admin_url: str | None, pipeline: Path | None, budget: Path | None,
    as_json: bool, out: Path | None,
) -> None:  # fmt: skip
    """What is wrong, why, and what to do about it?

    URL is a live server, of which metrics are read for some seconds; RUN a journal's folder, or one with results of
    `study`, `evaluate`, `squeeze`, `inspect` or `simulate` and the journals below it. The answer is a list, empty or
    not, and the exit code is 0 either way; what could not be looked at is named with what it would take.
    """
    from loadslice.app import diagnose_run

    check_folder(out)
    if source.startswith(("http://", "https://")):
        parts, kind = [diagnose_run.of_server(source, admin_url, for_s, every_s)], "server"
    else:
        parts = diagnose_run.of_path(Path(source), budget)
        kind = "journal" if (Path(source) / "journal.json").is_file() else "folder"
    if pipeline is not None:
        parts.append(diagnose_run.of_pipeline(pipeline))
    inputs = {"pipeline": pipeline, "budget": budget}
    found = diagnose_run.conclude(source, kind, parts)
    found = msgspec.structs.replace(found, stamp=stamp(diagnosis.SCHEMA, inputs=inputs, tools=("numpy", "polars")))
    keep(found, out, "diagnosis.json")
    emit(found, as_json=as_json, text=lambda: _lines(found))


def _lines(found: diagnosis.Diagnosis) -> Iterable[str]:
    for number, one in enumerate(found.findings, 1):
        yield f"{number}. {one.symptom}"
        yield f"   evidence    {one.evidence} [{one.basis}]"
        yield f"   cause       {one.cause} (confidence {one.confidence})"
        yield f"   remedy      {one.remedy}"
    looked = [asked.rule for asked in found.looked_at if asked.looked]
    if not found.findings:
        yield "nothing was found." if looked else "nothing could be looked at."
    yield f"looked at: {', '.join(looked) or 'nothing'}"
    for asked in found.looked_at:
        if not asked.looked:
            yield f"not looked at: {asked.rule}: {asked.why}"
    yield f"read: {', '.join(found.read)}"
