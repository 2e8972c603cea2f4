"""The decisions. No clock, no I/O, no draws: time and drawn numbers are arguments."""
