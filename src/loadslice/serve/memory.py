"""Memory that only loading needed, given back to the system when it is done.

Loading compiled decisions goes through a compiler, which leaves 60 MB of its own code mapped that nothing runs any
more. Elsewhere than on Linux nothing happens.
"""

import contextlib
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

COMPILER = "libllvmlite"
"""The library whose code is let go."""

MADV_DONTNEED = 4

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ \d+ +\S*" + COMPILER)


def give_back() -> None:
    """Have the system forget pages of the compiler's code, which it reads from the file again if they are needed."""
    with contextlib.suppress(OSError):
        for start, end in _untouched(Path("/proc/self/smaps").read_text()):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_DONTNEED)


def _untouched(smaps: str) -> Iterator[tuple[int, int]]:
    """Where the compiler's code is mapped as it stands in its file: what has been changed here would be lost."""
    where = None
    for line in smaps.splitlines():
        mapping = _MAPPING.match(line)
        if mapping is not None:
            where = int(mapping[1], 16), int(mapping[2], 16)
        elif where is not None and line.startswith("Anonymous:"):
            if int(line.split()[1]) == 0:
                yield where
            where = None
