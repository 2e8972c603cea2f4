"""A trace that comes in parts, in pieces of the size that is simulated best."""

from collections.abc import Iterable, Iterator

import polars as pl

PIECE_ROWS = 1 << 17
"""Requests simulated at once: what is read and written of twice as many leaves the cache before it is added up."""


def in_pieces(parts: Iterable[pl.DataFrame]) -> Iterator[tuple[pl.DataFrame, int]]:
    """Each piece, and whether another one follows (1) or not (0)."""
    ahead = (piece for part in parts for piece in _pieces(part))
    piece = next(ahead, None)
    while piece is not None:
        following = next(ahead, None)
        yield piece, int(following is not None)
        piece = following


def _pieces(part: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """An empty part is one piece too: whoever reads it refuses it."""
    for start in range(0, max(part.height, 1), PIECE_ROWS):
        yield part.slice(start, PIECE_ROWS)
