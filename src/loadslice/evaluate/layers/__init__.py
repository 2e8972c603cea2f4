"""The layers of an evaluation, each one thing that is asked of a placement over the wire."""
