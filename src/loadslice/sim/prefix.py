"""Prefix caches in virtual time: one least-recently-used set of blocks per engine, as arrays that kernels change.

A block is known by a dense number that stands for its content and all before it, so that finding a prefix is walking
its blocks until one is missing.
"""

from typing import NamedTuple

import numpy as np

from loadslice.policy.kernel import by_reference, kernel, rare
from loadslice.policy.layout import Int64s


@by_reference
class Caches(NamedTuple):
    """State of all prefix caches. M different blocks, E engines."""

    older: Int64s
    """[E, M + 1] the next older block in the cache; -1: not cached. M is the list's head"""
    newer: Int64s
    """[E, M + 1] the next newer one"""
    sizes: Int64s
    """[E, 2] blocks cached, and the most that are"""


def fresh_caches(blocks: int, capacities: list[int]) -> Caches:
    """Empty caches for ``blocks`` different blocks, holding ``capacities`` of them."""
    count = len(capacities)
    older = np.full((count, blocks + 1), -1, np.int64)
    newer = np.full((count, blocks + 1), -1, np.int64)
    older[:, blocks] = newer[:, blocks] = blocks
    sizes = np.zeros((count, 2), np.int64)
    sizes[:, 1] = capacities
    return Caches(older, newer, sizes)


@kernel
def unlink(caches: Caches, engine: int, block: int) -> None:
    """Take a block out of the order."""
    older, newer = caches.older[engine, block], caches.newer[engine, block]
    caches.newer[engine, older] = newer
    caches.older[engine, newer] = older


@rare
def found(caches: Caches, engine: int, blocks: Int64s) -> int:
    """How many of a prompt's first blocks are cached."""
    count = 0
    while count < blocks.shape[0] and caches.older[engine, blocks[count]] >= 0:
        count += 1
    return count


@rare
def keep(caches: Caches, engine: int, blocks: Int64s) -> None:
    """Put a prompt's blocks into a cache, as its newest, dropping the oldest for them.

    From the last block to the first: a prefix is worth nothing without its beginning, which is dropped last.
    """
    head = caches.older.shape[1] - 1
    capacity = caches.sizes[engine, 1]
    if capacity == 0:
        return
    for place in range(blocks.shape[0] - 1, -1, -1):
        block = blocks[place]
        if caches.older[engine, block] >= 0:
            unlink(caches, engine, block)
        else:
            if caches.sizes[engine, 0] == capacity:
                oldest = caches.newer[engine, head]
                unlink(caches, engine, oldest)
                caches.older[engine, oldest] = -1
                caches.newer[engine, oldest] = -1
            else:
                caches.sizes[engine, 0] += 1
        newest = caches.older[engine, head]
        caches.older[engine, block] = newest
        caches.newer[engine, block] = head
        caches.newer[engine, newest] = block
        caches.older[engine, head] = block
