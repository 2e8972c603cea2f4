"""`loadslice watch`: is what the server answers, and how it runs, still as it was?"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import yaml

from loadslice.app import admin_client
from loadslice.app.ending import NEGATIVE
from loadslice.app.output import Finite, admin_url_option, check_folder, emit, json_option, keep, out_option, say
from loadslice.spec import watch as watching
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp, write_bytes

if TYPE_CHECKING:
    from loadslice.app.watch_run import Server


_path = click.Path(path_type=Path)
_every = click.option("--every-s", type=Finite(0.05, 3600), default=5.0, show_default=True, help="Between looks.")
_pid = click.option("--pid", type=click.IntRange(1), default=None, help="Process whose memory is meant.")
_baseline = click.option("--baseline", "baseline_file", type=_path, required=True, help="From `watch baseline`.")


@click.group("watch")
def command() -> None:
    """Record how a server's answers and figures are while all is well, and say when they are not so any more.

    The server is started with `serve --watch watch.yaml`, which names the signals; its admin token stands in
    LOADSLICE_ADMIN_TOKEN. A watch says, and does nothing else: going back to another version is the rollout's.
    """


@command.command("baseline", epilog="Example: loadslice watch baseline http://127.0.0.1:8000 --for-s 600 --out well")
@click.argument("source", metavar="URL|SAMPLES")
@admin_url_option
@_every
@click.option("--for-s", type=Finite(0), default=600.0, show_default=True, help="How long, at most.")
@click.option("--samples", type=click.IntRange(1), default=None, help="Enough answers; default: as many as come.")
@_pid
@json_option
@out_option
def baseline(
    source: str, admin_url: str | None, every_s: float, for_s: float, samples: int | None, pid: int | None,
    as_json: bool, out: Path | None,
) -> None:  # fmt: skip
    """Record a baseline from a server under its usual load, or from samples.jsonl that was kept before.

    Drive recorded traffic at the server meanwhile (`loadslice replay`), or let it serve. --out gets baseline.json and
    samples.jsonl.
    """
    from loadslice.app import watch_run
    from loadslice.evaluate.watch import reference

    check_folder(out)
    if _is_url(source):
        server = _server(source, admin_url, pid)
        bounds = watch_run.Bounds(every_s, for_s, samples)
        head, gathered, readings = watch_run.gather(server, bounds)
    else:
        head, readings = watch_run.load_samples(Path(source)), []
        gathered = head.samples
        if len(gathered) < head.plan.minimum:
            raise InputError(f"{source}: {len(gathered)} answers; a baseline needs {head.plan.minimum} at least.")
    made = reference.make(head.plan, head.pipeline, head.basis, gathered, readings)
    inputs = {} if _is_url(source) else {"samples": Path(source)}
    made = msgspec.structs.replace(
        made, stamp=stamp(watching.BASELINE_SCHEMA, inputs=inputs, tools=("numpy", "scipy", "river"))
    )
    keep(made, out, "baseline.json")
    if out is not None:
        write_bytes(out / watch_run.SAMPLES_FILE, watch_run.written(head, gathered))
    emit(made, as_json=as_json, text=lambda: _baseline_lines(made))


@command.command("run", epilog="Example: loadslice watch run http://127.0.0.1:8000 --baseline well/baseline.json")
@click.argument("url")
@_baseline
@admin_url_option
@_every
@click.option("--for-s", type=Finite(0), default=None, help="How long; default: until interrupted.")
@click.option("--webhook", default=None, help="Address that each alert is POSTed to as JSON.")
@click.option("--metrics", type=click.IntRange(0, 65535), default=None, help="Loopback port for Prometheus.")
@click.option("--tell", default=None, metavar="SIGNAL=METRIC", help="Means by version, for a rollout's plan.")
@_pid
@json_option
@out_option
def run(
    url: str, baseline_file: Path, admin_url: str | None, every_s: float, for_s: float | None, webhook: str | None,
    metrics: int | None, tell: str | None, pid: int | None, as_json: bool, out: Path | None,
) -> int:  # fmt: skip
    """Watch a server. Exit 3: something is not as in the baseline when the time is over.

    Without --for-s it goes on until it is interrupted, which is its end and no failure.
    """
    from loadslice.app import watch_outlets, watch_run

    known = watching.load_baseline(baseline_file)
    check_folder(out)
    told = None if tell is None else _told(tell, known)
    outlets: list[watch_outlets.Outlet] = [lambda alert: click.echo(watch_outlets.printed(alert), err=as_json)]
    if webhook is not None:
        outlets.append(watch_outlets.to_webhook(webhook))
    if out is not None:
        outlets.append(watch_outlets.to_lines(out / "alerts.jsonl"))
    gauges = None if metrics is None else watch_outlets.Gauges(metrics)
    if gauges is not None:
        outlets.append(gauges.tell)
        say(f"metrics at http://127.0.0.1:{gauges.port}/metrics")
    server = _server(url, admin_url, pid)
    watch = watch_run.Watch(known, outlets, gauges, told)
    try:
        watch_run.run(watch, server, watch_run.Bounds(every_s, for_s), known, str(baseline_file))
    except KeyboardInterrupt:
        if for_s is not None:
            raise
    finally:
        if gauges is not None:
            gauges.close()
    return _end(watch.report(url, server.missed), baseline_file, as_json=as_json, out=out)


@command.command("check", epilog="Example: loadslice watch check night/samples.jsonl --baseline well/baseline.json")
@click.argument("samples_file", metavar="SAMPLES", type=_path)
@_baseline
@json_option
@out_option
def check(samples_file: Path, baseline_file: Path, as_json: bool, out: Path | None) -> int:
    """Hold samples that were kept against a baseline. Exit 3: they are not as in it."""
    from loadslice.app import watch_outlets, watch_run

    known = watching.load_baseline(baseline_file)
    head = watch_run.load_samples(samples_file)
    watch_run.check_alike(known, head, str(baseline_file))
    check_folder(out)
    to_terminal = lambda alert: click.echo(watch_outlets.printed(alert), err=as_json)  # noqa: E731
    watch = watch_run.Watch(known, [to_terminal], is_live=False)
    watch.feed(head.samples)
    return _end(watch.report(str(samples_file)), baseline_file, as_json=as_json, out=out)


@command.command("rules", epilog="Example: loadslice watch rules --baseline well/baseline.json --out prometheus")
@_baseline
@json_option
@out_option
def rules(baseline_file: Path, as_json: bool, out: Path | None) -> None:
    """Alert rules for Prometheus with the baseline's limits; --out gets loadslice-watch.rules.yaml."""
    from loadslice.evaluate.watch import operation

    known = watching.load_baseline(baseline_file)
    group = {"groups": [{"name": f"loadslice-{known.pipeline}", "rules": operation.prometheus_rules(known)}]}
    if out is not None:
        write_bytes(out / "loadslice-watch.rules.yaml", yaml.safe_dump(group, sort_keys=False).encode())
    emit(group, as_json=as_json, text=lambda: yaml.safe_dump(group, sort_keys=False).splitlines())


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _server(url: str, admin_url: str | None, pid: int | None) -> "Server":
    from loadslice.app import watch_run, watch_server
    from loadslice.evaluate.watch.sensors import Sensors

    admin_client.token()
    return watch_run.Server(url, admin_url or url, Sensors(pid) if watch_server.is_here(url) else None)


