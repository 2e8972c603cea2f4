"""`loadslice env`: the environment a measurement was made in, recorded and checked."""

from collections.abc import Iterator
from pathlib import Path

import click

from loadslice.app.ending import NEGATIVE
from loadslice.app.output import emit, json_option
from loadslice.spec import environment as environments
from loadslice.spec.environment import Environment, EnvironmentCheck
from loadslice.spec.errors import InputError
from loadslice.spec.evaluation import VARIABLES
from loadslice.spec.files import encode_json, write_bytes


@click.group("env")
def command() -> None:
    """Driver, runtime, toolchain, clocks, power and cooling: record them, and check that they are still the same.

    Example: loadslice env lock -o environment.json
    """


@command.command("lock", epilog="Example: loadslice env lock -o environment.json")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=None, help="File to write.")
@json_option
def lock(output: Path | None, as_json: bool) -> None:
    """Record the environment of this machine; what cannot be read here is null or empty."""
    from loadslice.app.evaluate_run import this_environment

    found = this_environment()
    if output is not None:
        write_bytes(output, encode_json(found))
    emit(found, as_json=as_json, text=lambda: _lines(found))


@command.command("check", epilog="Example: loadslice env check environment.json --varied driver")
@click.argument("lock_file", metavar="LOCK", type=click.Path(path_type=Path))
@click.option("--varied", default=None, help="The one variable that is meant to differ.")
@json_option
def check(lock_file: Path, varied: str | None, as_json: bool) -> int:
    """Compare this machine with a recorded environment; exit code 3 when anything else than --varied differs."""
    from loadslice.app.evaluate_run import this_environment

    if varied is not None and varied not in VARIABLES:
        raise InputError(f"--varied '{varied}': not one of {', '.join(VARIABLES)}.")
    before = environments.load(lock_file)
    found = environments.compare(before, this_environment(), varied=varied)
    emit(found, as_json=as_json, text=lambda: _check_lines(found))
    return 0 if found.same else NEGATIVE


def _lines(found: Environment) -> Iterator[str]:
    yield f"processor      {found.processor}, {found.processors} usable"
    yield f"system         {found.system}"
    for name in ("driver", "runtime", "toolchain", "clock_policy", "power_policy", "cooling"):
        values: dict[str, str] = getattr(found, name)
        told = ", ".join(f"{key} {value}" for key, value in values.items())
        yield f"{name.replace('_', ' '):<15}{told or 'none, or not to be read here'}"
    yield f"memory clock   {found.memory_clock or 'not to be read here'}"
    yield f"clock source   {found.clock_source or 'not to be read here'}"


def _check_lines(found: EnvironmentCheck) -> Iterator[str]:
    yield "the same" if found.same else f"{len(found.differences)} differences"
    for difference in found.differences:
        yield f"  {environments.words(difference)}"
    if found.unknown:
        yield f"not to be read here: {', '.join(name.replace('_', ' ') for name in found.unknown)}"
