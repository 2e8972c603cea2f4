"""Measures how long each stage takes on each engine, and writes the latency table."""
