"""What every command says and how: one JSON document, or text for a person; progress on stderr."""

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import click

from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json, replacing, write_bytes

T = TypeVar("T")

SEED_MAX = 2**31 - 1


_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != ord("\t")}
"""What moves a terminal's cursor, or changes what it shows."""


class Finite(click.FloatRange):
    """A number in a range; NaN, which no comparison refuses, and infinity are none."""

    name = "number"

    def _describe_range(self) -> str:
        """What `--help` says of it; where there are no bounds, nothing."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse and check."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
out_option = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=None, help="Folder to keep files in."
)
inputs_option = click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    default=None,
    help="Folder of .npz files (tensors) and request bodies, or a Python file with `samples()`; else the pipeline's.",
)
seed_option = click.option(
    "--seed", type=click.IntRange(0, SEED_MAX), default=0, show_default=True, help="Start of every random draw."
)
dilate_option = click.option(
    "--dilate", type=Finite(1, 1000), default=1.0, help="Seconds here for one on emulated devices."
)
allow_remote_option = click.option(
    "--allow-remote", is_flag=True, help="Send to an address that is not this machine's."
)
admin_url_option = click.option(
    "--admin-url", default=None, help="Of its administration, where that has a port of its own."
)
tables_option = click.option(
    "--table",
    "tables",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="An operator table of your own; repeats.",
)
compilers_option = click.option(
    "--compile/--no-compile", "compilers", default=True, help="Ask vendors' compilers that are installed."
)


def refuse_given(options: Mapping[str, object], why: str) -> None:
    """Refuse the first option that was given and would change nothing.

    Args:
        options: Name -> value; ``None`` and what is empty was not given.
        why: The rest of the sentence.

    Raises:
        InputError: Names it.
    """
    for option, value in options.items():
        if value:
            raise InputError(f"{option} {why}")


def emit(document: Any, *, as_json: bool, text: Callable[[], Iterable[str]]) -> None:
    """Print a result once: as JSON, or as the lines ``text`` gives."""
    if as_json:
        # JSON is UTF-8, whatever the terminal is.
        click.echo(encode_json(document), nl=False)
        return
    for line in text():
        click.echo(in_one_line(line))


@contextmanager
def native() -> Iterator[None]:
    """Run libraries that print from native code: it goes to stderr, for stdout carries our document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        # What they print may still be in the C library's buffer.
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def guests() -> Iterator[None]:
    """Run code of the user's own (stages, inputs): what it prints goes to stderr, for stdout carries our document."""
    with redirect_stdout(sys.stderr):
        yield


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that cannot be written to before any work is done for it.

    Raises:
        InputError: It cannot be made, or nothing can be written in it.
    """
    if folder is not None:
        with replacing(folder / ".writable") as probe:
            probe.write_bytes(b"")
        (folder / ".writable").unlink(missing_ok=True)


def keep(document: Any, folder: Path | None, name: str) -> Path | None:
    """Write a document as ``folder/name`` when a folder was asked for."""
    if folder is None:
        return None
    path = folder / name
    write_bytes(path, encode_json(document))
    return path


def say(text: str) -> None:
    """Tell the user what is going on, on stderr; in as many lines as the text has."""
    for line in text.split("\n"):
        click.echo(in_one_line(line), err=True)


def in_one_line(text: str) -> str:
    """Text with its control characters spelled out: names come from files, and a file may be anybody's."""
    return text.translate(_CONTROL)


@contextmanager
def progress(label: str, items: Iterable[T], length: int | None = None) -> Iterator[Iterable[T]]:
    """A progress bar on stderr when that is a terminal, otherwise nothing."""
    if sys.stderr.isatty():
        with click.progressbar(items, length=length, label=label, file=sys.stderr) as bar:
            yield bar
    else:
        yield items
