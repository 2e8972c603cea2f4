"""The one door to each runtime: load, run, describe, free. One file per runtime, imported lazily."""
