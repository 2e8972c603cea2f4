"""`loadslice plan`: what to buy, what to keep, what it costs, and how sure that is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from loadslice.app.ending import NEGATIVE
from loadslice.app.output import Finite, check_folder, emit, json_option, out_option, seed_option
from loadslice.spec.errors import InputError
from loadslice.spec.language import is_language_file

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


_FILE = click.Path(path_type=Path, dir_okay=False)

LANGUAGE_OPTIONS = (
    "first_token_ms",
    "between_tokens_ms",
    "quantile",
    "completed",
    "threads",
    "stretches",
    "speed",
    "scale_tokens",
    "apart",
    "years",
)


def _language_option(name: str, *, help: str, **said: Any) -> Callable[[Decorated], Decorated]:  # noqa: A002 - click's
    return click.option(name, help=f"For a language file: {help}", **said)


def _language(as_json: bool, out: Path | None, asked: dict[str, Any], language: dict[str, Any]) -> int:
    from loadslice.app import language_plan

    for name in ("models", "budget", "offers", "devices", "portrait", "inspections", "squeezes", "address"):
        if asked[name]:
            option = {"address": "ray"}.get(name, name.removesuffix("s"))
            raise InputError(f"--{option} goes with a pipeline; {asked['pipeline']} is a language file.")
    for name in ("first_token_ms", "between_tokens_ms"):
        if language[name] is None:
            raise InputError(f"--{name.replace('_', '-')}: missing. A plan for a language file needs both limits.")
    if language["years"] is not None and asked["prices"] is None:
        raise InputError("--years: there are no --prices to spread over them.")
    plan = language_plan.plan_language(
        language_plan.Asked(
            trace=asked["trace"],
            language=asked["pipeline"],
            profile=asked["profile"],
            first_token_ms=language["first_token_ms"],
            between_tokens_ms=language["between_tokens_ms"],
            quantile=float(language["quantile"]),
            completed_share=language["completed"],
            threads=language["threads"],
            stretches=language["stretches"],
            seed=asked["seed"],
            speed=language["speed"],
            scale_tokens=language["scale_tokens"],
            apart=language["apart"],
            prices=asked["prices"],
            years=language["years"],
            out=out,
            as_json=as_json,
        )
    )
    return 0 if plan.recommended is not None else NEGATIVE


@click.command(
    epilog="Example: loadslice plan examples/ocr/traffic.parquet --pipeline examples/ocr/pipeline.yaml "
    "--profile out/profile/latency.json --budget examples/ocr/budget.yaml --out out/plan"
)
@click.argument("trace", type=_FILE)
@click.option("--model", "models", type=_FILE, multiple=True, help="Model file, instead of a pipeline; repeats.")
@click.option("--pipeline", "pipeline", type=_FILE, help="Pipeline or language file; its engines are offered.")
@click.option(
    "--budget", type=_FILE, help="What is promised, and what money, power and people are; a pipeline needs it."
)
@click.option(
    "--objective",
    type=click.Choice(["cost", "latency", "energy", "throughput"]),
    default="cost",
    show_default=True,
    help="What is least (throughput: most) among fleets that keep the promise.",
)
@click.option("--profile", type=_FILE, help="Latency table; without one the pipeline is measured here.")
@click.option("--offers", type=_FILE, help="Machines and engines that may be bought or rented.")
@click.option("--prices", type=_FILE, help="What they cost, in one currency.")
@click.option("--device", "devices", multiple=True, help="Device of the catalogue to offer, times modelled; repeats.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1x3x640x640", help="Of a modelled input; repeats.")
@click.option("--portrait", type=_FILE, help="What `portrait` says of the trace, for the decision.")
@click.option("--inspection", "inspections", type=_FILE, multiple=True, help="What `inspect` says; repeats.")
@click.option("--squeezed", "squeezes", type=_FILE, multiple=True, help="What `squeeze` tried; repeats.")
@click.option("--ray", "address", metavar="ADDRESS", help="Ray cluster to simulate on; `local` starts one here.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Simulations at a time; default: the usable cores.")
@_language_option("--first-token-ms", type=Finite(min=0, min_open=True), help="limit of the first token.")
@_language_option("--between-tokens-ms", type=Finite(min=0, min_open=True), help="limit between two tokens.")
@_language_option(
    "--quantile",
    type=click.Choice(["0.5", "0.95", "0.99"]),
    default="0.95",
    show_default=True,
    help="share of requests, and of gaps, that keeps them.",
)
@_language_option(
    "--completed", type=Finite(0, 1), default=0.99, show_default=True, help="share of requests to complete."
)
@_language_option(
    "--threads", type=click.IntRange(1, 64), default=4, show_default=True, help="threads of a fleet at most."
)
@_language_option(
    "--stretches", type=click.IntRange(1, 100), default=5, show_default=True, help="parts of the trace, for intervals."
)
@_language_option("--speed", type=Finite(min=1e-6, max=1e6), default=1.0, show_default=True, help="pace of the trace.")
@_language_option(
    "--scale-tokens",
    type=Finite(min=1e-6, max=1e6),
    default=1.0,
    show_default=True,
    help="tokens for one of its.",
)
@_language_option("--apart", is_flag=True, help="engines have cores of their own and do not slow each other.")
@_language_option("--years", type=Finite(0.1, 30), help="years over which what is bought is paid.")
@seed_option
@json_option
@out_option
def command(as_json: bool, out: Path | None, **asked: Any) -> int:
    """Which fleet keeps the promise on this traffic, and which is cheapest?

    An exact mixed-integer program finds the mix, the simulator judges it on the recorded traffic, and what it finds too
    small is cut off until the cheapest fleet that holds is found. With --out an interrupted search goes on where it
    stopped, and `pipeline.yaml` is written, which `serve` and `simulate` take as it is, and `plan.html` to send on.

    The decision is answered from what was measured: give it --portrait, --inspection and --squeezed where they exist.

    Of a language file, fleets that share engines and fleets that compute prompts apart are simulated on stretches of
    the trace, and the answer is whether to split, with how sure that is.
    """
    language = {name: asked.pop(name) for name in LANGUAGE_OPTIONS}
    if asked["pipeline"] is not None and is_language_file(asked["pipeline"]):
        return _language(as_json, out, asked, language)
    given = click.get_current_context().get_parameter_source
    for name in LANGUAGE_OPTIONS:
        if given(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"--{name.replace('_', '-')} goes with a language file; --pipeline names none.")
    if asked["budget"] is None:
        raise InputError("--budget: missing. It says what is promised; examples/ocr/budget.yaml is one.")
    from loadslice.app import plan_run, plan_text

    check_folder(out)
    plan = plan_run.run(plan_run.Asked(out=out, **asked))
    emit(plan, as_json=as_json, text=lambda: plan_text.lines(plan))
    return 0 if plan.recommended is not None else NEGATIVE
