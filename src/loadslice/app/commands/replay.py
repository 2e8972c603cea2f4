"""`loadslice replay`: drive recorded traffic at a server."""

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from loadslice.app import example_inputs
from loadslice.app.ending import NEGATIVE, code_of
from loadslice.app.output import Finite, allow_remote_option, emit, json_option, keep, out_option, say
from loadslice.evaluate import loadgen, payloads
from loadslice.evaluate import replay as replaying
from loadslice.spec import latency as profiles
from loadslice.spec import pipeline as pipelines
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp
from loadslice.spec.replay import Replay
from loadslice.spec.twin import label
from loadslice.workload import importing


@click.command(
    "replay",
    epilog="Example: loadslice replay examples/ocr/traffic.parquet http://127.0.0.1:8000 "
    "--pipeline examples/ocr/pipeline.yaml --for-s 60 --speed 2 --out out/replay",
)
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("url")
@click.option("--speed", type=Finite(), default=1.0, show_default=True, help="Pace against the recording.")
@click.option(
    "--open-loop",
    is_flag=True,
    expose_value=False,
    help="Send on time whatever the server does; the only mode there is.",
)
@click.option("--from-s", type=Finite(), default=0.0, help="Begin of the stretch, in recorded seconds.")
@click.option("--for-s", type=Finite(), default=None, help="Length of the stretch, in recorded seconds.")
@click.option("--limit", type=click.IntRange(1), default=None, help="Requests at most.")
@click.option(
    "--max-s", type=Finite(), default=3600.0, show_default=True, help="Refuse a replay that would last longer."
)
@click.option(
    "--pipeline", type=click.Path(path_type=Path), default=None, help="Pipeline file: its name and its inputs."
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    default=None,
    help="What `loadslice profile` wrote: a request whose `items` the trace knows is sent an input of that size.",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of .npz files (tensors) and request bodies, or a Python file with `samples()`.",
)
@click.option("--body", type=click.Path(path_type=Path), default=None, help="Send this file every time.")
@click.option("--content-type", default="application/octet-stream", show_default=True, help="Of --body.")
@click.option(
    "--connections", type=click.IntRange(1, 16384), default=512, show_default=True, help="Open at once, at most."
)
@click.option("--timeout-s", type=Finite(0.001, 3600), default=30.0, show_default=True, help="For one answer.")
@click.option(
    "--dilate",
    type=Finite(1, 1000),
    default=1.0,
    help="The server's own: it is slowed, and times are divided, by this.",
)
@allow_remote_option
@json_option
@out_option
def command(
    trace: Path,
    url: str,
    speed: float,
    from_s: float,
    for_s: float | None,
    limit: int | None,
    max_s: float,
    pipeline: Path | None,
    profile: Path | None,
    inputs: Path | None,
    body: Path | None,
    content_type: str,
    connections: int,
    timeout_s: float,
    dilate: float,
    allow_remote: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """Send every request of TRACE to URL at its recorded time and measure from that time.

    URL is a server, or one endpoint to POST to. TRACE is a trace file, or a log in a format `loadslice trace import`
    reads. Exit code 3: fewer than half of the requests completed, or not all were sent.
    """
    known = pipelines.load(pipeline) if pipeline is not None else None
    bodies = _inputs(pipeline, known, inputs, body, content_type)
    latency = profiles.load(profile) if profile is not None else None
    where = replaying.target(url, allow_remote=allow_remote)
    recorded = importing.load(trace)
    stretch = payloads.checked_stretch(
        recorded.frame, bodies, str(trace),
        from_s=from_s, for_s=for_s, speed=speed, limit=limit, max_s=max_s, latency=latency,
    )  # fmt: skip
    if payloads.are_drawn(recorded.frame, bodies):
        say(payloads.how_drawn(recorded.frame, bodies, latency))
    replaying.require_server(where)
    where = replaying.endpoint(where, known.pipeline if known else None, tensors=bodies.are_tensors)
    say(f"sending {stretch.height} requests over {payloads.last_due_s(stretch) * dilate:.1f} s to {where.url}")
    limits = loadgen.Limits(connections=connections, timeout_s=timeout_s)
    with click.progressbar(
        length=stretch.height, label="answers", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        rows, run = replaying.replay(stretch, bodies, where, limits, dilate=dilate, on_answer=lambda _: bar.update(1))
    named = {"trace": trace, "pipeline": pipeline, "profile": profile, "inputs": bodies.source}
    document = replaying.summarise(
        rows,
        run,
        trace=str(trace),
        url=where.url,
        speed=speed,
        from_s=from_s,
        dilate=dilate,
        made=stamp("replay/1", inputs=named, tools=("aiohttp",)),
    )
    if out is not None:
        replaying.write_rows(rows, out / "replay.parquet")
        keep(document, out, "replay.json")
    emit(document, as_json=as_json, text=lambda: _lines(document))
    if run.interrupted_by is not None:
        return code_of(run.interrupted_by)
    return 0 if document.complete and document.answered else NEGATIVE


def _inputs(
    path: Path | None, pipeline: pipelines.Pipeline | None, module: Path | None, body: Path | None, content_type: str
) -> payloads.Inputs:
    if body is not None and module is not None:
        raise InputError("give --inputs or --body, not both.")
    if body is not None:
        return payloads.from_body(body, content_type)
    if module is not None:
        return example_inputs.given(module)
    if path is not None and pipeline is not None and pipeline.inputs is not None:
        return payloads.from_function(pipeline.inputs, path.parent)
    raise InputError(
        "nothing to send: give --inputs DIR|FILE.py, --body FILE, or a --pipeline whose `inputs:` names a function."
    )


def _lines(document: Replay) -> Iterable[str]:
    ended = ", ".join(f"{count} {name}" for name, count in document.outcomes.items() if count)
    yield f"requests    {document.requests} = {ended}"
    if document.reasons:
        yield "reasons     " + ", ".join(f"{count} {reason}" for reason, count in document.reasons.items())
    if document.server_said is not None:
        said = document.server_said
        yield f"server said {said.requests} times with HTTP {said.status}: {said.text}"
    latency = document.latency_ms
    if latency.p50 is not None:
        figures = f"p50 {latency.p50:.1f}  p95 {latency.p95:.1f}  p99 {latency.p99:.1f}  mean {latency.mean:.1f} ms"
        basis = f" ({label(document.dilate)})" if document.basis == "emulated" else ""
        yield f"latency     {figures}, from the due time{basis}"
    if document.throughput_per_s is not None:
        yield f"throughput  {document.throughput_per_s:.2f}/s, within deadline {document.goodput_per_s:.2f}/s"
    if document.send_lag_ms.p50 is not None:
        yield f"send lag    p50 {document.send_lag_ms.p50:.2f}  p99 {document.send_lag_ms.p99:.2f} ms"
    if document.accuracy is not None and document.accuracy.share is not None:
        marked = document.accuracy
        yield f"accuracy    {marked.wrong_characters} of {marked.characters} characters wrong ({marked.share:.2%})"
    for warning in document.warnings:
        yield f"warning     {warning}"
