"""Where ``loadslice`` and ``python -m loadslice`` begin."""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it in order too."""
    try:
        _open_streams()
        from loadslice.app.cli import run

        code = run()
    except KeyboardInterrupt:
        sys.stderr.write("loadslice: interrupted\n")
        code = 130
    # Text that is executed clears Python's mark of an interrupt, which one inside such text leaves though it was caught
    # (every dataclass is made of some), and which would end the process by the signal instead of with its code.
    exec("")  # noqa: S102
    sys.exit(code)


def _open_streams() -> None:
    """Put ``/dev/null`` in the place of standard streams that were closed (`>&-`).

    Else the next file that is opened gets the number of one, and what libraries print there is written into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "the lowest number that is free"
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(opened, mode, closefd=False))


if __name__ == "__main__":
    main()
