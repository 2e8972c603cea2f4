"""`loadslice check`: does a journal keep the policy's promises?"""

from pathlib import Path

import click
import msgspec

from loadslice.app.ending import NEGATIVE
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
    from loadslice.sim.language_check import check_language_journal
    from loadslice.spec import journal as journal_file
    from loadslice.spec.errors import InputError
    from loadslice.spec.language_journal import is_language_journal, load_language_journal

    is_language = is_language_journal(journal)
    if is_language and new is not None:
        raise InputError(f"--convert {new}: journals of language models have one schema so far.")
    if new is not None:
        convert(journal, new)
        journal = new
    if is_language:
        findings = check_language_journal(load_language_journal(journal))
    else:
        findings = check(journal_file.load(journal), journal)
    emit(
        {"journal": str(journal), "findings": [msgspec.to_builtins(finding) for finding in findings]},
        as_json=as_json,
        text=lambda: (f"{'held  ' if one.held else 'BROKEN'}  {one.promise}: {one.figure}" for one in findings),
    )
    return 0 if all(finding.held for finding in findings) else NEGATIVE
