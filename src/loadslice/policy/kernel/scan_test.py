"""The look at every engine finds what NumPy finds, whatever the number of engines and however many are alike."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from loadslice.policy.kernel import by_reference, entry, first_least


@by_reference
class Rows(NamedTuple):
    ends_ns: NDArray[np.int64]
    backlog_ns: NDArray[np.int64]
    quick_ns: NDArray[np.int64]


@entry(inlined=False)
def look(now_ns: int, rows: Rows) -> int:
    return first_least(now_ns, rows.ends_ns, rows.backlog_ns, rows.quick_ns)


@pytest.mark.parametrize("spread", [2, 5, 1 << 59])
@pytest.mark.parametrize("engines", [*range(1, 18), 31, 64, 65])
def test_the_first_of_the_least_is_found(engines: int, spread: int) -> None:
    draws = np.random.default_rng(engines)
    for _ in range(40):
        rows = Rows(*(draws.integers(0, spread, engines) for _ in range(3)))
        now_ns = int(draws.integers(0, spread))
        expected_ns = [max(ends, now_ns) + backlog + quick for ends, backlog, quick in zip(*rows, strict=True)]
        assert look(now_ns, rows) == expected_ns.index(min(expected_ns))
