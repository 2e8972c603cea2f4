"""BurstGPT traces: seconds from an unstated midnight, the model asked, and two token counts."""

from dataclasses import replace
from pathlib import Path

from loadslice.spec.errors import InputError
from loadslice.workload.readers import csv_table, table
from loadslice.workload.readers.parsed import Parsed

COLUMNS = {
    "Timestamp": "arrival_s",
    "Model": "source",
    "Request tokens": "tokens_in",
    "Response tokens": "tokens_out",
}
_OTHERS = {"Total tokens", "Log Type", "Session ID", "Elapsed time"}


def read(path: Path) -> Parsed:
    """Read a BurstGPT trace; ``source`` becomes the model that was asked.

    Raises:
        InputError: A column is missing or unknown, or a value is wrong, with its line.
    """
    header, _ = csv_table.header_of(path)
    table.need(path, header, COLUMNS)
    unknown = [name for name in header if name not in COLUMNS and name not in _OTHERS]
    if unknown:
        raise InputError(f"{path}: line 1: unknown column '{unknown[0]}' in a BurstGPT trace; use --format csv.")
    parsed = replace(csv_table.parse(path, COLUMNS, "s"), source="burstgpt", absolute=False)
    failed = int((parsed.frame["tokens_out"] == 0).sum())
    if not failed:
        return parsed
    # The data set marks a request that failed by an empty response.
    return replace(parsed, notes=(f"{failed} requests have no response tokens: they failed when recorded",))
