"""`python -m benchmarks [NAME ...]`: prints medians, with the machine and what else it was doing."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from benchmarks import measure, names
from loadslice.app.output import emit, json_option, keep, out_option, say
from loadslice.spec.errors import InputError
from loadslice.spec.files import stamp

TOOLS = ("numpy", "numba", "polars", "onnxruntime", "openvino", "aiohttp")


@click.command(epilog="Example: python -m benchmarks record --repeats 5 --out out/bench")
@click.argument("chosen", metavar="[NAME ...]", nargs=-1)
@click.option("--repeats", type=click.IntRange(1, 1000), default=3, show_default=True, help="Runs of each benchmark.")
@json_option
@out_option
def command(chosen: tuple[str, ...], repeats: int, as_json: bool, out: Path | None) -> None:
    """Run benchmarks (all of them, or those named) and print medians."""
    there = names()
    for name in chosen:
        if name not in there:
            raise InputError(f"benchmark '{name}': there is none of that name ({', '.join(there)}).")
    document: dict[str, Any] = {"stamp": stamp("bench/1", tools=TOOLS), "benchmarks": []}
    for name in chosen or there:
        say(f"running {name}, {repeats} times")
        document["benchmarks"].append(measure(name, repeats))
    keep(document, out, "bench.json")
    emit(document, as_json=as_json, text=lambda: lines(document))


def lines(document: dict[str, Any]) -> Iterable[str]:
    """The document for a person."""
    machine = document["stamp"].machine
    yield f"{machine['cpu']}, {machine['cpus']} usable cores, {machine['system']}, Python {machine['python']}"
    for bench in document["benchmarks"]:
        yield ""
        yield (
            f"{bench['name']}: {bench['repeats']} repeats in {bench['took_s']:.1f} s, load average "
            f"{_number(bench['load_average_1m_before'])} before, {_number(bench['load_average_1m_after'])} after"
        )
        for key, figure in bench["figures"].items():
            if "median" not in figure:
                yield f"  {key:<28} {figure['value']}"
                continue
            spread = f"({_number(figure['min'])} to {_number(figure['max'])})"
            yield f"  {key:<28} {_number(figure['median']):>12} {spread}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; exit code 2 for a name that is not there."""
    try:
        command.main(arguments, prog_name="python -m benchmarks", standalone_mode=False)
    except (InputError, click.ClickException) as error:
        click.echo(f"benchmarks: {error}", err=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
