"""``python -m loadslice``."""

from loadslice.app.cli import main

if __name__ == "__main__":
    main()
