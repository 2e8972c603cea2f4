"""`loadslice check`: does a journal keep the policy's promises?"""

from pathlib import Path

import click
import msgspec

from loadslice.app.output import emit, json_option


@click.command(epilog="Example: loadslice check out/journal")
@click.argument("journal", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--convert",
    "new",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write a journal of an older schema anew in; that one is checked.",
)
@json_option
def command(journal: Path, new: Path | None, *, as_json: bool) -> int:
    """Check a journal's books and clock, and take every decision again. Exit 3 when a promise is broken."""
    from loadslice.sim.check import check
    from loadslice.sim.convert import convert
    from loadslice.spec import journal as journal_file

    if new is not None:
        convert(journal, new)
        journal = new
    findings = check(journal_file.load(journal), journal)
    emit(
        {"journal": str(journal), "findings": [msgspec.to_builtins(finding) for finding in findings]},
        as_json=as_json,
        text=lambda: (f"{'held  ' if one.held else 'BROKEN'}  {one.promise}: {one.figure}" for one in findings),
    )
    return 0 if all(finding.held for finding in findings) else 3
