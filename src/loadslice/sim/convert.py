"""Rewrites a journal of an older schema in the present one, step by step."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl

from loadslice.policy import events
from loadslice.spec import journal as spec
from loadslice.spec.errors import InputError
from loadslice.spec.files import encode_json, write_bytes

NO_TENANT, NO_KEY = 0, -1


def convert(old: Path, new: Path) -> None:
    """Write the journal in ``old`` anew, in ``new``; the head comes last, so a folder with a head is whole.

    Args:
        old: A journal of an older schema; unchanged.
        new: A folder that is absent or empty.

    Raises:
        InputError: There is nothing to convert, no way from that schema to this one, or no place to write.
    """
    if new.is_dir() and any(new.iterdir()):
        raise InputError(f"{new}: is not empty. Choose another folder with --convert.")
    head = spec.load_head(old)
    if head.schema == spec.SCHEMA_VERSION:
        raise InputError(f"{old}: is {spec.SCHEMA_VERSION} already. Check it without --convert.")
    journal = spec.load_tables(head, old, _ADDED_SINCE)
    schema, table = head.schema, journal.events
    while schema != spec.SCHEMA_VERSION:
        if schema not in _STEPS:
            raise InputError(f"{old}: there is no way from '{head.schema}' to '{spec.SCHEMA_VERSION}'.")
        schema, step = _STEPS[schema]
        table = step(table)
    for name, frame in (("requests", journal.requests), ("stages", journal.stages), ("events", table)):
        held = io.BytesIO()
        frame.write_parquet(held)
        write_bytes(new / f"{name}.parquet", held.getvalue())
    if (old / "latency.json").is_file():
        shutil.copyfile(old / "latency.json", new / "latency.json")
    write_bytes(new / "journal.json", encode_json(msgspec.structs.replace(head, schema=schema)))


def _with_tenant_and_key(table: pl.DataFrame) -> pl.DataFrame:
    """journal/2 says of an arrival whose it is, and which key it has; nobody's, and none, before."""
    arrival = pl.col("kind") == events.ARRIVAL
    return table.with_columns(
        pl.lit(NO_TENANT, pl.Int64).alias("a9"),
        pl.when(arrival).then(NO_KEY).otherwise(0).cast(pl.Int64).alias("a10"),
    )


_ADDED_SINCE = ("a9", "a10")
"""Columns that journal/1 does not have."""

_STEPS: dict[str, tuple[str, Callable[[pl.DataFrame], pl.DataFrame]]] = {
    "journal/1": ("journal/2", _with_tenant_and_key),
}
