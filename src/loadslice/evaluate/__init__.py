"""Drives load over the wire, measures, compares with the simulator, writes the report."""
