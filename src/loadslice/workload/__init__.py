"""Reads request traces, measures the portrait, samples and synthesises traces."""