def _told(text: str, known: watching.Baseline) -> tuple[str, str]:
    signal, _, metric = text.partition("=")
    numbers = [one.name for one in known.plan.signals if one.take != "class"]
    if signal not in numbers or not metric:
        raise InputError(f"--tell {text:.200}: give SIGNAL=METRIC, where SIGNAL is one of {', '.join(numbers)}.")
    return signal, metric


def _end(report: watching.WatchReport, baseline_file: Path, *, as_json: bool, out: Path | None) -> int:
    made = stamp(watching.REPORT_SCHEMA, inputs={"baseline": baseline_file}, tools=("numpy", "scipy", "river"))
    report = msgspec.structs.replace(report, stamp=made)
    keep(report, out, "watch.json")
    emit(report, as_json=as_json, text=lambda: _lines(report))
    return NEGATIVE if report.firing else 0


def _baseline_lines(made: watching.Baseline) -> Iterable[str]:
    yield f"baseline of {made.pipeline} ({made.basis}): {made.taken} answers, {len(made.rows)} kept"
    for signal, clumping in zip(made.plan.signals, made.clumping, strict=True):
        yield f"  {signal.name:<16}{signal.take} of {signal.output}, clumping {clumping:.2f}"
    for figure, found in made.operating.items():
        yield f"  {figure:<16}{found.low:.4g} to {found.high:.4g} in {found.readings} readings"
    for figure, why in made.absent.items():
        yield f"  {figure:<16}unknown: {why}"


def _lines(report: watching.WatchReport) -> Iterable[str]:
    yield f"{report.samples} answers, {report.looks} windows tested, {report.firing} alerts stand: {report.advice}"
    if report.missed:
        yield f"{report.missed} samples were gone before they were fetched; look more often with --every-s"
    for figure, why in report.absent.items():
        yield f"{figure} unknown: {why}"
    if report.contrast is not None and report.contrast.state != "none":
        told = ", ".join(f"{version} {mean:.4f}" for version, mean in report.contrast.told.items())
        yield f"rollout {report.contrast.state}, {report.contrast.decision}: {report.contrast.why}" + (
            f"; told {told}" if told else ""
        )
