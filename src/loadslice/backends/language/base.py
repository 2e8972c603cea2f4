"""What a runtime must offer so that the token desk's decisions can be carried out on it.

A session holds one loaded model and the KV of many sequences. It computes the steps it is told, and moves KV in and
out; it decides nothing. Sequences are known by a number that the caller chooses. Not thread-safe.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Float32s = NDArray[np.float32]


class KvLayout(NamedTuple):
    """What a session's KV means."""

    layers: int
    kv_heads: int
    head_dim: int
    block: int
    """Tokens of one block."""
    raw: str
    """Names runtime, precision and block shapes: between equal ones blocks are copied as they are."""
    raw_bytes_per_block: int
    has_neutral: bool
    """Whether KV can be read and written in the neutral layout, float32 [layers, 2, kv_heads, tokens, head_dim]."""
    sequences: int | None = None
    """How many there can be at once; ``None``: as many as blocks allow."""
    decodes: bool = True
    """Whether sequences can be continued and taken over; else prompts are computed, and handed over."""
    kv_bytes: int = 0
    """Memory that all of its KV has when it is full; pages are taken as they are first written."""


class StepRow(NamedTuple):
    """One sequence's part of a step."""

    sequence: int
    tokens: Sequence[int]
    """Fed after what the sequence has."""
    samples: bool
    """Whether the logits after the last of them are wanted."""


class NoRoomError(Exception):
    """There are fewer free blocks than a call needs; nothing has changed."""


class LanguageSession(Protocol):
    """One loaded language model."""

    layout: KvLayout
    vocabulary: int

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""

    def step(self, rows: Sequence[StepRow]) -> Float32s:
        """Compute a step.

        Returns:
            Logits, [rows that sample, vocabulary], valid until the next call.

        Raises:
            NoRoomError: There are too few blocks.
        """

    def length(self, sequence: int) -> int:
        """Tokens whose KV a sequence has here; 0: it is not known."""

    def export_raw(self, sequence: int, into: NDArray[np.uint8]) -> int:
        """Copy a sequence's blocks into ``into``; returns bytes written."""

    def import_raw(self, sequence: int, tokens: int, source: NDArray[np.uint8]) -> None:
        """Begin a sequence with blocks written by a session of the same raw layout.

        Raises:
            NoRoomError: There are too few blocks.
        """

    def export_neutral(self, sequence: int, into: Float32s) -> None:
        """Copy a sequence's KV into ``into``, [layers, 2, kv_heads, tokens, head_dim]."""

    def import_neutral(self, sequence: int, source: Float32s) -> None:
        """Begin a sequence with KV in that layout.

        Raises:
            NoRoomError: There are too few blocks.
        """

    def release(self, sequence: int) -> None:
        """Forget a sequence; its blocks are free unless others hold them."""

    def close(self) -> None:
        """Free everything."""


@runtime_checkable
class SharesBlocks(Protocol):
    """A session whose sequences may share blocks: what a prefix cache needs."""

    layout: KvLayout

    def adopt(self, sequence: int, blocks: Sequence[int], tokens: int) -> None:
        """Begin a sequence with full blocks that others, or a cache, hold already: they are shared."""

    def blocks(self, sequence: int) -> list[int]:
        """Blocks of a sequence, in order."""

    def hold(self, block: int) -> None:
        """Keep a block when its sequences are released."""

    def let_go(self, block: int) -> None:
        """Undo one `hold`."""
