"""Runtimes for language models: one file each, behind the contract in `base`."""
