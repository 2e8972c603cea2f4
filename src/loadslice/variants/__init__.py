"""Builds a model for a backend and proves it still answers right."""
