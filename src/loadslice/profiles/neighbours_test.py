import subprocess
import sys

import pytest

from loadslice.profiles.neighbours import Neighbours, others_share

SPIN = "import time; end = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass"


def test_work_of_other_processes_is_seen() -> None:
    with Neighbours() as neighbours:
        subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert 0 < neighbours.share <= 1


@pytest.mark.parametrize(
    ("busy_s", "own_s", "share"),
    [(10, 10, 0), (15, 10, 0.25), (20, 0, 1), (9.99, 10, 0), (30, 0, 1)],
)
def test_our_own_work_is_not_the_neighbours(busy_s: float, own_s: float, share: float) -> None:
    assert others_share(10, busy_s, own_s, 2) == share


def test_only_a_noticeable_share_is_warned_of() -> None:
    neighbours = Neighbours()
    neighbours.share = 0.09
    assert neighbours.warning is None
    neighbours.share = 0.25
    assert "25 % of this machine" in neighbours.warning
