"""Azure LLM inference traces (Azure public data set, 2023 and 2024): invocation time and two token counts."""

from dataclasses import replace
from pathlib import Path

from loadslice.workload.readers import csv_table, table
from loadslice.workload.readers.parsed import Parsed

NEEDED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
COLUMNS = {
    "TIMESTAMP": "arrival_s",
    "NumImages": "items",
    "ContextTokens": "tokens_in",
    "GeneratedTokens": "tokens_out",
}
"""The traces of 2023 and 2024 share these names; ``NumImages`` is in the multimodal one. In 2024 some times have an
offset and some no fraction."""


def read(path: Path) -> Parsed:
    """Read an Azure LLM trace.

    Raises:
        InputError: A column is missing or a value is wrong, with its line.
    """
    header, _ = csv_table.header_of(path)
    table.need(path, header, NEEDED)
    chosen = {name: field for name, field in COLUMNS.items() if name in header}
    return replace(csv_table.parse(path, chosen, "iso"), source="azure-llm", absolute=True, notes=())
