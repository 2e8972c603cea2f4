"""The command line. Each command lives in `app/commands/` and is imported only when it is called."""

import contextlib
import difflib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import loadslice
from loadslice.app.ending import INTERRUPTED, TERMINATED, TerminatedError, ended_at_last, ended_in_order
from loadslice.app.output import in_one_line
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason

COMMANDS = {
    "portrait": "What does my load look like?",
    "inspect": "What does my model ask of hardware?",
    "rewrite": "Change a model so that more of it runs on a device.",
    "toolchain": "List, install and ask vendors' compilers.",
    "devices": "Which devices are there, here and in the catalogue?",
    "slice": "Where is a model best cut between devices, and what do the cuts cost?",
    "squeeze": "How far does the hardware I own go?",
    "profile": "How long does each stage take on each engine?",
    "plan": "Which fleet keeps the promise, and which is cheapest?",
    "simulate": "How would this fleet have served the recorded traffic?",
    "check": "Does a journal keep the policy's promises?",
    "story": "What happened to one request?",
    "serve": "Run a pipeline.",
    "rollout": "Move traffic to a new version by steps, and back.",
    "model": "Keep versions of models, switch between them, go back.",
    "token": "Make, list and revoke the tokens of a server.",
    "replay": "Drive recorded traffic at a server.",
    "batch": "Submit a file of inputs as work that may wait.",
    "evaluate": "Does a placement help here, is it still right, and is it worth it?",
    "drill": "Break it on purpose: does the pipeline keep its promises?",
    "watch": "Are answers and operation still as they were?",
    "diagnose": "What is wrong, why, and what to do about it?",
    "env": "Record the environment, and check that it is still the same.",
    "study": "The whole journey on one folder, ending in a report.",
    "trace": "Import, describe, sample and synthesise request traces.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when it is asked for, so that `--help` starts at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order of the journey."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"loadslice.app.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; click looks for names like a wrong one only among those that are imported."""
        if (name := args[0]) not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS, n=2)
            meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise click.UsageError(f"No such command {name!r:.80}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(loadslice.__version__, prog_name="loadslice")
def root() -> None:
    """Look at the load, squeeze the software, then slice the work across CPU, GPU and NPU.

    Start with `loadslice study examples/ocr`, or `loadslice trace import` on a log of your own.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit 0 done, 2 bad input, 3 negative verdict, 4 done in part, 130 and 143 ended."""
    sys.exit(run(arguments))


def _in_one_line(error: click.ClickException) -> str:
    """What is wrong with the command line, and where to look; click says it over several lines."""
    text = " ".join(error.format_message().split()).removesuffix(".")
    said, asks, meant = text.partition("(Did you mean")
    text = f"{said}Did you mean{meant.removesuffix(')')}" if asks else text
    context = getattr(error, "ctx", None)
    return f"{text}{'' if text.endswith('?') else '.'} See `{context.command_path if context else 'loadslice'} --help`."


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with ended_in_order(), ended_at_last():
        return _run(arguments)


def _run(arguments: list[str] | None) -> int:
    stdout = sys.stdout
    given = sys.argv[1:] if arguments is None else arguments
    try:
        _refuse_no_text(given)
        if isinstance(stdout, io.TextIOWrapper):
            stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 shows what it cannot so
        result: Any = root.main(args=arguments, prog_name="loadslice", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _refused(_of_address(given, str(error)) or str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _refused(_in_one_line(error))
    except (KeyboardInterrupt, click.Abort, ImportError) as error:
        # click makes one of the other, and so does a library whose import a signal breaks off.
        chain = list(_chain(error))
        terminated = any(isinstance(one, TerminatedError) for one in chain)
        if not any(isinstance(one, KeyboardInterrupt | click.Abort) for one in chain):
            raise
        _tell("terminated" if terminated else "interrupted")
        return TERMINATED if terminated else INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except SystemExit:
        if sys.stdout is stdout:
            raise
        return _unread()  # click has met it first: it wraps our stdout, and would end with 1
    except OSError as error:
        if _is_of_stdout(error):
            _leave_stdout()
            return _refused(f"standard output cannot be written, {reason(error)}.")
        return _refused(f"{_place(error)}: {reason(error)}.")
    return result if isinstance(result, int) else 0


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it was raised from, as far back as it goes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _refuse_no_text(arguments: list[str]) -> None:
    """Names of files go into results, which are UTF-8; bytes that are none can be in names, and in nothing else."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="backslashreplace").decode()
            raise InputError(f"'{shown:.200}': is not UTF-8, and results that name it must be. Rename it.") from error


def _of_address(arguments: list[str], text: str) -> str | None:
    """What to say where a fault's place is an address that was taken for a file; ``None``: it is none.

    A path has no double slash, so that what the fault names is not what was typed.
    """
    for argument in arguments:
        if argument.startswith(("http://", "https://")) and text.startswith(str(Path(argument))):
            return f"{argument}: is an address, and a file or a folder is wanted here."
    return None


def _refused(text: str) -> int:
    _tell(text)
    return 2


def _tell(text: str) -> None:
    """The one line; where standard error cannot be written either, the exit code alone has to say it."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(in_one_line(f"loadslice: {' '.join(text.splitlines())}"), err=True)


def _unread() -> int:
    """The reader has gone (`| head`), and has read what it wanted."""
    _leave_stdout()
    return 0


def _is_of_stdout(error: OSError) -> bool:
    """Whether it is standard output that cannot be written: only `click.echo`, and `run` at its end, write to it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    writer = Path(last.filename)
    return error.filename is None and (writer.parent.name == "click" or (writer.name, last.name) == ("cli.py", "_run"))


def _place(error: OSError) -> str:
    """Where an error of the system came from that nobody had words for: its file, else the line of ours it met."""
    if error.filename is not None:
        return str(error.filename)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "loadslice" in frame.filename] or frames
    return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"


def _leave_stdout() -> None:
    """Python would complain again while flushing at exit."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - lives as long as the process
