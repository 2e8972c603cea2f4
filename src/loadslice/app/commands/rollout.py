"""`loadslice rollout`: move traffic to a new version by steps, and back."""

from pathlib import Path
from typing import Any

import click
import msgspec

from loadslice.app import admin_client
from loadslice.app.ending import NEGATIVE
from loadslice.app.output import emit, json_option
from loadslice.spec import rollout as plans

_url = click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    help=f"Of the server's administration; {admin_client.ADMIN_TOKEN} holds its admin token.",
)


@click.group("rollout")
def command() -> None:
    """Move traffic to a new version by steps, judged against the old one, and back by itself when it is worse."""


@command.command("start", epilog="Example: loadslice rollout start --to 3 --plan rollout.yaml")
@click.option("--to", "version", default=None, help="Version of the repository; a pipeline file has its own canaries.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), default=None, help="How it is judged; YAML.")
@_url
@json_option
def start(version: str | None, plan_file: Path | None, url: str, as_json: bool) -> None:
    """Load and warm the new version beside the old one, and give it the first step's share."""
    plan = plans.RolloutPlan() if plan_file is None else plans.load(plan_file)
    order = {"to": version, "plan": msgspec.to_builtins(plan)}
    _print(admin_client.done(url, "POST", "/admin/rollout/start", order), as_json=as_json)


@command.command("status", epilog="Example: loadslice rollout status --json")
@_url
@json_option
def status(url: str, as_json: bool) -> None:
    """Where it stands and what each signal says. Exit 3: the canary was found to be worse."""
    answer = admin_client.done(url, "GET", "/admin/rollout")
    _print(answer, as_json=as_json)
    if answer.get("decision") == "fail":
        raise click.exceptions.Exit(NEGATIVE)


@command.command("promote", epilog="Example: loadslice rollout promote")
@click.option("--force", is_flag=True, help="Even though it has not been shown to be well.")
@_url
@json_option
def promote(force: bool, url: str, as_json: bool) -> None:
    """Take the next step; after the last one, the new version alone."""
    _print(admin_client.done(url, "POST", "/admin/rollout/promote", {"force": force}), as_json=as_json)


@command.command("abort", epilog="Example: loadslice rollout abort")
@_url
@json_option
def abort(url: str, as_json: bool) -> None:
    """Give all traffic to the old version at once; then free what the new one held."""
    _print(admin_client.done(url, "POST", "/admin/rollout/abort"), as_json=as_json)


@command.command("rollback", epilog="Example: loadslice rollout rollback")
@_url
@json_option
def rollback(url: str, as_json: bool) -> None:
    """Go back to the version before, of a rollout that runs or of one that was promoted."""
    _print(admin_client.done(url, "POST", "/admin/rollout/rollback"), as_json=as_json)


@command.command("metric", epilog="Example: loadslice rollout metric conversion --stable 0.031 --canary 0.030")
@click.argument("name")
@click.option("--stable", type=float, default=None, help="Its value with the old version; none: missing.")
@click.option("--canary", type=float, default=None, help="Its value with the new one.")
@_url
@json_option
def metric(name: str, stable: float | None, canary: float | None, url: str, as_json: bool) -> None:
    """Tell a business metric that the plan names. Values that are no numbers count as missing."""
    values = {"name": name, "stable": _number(stable), "canary": _number(canary)}
    _print(admin_client.done(url, "POST", "/admin/rollout/metric", values), as_json=as_json)


def _number(value: float | None) -> float | None:
    """JSON knows no NaN and no infinity."""
    return value if value is not None and abs(value) < float("inf") else None


def _print(answer: dict[str, Any], *, as_json: bool) -> None:
    emit(answer, as_json=as_json, text=lambda: _lines(answer))


def _lines(answer: dict[str, Any]) -> list[str]:
    since = "" if answer["since"] is None else f", since {answer['since']}"
    share = f", step {answer['step']}, {answer['weight']:.0%} of the traffic" if answer["state"] == "running" else ""
    lines = [f"{answer['state']}{share}{since}", f"{answer['decision']}: {answer['why']}"]
    if answer["state"] != "running" and answer.get("serves") is not None:
        again = ", the one of this rollout," if answer["serves"] == answer["candidate"] else ""
        lines.append(f"version {answer['serves']}{again} serves all of the traffic now")
    lines += [f"  {name}: {one['decision']}, {one['why']}" for name, one in answer["analysis"].items()]
    return lines
