"""`loadslice plan`: what to buy, what to keep, what it costs, and how sure that is."""

from pathlib import Path
from typing import Any

import click

from loadslice.app.output import check_folder, emit, json_option, out_option, seed_option

NEGATIVE = 3

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    epilog="Example: loadslice plan examples/ocr/traffic.parquet --pipeline examples/ocr/pipeline.yaml "
    "--profile out/profile/latency.json --budget examples/ocr/budget.yaml --out out/plan"
)
@click.argument("trace", type=_FILE)
@click.option("--model", "models", type=_FILE, multiple=True, help="Model file, instead of a pipeline; repeats.")
@click.option("--pipeline", "pipeline", type=_FILE, help="Pipeline file; its engines are offered.")
@click.option("--budget", type=_FILE, required=True, help="What is promised, and what money, power and people are.")
@click.option(
    "--objective",
    type=click.Choice(["cost", "latency", "energy", "throughput"]),
    default="cost",
    show_default=True,
    help="What is least (throughput: most) among fleets that keep the promise.",
)
@click.option("--profile", type=_FILE, help="Latency table; without one the pipeline is measured here.")
@click.option("--offers", type=_FILE, help="Machines and engines that may be bought or rented.")
@click.option("--prices", type=_FILE, help="What they cost, in one currency, over the years.")
@click.option("--device", "devices", multiple=True, help="Device of the catalogue to offer, times modelled; repeats.")
@click.option("--portrait", type=_FILE, help="What `portrait` says of the trace, for the decision.")
@click.option("--inspection", "inspections", type=_FILE, multiple=True, help="What `inspect` says; repeats.")
@click.option("--squeezed", "squeezes", type=_FILE, multiple=True, help="What `squeeze` tried; repeats.")
@click.option("--ray", "address", metavar="ADDRESS", help="Ray cluster to simulate on; `local` starts one here.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Simulations at a time; default: the usable cores.")
@seed_option
@json_option
@out_option
def command(as_json: bool, out: Path | None, **asked: Any) -> int:
    """Which fleet keeps the promise on this traffic, and which is cheapest?

    An exact mixed-integer program finds the mix, the simulator judges it on the recorded traffic, and what it finds too
    small is cut off until the cheapest fleet that holds is found. With --out an interrupted search goes on where it
    stopped, and `pipeline.yaml` is written, which `serve` and `simulate` take as it is, and `plan.html` to send on.

    The decision is answered from what was measured: give it --portrait, --inspection and --squeezed where they exist.
    """
    from loadslice.app import plan_run, plan_text

    check_folder(out)
    plan = plan_run.run(plan_run.Asked(out=out, **asked))
    emit(plan, as_json=as_json, text=lambda: plan_text.lines(plan))
    return 0 if plan.recommended is not None else NEGATIVE
