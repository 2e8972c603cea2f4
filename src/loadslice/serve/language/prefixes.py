"""What the owner of the token desk believes each engine's prefix cache holds."""

from collections.abc import Iterable, Sequence

import numpy as np

from loadslice.policy.layout import Int64s


class KnownPrefixes:
    """Names of blocks (`backends.language.prefix.names`) by engine, as engines tell them.

    A belief: an engine that has lost a block since computes it again.

    Args:
        engines: How many.
        block: Tokens of one.
    """

    def __init__(self, engines: int, block: int) -> None:
        self.of = [set[bytes]() for _ in range(engines)]
        self._block = block
        self._hits = np.zeros(engines, np.int64)

    def hits(self, names: Sequence[bytes], prompt: int) -> Int64s:
        """Tokens of a prompt that each engine holds, [engines], below ``prompt``; valid until the next call."""
        for engine, known in enumerate(self.of):
            count = 0
            while count < len(names) and names[count] in known:
                count += 1
            self._hits[engine] = min(count * self._block, (prompt - 1) // self._block * self._block)
        return self._hits

    def changed(self, engine: int, added: Iterable[bytes], dropped: Iterable[bytes]) -> None:
        """An engine says what its cache has gained and lost."""
        self.of[engine].difference_update(dropped)
        self.of[engine].update(added)

    def engine_down(self, engine: int) -> None:
        """An engine is lost with all it held."""
        self.of[engine].clear()
