"""What checking a journal comes to."""

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One promise and whether the journal keeps it."""

    promise: str
    held: bool
    figure: str
