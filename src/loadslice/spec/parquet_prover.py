"""Reads Parquet files to find out whether that can be done; see `loadslice.spec.parquet`.

    python -m loadslice.spec.parquet_prover

A line comes in, a path and rows to read at a time (``null``: all) as JSON; a line with what is wrong, or ``null``, goes
out. It ends when its input does.
"""

import contextlib
import json
import os
import sys


def _bound_memory() -> None:
    """Take no more memory than the machine has: a file may ask for it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _fault(path: str, rows_at_once: int | None) -> str | None:
    """Read as the other process will: a reader that goes by batches leaves panics of its threads unsaid."""
    import polars as pl

    try:
        pl.read_parquet_metadata(path)
        lazy = pl.scan_parquet(path, glob=False)
        if rows_at_once is None:
            lazy.collect()
            return None
        for start in range(0, lazy.select(pl.len()).collect().item(), rows_at_once):
            lazy.slice(start, rows_at_once).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, MemoryError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def main() -> None:
    """Answer until there is nothing more to answer."""
    _bound_memory()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_fault(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
