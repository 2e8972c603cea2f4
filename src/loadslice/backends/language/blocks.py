"""Which KV block belongs to whom: a free list, and counts of holders for blocks that are shared."""

from collections.abc import Sequence

from loadslice.backends.language.base import NoRoomError


class BlockTable:
    """Blocks of one pool by sequence.

    Args:
        count: Blocks of the pool.
        size: Tokens of one block.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count
        self._of: dict[int, list[int]] = {}
        self._length: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence; 0: it is not known."""
        return self._length.get(sequence, 0)

    def of(self, sequence: int) -> list[int]:
        """Blocks of a sequence, in order."""
        return self._of.get(sequence, [])

    def missing(self, sequence: int, tokens: int) -> int:
        """Blocks that a sequence needs beside its own to hold so many tokens."""
        return max(0, -(-tokens // self.size) - len(self.of(sequence)))

    def extend(self, sequence: int, tokens: int) -> list[int]:
        """Have a sequence hold so many tokens.

        Raises:
            NoRoomError: There are too few blocks; nothing has changed.
        """
        missing = self.missing(sequence, tokens)
        if missing > len(self._free):
            raise NoRoomError(f"{missing} KV blocks are needed and {len(self._free)} are free")
        own = self._of.setdefault(sequence, [])
        for _ in range(missing):
            block = self._free.pop()
            self._holders[block] = 1
            own.append(block)
        self._length[sequence] = tokens
        return own

    def adopt(self, sequence: int, blocks: Sequence[int], tokens: int) -> None:
        """Begin a sequence with blocks that are held already: full ones, which nobody writes again."""
        assert sequence not in self._of, "a sequence begins once"
        assert tokens == len(blocks) * self.size, "only full blocks are shared"
        for block in blocks:
            assert self._holders[block] > 0
            self._holders[block] += 1
        self._of[sequence] = list(blocks)
        self._length[sequence] = tokens

    def hold(self, block: int) -> None:
        """Keep a block that somebody holds."""
        assert self._holders[block] > 0
        self._holders[block] += 1

    def let_go(self, block: int) -> None:
        """Undo one `hold`."""
        self._holders[block] -= 1
        assert self._holders[block] >= 0
        if self._holders[block] == 0:
            self._free.append(block)

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        for block in reversed(self._of.pop(sequence, [])):
            self.let_go(block)
        self._length.pop(sequence, None)
