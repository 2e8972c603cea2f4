"""`loadslice serve` on a language file."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
from click.core import ParameterSource

from loadslice.app.ending import INTERRUPTED
from loadslice.app.output import emit
from loadslice.backends.language.calibrate import SPREAD_MAX
from loadslice.backends.probe import BUSY_SHARE
from loadslice.serve.access import Access
from loadslice.serve.descriptors import fitting
from loadslice.serve.language.server import LanguageServer
from loadslice.serve.limits import MEBIBYTE, Limits
from loadslice.serve.loop import new_loop
from loadslice.spec import access
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, write_bytes
from loadslice.spec.language import LanguageEngine, StepCost, load_language
from loadslice.spec.language_profile import costs_of, load_profile, with_links

log = logging.getLogger(__name__)

_TAKEN = {
    "pipeline_file",
    "journal",
    "profile",
    "host",
    "http",
    "tokens",
    "insecure",
    "max_body_mb",
    "ready_file",
    "log_format",
    "console",
    "as_json",
}


def refuse_given(path: Path) -> None:
    """Refuse options of `loadslice serve` that a language model is served without, rather than drop them.

    Raises:
        InputError: Names the first that was given.
    """
    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in _TAKEN:
            raise InputError(f"{option.opts[0]}: is not there for a language model, and {path} is one.")


def serve_language(
    path: Path,
    *,
    host: str,
    port: int,
    tokens: Path | None,
    max_body_mb: int,
    ready_file: Path | None,
    journal: Path | None,
    profile: Path | None,
    console: bool,
    as_json: bool,
) -> None:
    """Serve a language model until SIGTERM or SIGINT.

    Raises:
        InputError: The file, the model or an engine cannot be used, or the port is taken.
    """
    language, costs, beside = load_language(path), None, None
    if profile is not None:
        known = load_profile(profile, language)
        language, costs, beside = with_links(language, known), costs_of(known), known.beside
    # Each request has a connection for as long as its answer grows.
    connections = max(Limits().connections_max, language.max_sequences)
    limits = fitting(Limits(body_bytes_max=max_body_mb * MEBIBYTE, connections_max=connections), ports=1)
    granted = None if tokens is None else Access(access.load(tokens))
    server = LanguageServer(
        language,
        resolve_model(language.model, path.parent),
        host=host,
        port=port,
        costs=costs,
        beside=beside,
        limits=limits,
        access=granted,
        journal=journal,
        console=console,
        tell=log.info,
    )
    with asyncio.Runner(loop_factory=new_loop) as runner:
        reload = partial(reload_tokens, granted, tokens)
        runner.run(_serve(server, ready_file, reload, is_profiled=costs is not None, as_json=as_json))


def reload_tokens(granted: Access | None, tokens: Path | None) -> None:
    """Read the tokens again; with a file that cannot be used, and without one, everything stays as it is."""
    if granted is None or tokens is None:
        log.info("nothing is read again: there are no tokens, and a language file is read when a server starts")
        return
    try:
        granted.replace(access.load(tokens))
    except InputError as error:
        log.error("tokens: as before, for %s", error)
        return
    log.info("reloaded tokens; a language file is read when a server starts")


async def _serve(
    server: LanguageServer,
    ready_file: Path | None,
    reload: Callable[[], None],
    *,
    is_profiled: bool,
    as_json: bool,
) -> None:
    asked_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = 0

    def ask_to_stop() -> None:
        nonlocal signals
        signals += 1
        asked_to_stop.set()
        if signals > 1:
            server.hurry()
        if signals > 2:
            os._exit(INTERRUPTED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    log.info("loading language model %s, and measuring its engines one after the other", server.language.language)
    starting = asyncio.ensure_future(server.start())
    stopping = asyncio.ensure_future(asked_to_stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    await starting
    for name, cost in server.costs.items():
        engine = server.language.engines[name]
        is_measured = engine.cost is None and not is_profiled
        for line in costs_said(name, engine, cost, server.ready[name].others_share if is_measured else None):
            log.info("%s", line)
        if engine.backend == "openvino-static" and not (engine.device or "CPU").startswith("NPU"):
            device = engine.device or "CPU"
            log.info("engine %s: emulated: %s stands in for the NPU that this form is for", name, device)
    if ready_file is not None:
        write_bytes(ready_file, server.url.encode())
    engines = list(server.language.engines)
    emit(
        {
            "url": server.url,
            "console_url": server.console_url,
            "language": server.language.language,
            "engines": engines,
            "pids": server.pids,
        },
        as_json=as_json,
        text=lambda: [f"ready {server.url}/v1 (model {server.language.language}, engines {', '.join(engines)})"],
    )
    sys.stdout.flush()
    await stopping
    if ready_file is not None:
        await asyncio.to_thread(ready_file.unlink, missing_ok=True)
    log.info("stopping: finishing what is inside")
    await server.stop()
    log.info("stopped")
    if signals > 1:
        raise click.exceptions.Exit(INTERRUPTED)


def costs_said(name: str, engine: LanguageEngine, cost: StepCost, others_share: float | None) -> Iterator[str]:
    """An engine's costs for a person.

    Args:
        name: Of the engine.
        engine: As the file has it.
        cost: What the router begins with.
        others_share: Of the processors, in others' hands while it was measured just now; ``None``: it was not.
    """
    given = "as the file says" if engine.cost is not None else "as the profile says"
    basis = given if others_share is None else f"measured now, spread {cost.relative_sd:.0%}"
    sequence = f", {cost.row_us / 1e3:.3g} ms a sequence" if "decode" in engine.roles else ""
    yield (
        f"engine {name}: a step takes {cost.step_ms:.3g} ms, {cost.token_us / 1e3:.3g} ms a prompt token{sequence} "
        f"({basis})"
    )
    if others_share is not None and cost.relative_sd > SPREAD_MAX:
        others = f", and others took {others_share:.0%} of its processors" if others_share >= BUSY_SHARE else ""
        yield (
            f"warning: engine {name}: the same step took so different times that the machine must have been busy"
            f"{others}. The router begins with the quietest of what was measured, and learns; give --profile to know."
        )
