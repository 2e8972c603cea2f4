"""Sphinx configuration. The build reads nothing from a network and treats warnings as errors (`make docs`)."""

import sys
from pathlib import Path

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

html_theme = "furo"
html_title = "loadslice"
html_copy_source = False
html_show_sphinx = False
