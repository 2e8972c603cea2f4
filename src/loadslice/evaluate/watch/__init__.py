"""Watching a live server: drift of its answers and of its operation against a baseline."""
