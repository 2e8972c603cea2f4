"""Sphinx configuration. The build reads nothing from a network and treats warnings as errors (`make docs`)."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import generate

import loadslice

generate.write()

project = "loadslice"
author = "the loadslice authors"
project_copyright = "the loadslice authors, Apache-2.0"
release = version = loadslice.__version__

extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "generated/*", "sim-vs-measured-table.md"]

LINK_TO_INCLUDED = re.compile(r"^As a page of its own: \[(\S+)\]\(\1\)\.\n\n", re.MULTILINE)

html_theme = "furo"
html_title = "loadslice"
html_copy_source = False
html_show_sphinx = False


def _without_links_to_what_is_included(_app: Any, _page: str, source: list[str]) -> None:
    """A forge shows an include as it is written, so a link stands above it; a built page has the text itself."""
    source[0] = LINK_TO_INCLUDED.sub("", source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _without_links_to_what_is_included)
