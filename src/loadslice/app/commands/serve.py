"""`loadslice serve`: run a pipeline."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

import click

from loadslice.app import twins
from loadslice.app.output import Finite, emit, say
from loadslice.serve.limits import MEBIBYTE, Limits
from loadslice.serve.loop import new_loop
from loadslice.serve.server import Server
from loadslice.spec import latency, pipeline
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason, write_bytes
from loadslice.spec.pipeline_hints import silent
from loadslice.spec.twin import label
from loadslice.spec.twin import twins as emulated

INTERRUPTED = 130
"""Exit code of a command that was cut short."""

_path = click.Path(path_type=Path)


@click.command("serve", epilog="Example: loadslice serve examples/ocr/pipeline.yaml --http 8000 --journal run1")
@click.argument("pipeline_file", metavar="P", type=_path)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: any free one.")
@click.option("--profile", type=_path, default=None, help="Latency table; without it service times are learnt.")
@click.option("--journal", type=_path, default=None, help="New folder for the journal of this run.")
@click.option("--max-body-mb", type=click.IntRange(1, 1024), default=16, show_default=True, help="Largest body.")
@click.option("--drain-s", type=Finite(0, 3600), default=20.0, show_default=True, help="Time to finish in.")
@click.option("--ready-file", type=_path, default=None, help="Holds the address while ready.")
@click.option("--dilate", type=Finite(1, 1000), default=1.0, help="Seconds here for one on emulated devices.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout when ready.")
def command(
    pipeline_file: Path,
    host: str,
    http: int,
    profile: Path | None,
    journal: Path | None,
    max_body_mb: int,
    drain_s: float,
    ready_file: Path | None,
    dilate: float,
    as_json: bool,
) -> None:
    """Run a pipeline until SIGTERM or SIGINT, then finish what is inside; a second signal cuts that short."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    if ready_file is not None:
        _clear(ready_file)
    if not _is_loopback(host):
        say(f"warning: --host {host}: whoever reaches this address may use the server, there is no authentication yet")
    folder = pipeline_file.resolve().parent
    served = twins.resolved(pipeline.load(pipeline_file), folder, dilate)
    for hint in silent(served):
        say(f"warning: {hint}")
    for name in emulated(served):
        say(f"engine {name} is {label(dilate)}: {served.engines[name].device} is not here")
    server = Server(
        served,
        folder,
        host=host,
        port=http,
        latency=None if profile is None else latency.load(profile),
        journal=journal,
        limits=Limits(body_bytes_max=max_body_mb * MEBIBYTE),
        drain_s=drain_s,
    )
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(server, served, ready_file, as_json=as_json))


def _clear(ready_file: Path) -> None:
    """Remove what an earlier run may have left, and find out now rather than after loading that it cannot be written.

    Raises:
        InputError: It cannot.
    """
    try:
        ready_file.unlink(missing_ok=True)
        ready_file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=ready_file.parent).close()
    except OSError as error:
        raise InputError(f"--ready-file {ready_file}: cannot be written, {reason(error)}.") from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(server: Server, served: pipeline.Pipeline, ready_file: Path | None, *, as_json: bool) -> None:
    asked_to_stop, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop() -> None:
        if not asked_to_stop.is_set():
            asked_to_stop.set()
        elif starting.done() and not hurried.is_set():
            hurried.set()
            server.hurry()
        else:
            os._exit(INTERRUPTED)  # while models load there is nothing to lose, and no thread can be told to stop

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    say(f"loading pipeline {served.pipeline}")
    starting = asyncio.ensure_future(server.start())
    stopping = asyncio.ensure_future(asked_to_stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    await starting
    if ready_file is not None:
        write_bytes(ready_file, server.url.encode())
    engines = list(served.engines)
    emit(
        {"url": server.url, "pipeline": served.pipeline, "engines": engines},
        as_json=as_json,
        text=lambda: [f"ready {server.url} (pipeline {served.pipeline}, engines {', '.join(engines)})"],
    )
    sys.stdout.flush()  # whoever waits for this line reads a pipe
    await stopping
    if ready_file is not None:
        await asyncio.to_thread(ready_file.unlink, missing_ok=True)
    say("stopping: finishing what is inside")
    await server.stop()
    ended = ", ".join(f"{outcome.name.lower()} {count}" for outcome, count in server.outcomes.items() if count)
    say(f"stopped: {sum(server.outcomes.values())} requests ({ended or 'none'})")
    if hurried.is_set():
        raise click.exceptions.Exit(INTERRUPTED)
