"""Command line and wiring; no logic of its own."""
