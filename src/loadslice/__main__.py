"""Where ``loadslice`` and ``python -m loadslice`` begin."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it in order too."""
    try:
        from loadslice.app.cli import run

        code = run()
    except KeyboardInterrupt:
        sys.stderr.write("loadslice: interrupted\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
