"""`loadslice serve`: run a pipeline."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

import click

from loadslice.app.admin_client import ADMIN_TOKEN
from loadslice.app.ending import INTERRUPTED
from loadslice.app.output import Finite, dilate_option, emit, say
from loadslice.app.served import Source
from loadslice.serve import logs
from loadslice.serve.access import Access, check_admin_secret, check_exposure, is_loopback
from loadslice.serve.administration import Guard
from loadslice.serve.descriptors import fitting
from loadslice.serve.drift import DriftSampler
from loadslice.serve.limits import MEBIBYTE, Limits
from loadslice.serve.loop import new_loop
from loadslice.serve.loss_log import Losses
from loadslice.serve.server import Server
from loadslice.serve.serving import Serving
from loadslice.serve.tls import Tls, TlsFiles
from loadslice.serve.tracing import Tracer
from loadslice.spec import access
from loadslice.spec import watch as watching
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason, write_bytes
from loadslice.spec.language import is_language_file
from loadslice.spec.pipeline_hints import silent
from loadslice.spec.twin import label
from loadslice.spec.twin import twins as emulated

log = logging.getLogger(__name__)

_path = click.Path(path_type=Path)


@click.command("serve", epilog="Example: loadslice serve examples/ocr/pipeline.yaml --http 8000 --journal run1")
@click.argument("pipeline_file", metavar="P", type=_path)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--http", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: any free one.")
@click.option("--grpc", type=click.IntRange(0, 65535), default=None, help="Port for gRPC; 0: any free one.")
@click.option("--profile", type=_path, default=None, help="What `profile` wrote; without it service times are learnt.")
@click.option("--journal", type=_path, default=None, help="New folder for the journal of this run.")
@click.option("--max-body-mb", type=click.IntRange(1, 1024), default=16, show_default=True, help="Largest body.")
@click.option("--drain-s", type=Finite(0, 3600), default=20.0, show_default=True, help="Time to finish in.")
@click.option("--ready-file", type=_path, default=None, help="Holds the address while ready.")
@dilate_option
@click.option("--tokens", type=_path, default=None, help="Who may use it; see `loadslice token`.")
@click.option("--tls-cert", type=_path, default=None, help="PEM certificate with its chain.")
@click.option("--tls-key", type=_path, default=None, help="Its PEM key.")
@click.option("--tls-client-ca", type=_path, default=None, help="Clients need a certificate signed by this one.")
@click.option("--admin", type=click.IntRange(0, 65535), default=None, help="Port of its own for /admin/, on loopback.")
@click.option("--code", "allow_code", is_flag=True, help="Allow Python stages in versions of a repository.")
@click.option("--state", type=_path, default=None, help="Remembers rollouts and quotas; default: beside P.")
@click.option("--drills", is_flag=True, help="Let whoever administers it order faults.")
@click.option("--insecure", is_flag=True, help="Let others reach it without tokens or TLS.")
@click.option("--log-format", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option(
    "--stories", is_flag=True, help="Log each request that did not complete: stages, engines, reasons, times."
)
@click.option("--slow-ms", type=Finite(0), default=None, help="And each that took at least this long.")
@click.option("--otlp", default=None, help="Collector that spans are sent to, http://HOST:4318/v1/traces.")
@click.option(
    "--trace-share", type=Finite(0, 1), default=0.01, show_default=True, help="Of requests without a traceparent."
)
@click.option("--console", is_flag=True, help="Show it in the browser, at /console where /admin/ is.")
@click.option("--watch", "watch_file", type=_path, default=None, help="Sample answers for `loadslice watch`; YAML.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout when ready.")
def command(
    pipeline_file: Path,
    host: str,
    http: int,
    grpc: int | None,
    profile: Path | None,
    journal: Path | None,
    max_body_mb: int,
    drain_s: float,
    ready_file: Path | None,
    dilate: float,
    tokens: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    admin: int | None,
    allow_code: bool,
    state: Path | None,
    drills: bool,
    insecure: bool,
    log_format: str,
    stories: bool,
    slow_ms: float | None,
    otlp: str | None,
    trace_share: float,
    console: bool,
    watch_file: Path | None,
    as_json: bool,
) -> None:
    """Run a pipeline, or the current version of a model in a repository, until SIGTERM or SIGINT.

    Then finish what is inside; a second signal cuts that short. SIGHUP, or POST /admin/reload, reads everything again:
    tokens, certificates, and what is served, without dropping a request.
    """
    logs.set_up(log_format)
    if is_language_file(pipeline_file):
        # Here, because a pipeline needs nothing of it, and it brings large libraries.
        from loadslice.app.language_serve import refuse_given, serve_language

        refuse_given(pipeline_file)
        check_exposure(host, has_tokens=tokens is not None, has_tls=False, insecure=insecure)
        if ready_file is not None:
            _clear(ready_file)
        serve_language(
            pipeline_file,
            host=host,
            port=http,
            tokens=tokens,
            max_body_mb=max_body_mb,
            ready_file=ready_file,
            journal=journal,
            profile=profile,
            console=console,
            as_json=as_json,
        )
        return
    tracer = None if otlp is None else Tracer(otlp, trace_share)
    witnesses: list[logs.Witness] = [] if tracer is None else [tracer]
    if stories or slow_ms is not None:
        witnesses.append(logs.Stories(slow_ms))
    losses = Losses()
    if not stories:
        witnesses.append(losses)
    check_exposure(host, has_tokens=tokens is not None, has_tls=tls_cert is not None, insecure=insecure)
    if insecure and not is_loopback(host):
        say(f"warning: --host {host} --insecure: whoever reaches this address may use the server")
    guard = _guard(tokens, tls_cert, tls_key, tls_client_ca, admin, drills=drills)
    if ready_file is not None:
        _clear(ready_file)
    source = Source(pipeline_file, profile=profile, dilate=dilate, allow_code=allow_code)
    served = source.first()
    if served.latency is not None and served.latency.disturbed is not None:
        say(f"warning: --profile {profile}: {served.latency.disturbed}")
    if watch_file is not None:
        witnesses.append(DriftSampler(watching.load_plan(watch_file), served.pipeline))
    if source.model is None:
        for ignored in silent(served.pipeline):
            say(f"warning: {ignored}")
    for name in emulated(served.pipeline):
        say(f"engine {name} is {label(dilate)}: {served.pipeline.engines[name].device} is not here")
    limits = fitting(Limits(body_bytes_max=max_body_mb * MEBIBYTE), ports=1 + (grpc is not None) + (admin is not None))
    server = Server(
        served.pipeline,
        served.folder,
        host=host,
        port=http,
        latency=served.latency,
        journal=journal,
        limits=limits,
        drain_s=drain_s,
        source=source.now,
        guard=guard,
        grpc=grpc,
        witnesses=witnesses,
        version=served.version,
        probation=served.probation,
        state=state or source.state_file,
        versions=None if source.model is None else source,
        console=console,
    )
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_serve(server, served, ready_file, as_json=as_json))
    finally:
        losses.tell()
        if tracer is not None:
            tracer.close()


def _guard(
    tokens: Path | None,
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    admin_port: int | None,
    *,
    drills: bool,
) -> Guard:
    """Who may reach the server, and how.

    Raises:
        InputError: A file that cannot be used, or one without the other.
    """
    if (certificate is None) != (key is None) or (client_ca is not None and certificate is None):
        raise InputError("--tls-cert and --tls-key go together, and --tls-client-ca needs both.")
    secret = check_admin_secret(os.environ.get(ADMIN_TOKEN))
    return Guard(
        Access(None if tokens is None else access.load(tokens), admin_secret=secret),
        tokens_file=tokens,
        tls=None if certificate is None or key is None else Tls(TlsFiles(certificate, key, client_ca)),
        admin_port=admin_port,
        drills=drills,
    )


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


async def _serve(server: Server, serving: Serving, ready_file: Path | None, *, as_json: bool) -> None:
    served = serving.pipeline
    asked_to_stop, hurried = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop() -> None:
        if not asked_to_stop.is_set():
            asked_to_stop.set()
        elif starting.done() and not hurried.is_set():
            hurried.set()
            server.hurry()
        else:
            os._exit(INTERRUPTED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    asked_to_reload = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, asked_to_reload.set)
    log.info("loading pipeline %s", served.pipeline)
    starting = asyncio.ensure_future(server.start())
    stopping = asyncio.ensure_future(asked_to_stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("stopping: what is being loaded is given up")
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        os._exit(0)  # a thread may be inside a runtime that loads, and would meet it being taken down
    await starting
    if ready_file is not None:
        write_bytes(ready_file, server.url.encode())
    engines = list(served.engines)
    emit(
        {
            "url": server.url,
            "grpc_port": server.grpc_port,
            "admin_url": server.admin_url,
            "console_url": server.console_url,
            "pipeline": served.pipeline,
            "version": serving.version,
            "engines": engines,
        },
        as_json=as_json,
        text=lambda: [
            f"ready {server.url} (pipeline {served.pipeline}, engines {', '.join(engines)})",
            *_other_addresses(server),
        ],
    )
    sys.stdout.flush()  # whoever waits for this line reads a pipe
    reloading = asyncio.ensure_future(_reload(server, asked_to_reload))
    await stopping
    reloading.cancel()
    if ready_file is not None:
        await asyncio.to_thread(ready_file.unlink, missing_ok=True)
    log.info("stopping: finishing what is inside")
    await server.stop()
    ended = ", ".join(f"{outcome.name.lower()} {count}" for outcome, count in server.outcomes.items() if count)
    log.info("stopped: %d requests (%s)", sum(server.outcomes.values()), ended or "none")
    if hurried.is_set():
        raise click.exceptions.Exit(INTERRUPTED)


def _other_addresses(server: Server) -> list[str]:
    """Lines about what it listens to beside HTTP."""
    host = server.url.partition("//")[2].rpartition(":")[0]
    return [
        *([] if server.grpc_port is None else [f"grpc {host}:{server.grpc_port}"]),
        *([] if server.console_url is None else [f"console {server.console_url}"]),
    ]


async def _reload(server: Server, asked: asyncio.Event) -> None:
    """Read everything again whenever that is asked for, also while it is being done, and say what came of it."""
    while await asked.wait():
        asked.clear()  # what is changed from now on is read once more
        try:
            report = await server.refresh()
        except Exception:
            log.exception("not reloaded")
            continue
        for what, why in report.items():
            if why is None:
                log.info("reloaded %s", what)
            else:
                log.error("%s: as before, for %s", what, why)
