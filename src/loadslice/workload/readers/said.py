"""What whoever has a table says about it: names, units, clocks and words that the file itself does not explain."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import CLASSES
from loadslice.workload.readers.times import Clock, TimeUnit


@dataclass(frozen=True)
class Said:
    """How to read a table with anybody's names."""

    mapping: Mapping[str, str] = field(default_factory=dict)
    """Column of the table -> column of a trace; columns that already have a trace's name need none."""
    units: Mapping[str, TimeUnit] = field(default_factory=dict)
    """Column of the table -> its unit, of those whose field is a duration."""
    time_unit: TimeUnit | None = None
    """How arrival times are written; ``None``: decided from the first."""
    clock: Clock = field(default_factory=Clock)
    """Which clock wrote them, where they are dates."""
    ended: bool = False
    """Times are when requests ended; arrival is that less ``latency_ms``."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """Word in the column of classes -> class of a trace."""
    only: tuple[str, str] | None = None
    """Column and regular expression: rows that do not hold it are left out."""
    skip_bad: int = 0
    """JSON lines that are none and are left out before one is refused."""


def classes_of(pairs: tuple[str, ...]) -> dict[str, str]:
    """Parse ``WORD=CLASS`` pairs.

    Raises:
        InputError: Not a pair, no class of a trace, or a word twice.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        word, _, name = pair.rpartition("=")
        if not word or name not in CLASSES:
            raise InputError(f"--class {pair}: expected WORD=CLASS with a class of {', '.join(CLASSES)}.")
        if word in found:
            raise InputError(f"--class {pair}: '{word}' is given twice.")
        found[word] = name
    return found
