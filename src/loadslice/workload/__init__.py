"""Trace readers, portrait, waterline, sampling and synthesis."""
