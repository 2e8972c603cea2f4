"""Long work on the loop's thread, done piece by piece, so that nobody else waits for all of it.

Taking ten megabytes of JSON apart holds Python's lock from its beginning to its end, whichever thread does it: another
thread would help nobody. What helps is to let the loop see to everybody else in between. Such work is a generator that
yields where others may have their turn, after a millisecond or so; it gives its result at its end.
"""

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Work = Generator[None, None, T]


class Turns:
    """Does one long work at a time, in the order in which they came: two would take twice as much of every turn."""

    def __init__(self) -> None:
        self._going = asyncio.Lock()

    async def take(self, work: Work[T]) -> T:
        """Do it, a piece in each turn of the loop; who is cancelled here leaves it where it is."""
        async with self._going:
            while True:
                try:
                    next(work)
                except StopIteration as done:
                    result: T = done.value
                    return result
                await asyncio.sleep(0)


def at_once(work: Work[T]) -> T:
    """Do it without letting anybody else have a turn."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
