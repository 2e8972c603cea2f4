"""How pages are made of templates: one file each that needs nothing else; values are escaped and never missing."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loadslice.evaluate.report import words

FOLDER = Path(__file__).parent


def environment() -> Environment:
    """Templates of this folder, with the filters that more than one page uses."""
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(ms=words.ms, share=words.share, count=words.count, rate=words.rate, sentence=words.sentence)
    made.globals.update(UNKNOWN=words.UNKNOWN, style=_style())
    return made


def _style() -> Markup:
    return Markup((FOLDER / "report.css").read_text(encoding="utf-8"))  # noqa: S704 - our own file
