"""Names of prompt blocks, and an engine's cache of those whose KV it keeps.

A block's name is a hash of its tokens and of the name before it, so equal names mean equal prompts up to there. The
owner of the token desk computes the same names to know what each engine holds.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from loadslice.backends.language.base import LanguageSession, SharesBlocks

NAME_BYTES = 16


def names(tokens: Sequence[int], block: int, model: bytes) -> list[bytes]:
    """Names of a prompt's full blocks, in order. ``model``: what else KV depends on."""
    numbers = np.asarray(tokens, np.uint32)
    found: list[bytes] = []
    before = model
    for at in range(0, len(numbers) - block + 1, block):
        digest = hashlib.blake2b(before, digest_size=NAME_BYTES)
        digest.update(numbers[at : at + block].tobytes())
        before = digest.digest()
        found.append(before)
    return found


class PrefixCache:
    """Blocks of prompts that are kept when their sequences are gone, the least recently used dropped first.

    Args:
        session: Holds them; one that cannot share blocks keeps none.
        capacity: Blocks at most; 0 keeps none.
    """

    def __init__(self, session: LanguageSession, capacity: int) -> None:
        assert capacity == 0 or isinstance(session, SharesBlocks), "`load.open_session` refuses this"
        self._session = session if isinstance(session, SharesBlocks) else None
        self._capacity = capacity
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        self.added: list[bytes] = []
        self.dropped: list[bytes] = []

    def adopt(self, sequence: int, chain: Sequence[bytes], tokens_max: int) -> int:
        """Begin a sequence with the longest kept prefix of at most so many tokens; returns its tokens."""
        if self._session is None:
            return 0
        blocks: list[int] = []
        for name in chain[: tokens_max // self._session.layout.block]:
            if name not in self._kept:
                break
            blocks.append(self._kept[name])
        if not blocks:
            return 0
        tokens = len(blocks) * self._session.layout.block
        self._session.adopt(sequence, blocks, tokens)
        for name in reversed(chain[: len(blocks)]):
            self._kept.move_to_end(name)
        return tokens

    def keep(self, sequence: int, chain: Sequence[bytes]) -> None:
        """Keep a sequence's prompt blocks; it has computed all of them."""
        if self._session is None or self._capacity == 0:
            return
        blocks = self._session.blocks(sequence)
        # From the last to the first: a prefix is worth nothing without its beginning, which is dropped last.
        for name, block in reversed(list(zip(chain[: self._capacity], blocks, strict=False))):
            if name in self._kept:
                self._kept.move_to_end(name)
                continue
            while len(self._kept) >= self._capacity:
                old, lost = self._kept.popitem(last=False)
                self._session.let_go(lost)
                self.dropped.append(old)
            self._session.hold(block)
            self._kept[name] = block
            self.added.append(name)

    def take_changes(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Names added and dropped since this was last asked; one that was both is in neither."""
        added, dropped = set(self.added), set(self.dropped)
        changes = (
            tuple(name for name in self.added if name in self._kept and name not in dropped),
            tuple(name for name in self.dropped if name not in self._kept and name not in added),
        )
        self.added, self.dropped = [], []
        return changes
