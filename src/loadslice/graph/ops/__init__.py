"""Operator tables: one YAML file per target beside this one, and the user's own.

A fact is here only with its source and the version it holds for; what no source covers is unknown.
"""

from importlib import resources
from pathlib import Path

from loadslice.graph.rewrites.patterns import PATTERNS
from loadslice.spec.coverage import OperatorTable, load_table
from loadslice.spec.errors import InputError


def tables() -> dict[str, OperatorTable]:
    """Every shipped table by its target."""
    found = {}
    with resources.as_file(resources.files(__name__)) as folder:
        for path in sorted(folder.glob("*.yaml")):
            table = read(path)
            found[table.target] = table
    return found


def read(path: Path) -> OperatorTable:
    """A table of the user's own, or one of ours.

    Raises:
        InputError: Not a table, or it names a pattern nobody knows.
    """
    table = load_table(path)
    for place, facts in enumerate(table.facts):
        for name in facts.fused:
            if name not in PATTERNS:
                raise InputError(f"{path}: facts[{place}].fused: no pattern '{name}'; there are {', '.join(PATTERNS)}.")
    return table


def of_device(name: str) -> OperatorTable | None:
    """The table of a target, or of a device of the catalogue; ``None``: nothing is known of its operators."""
    found = tables()
    return found.get(name) or next((table for table in found.values() if name in table.devices), None)
