"""How many files may be open; in processes of their own, for a limit that was lowered cannot be raised again."""

import subprocess
import sys

import pytest

CODE = """
import logging, resource, sys
from loadslice.serve.descriptors import fitting
from loadslice.serve.limits import Limits

soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
logging.basicConfig(format="%(message)s")
limits = fitting(Limits(connections_max=1000, connections_reserved=24), 2)
print(*resource.getrlimit(resource.RLIMIT_NOFILE), limits.connections_max)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "then", "says"),
    [
        (256, 4000, "3072 4000 1000", ""),
        (256, 3000, "3000 3000 964", "and 1000 connections on each of 2 ports may need 3072: 964 are taken at once"),
        (256, 1000, "1000 1000 226", "the system allows 1000 open files"),
        (64, 90, "90 90 8", "8 are taken at once"),
        (3500, 4000, "3500 4000 1000", ""),
    ],
)
def test_as_many_files_may_be_open_as_connections_need_or_fewer_are_taken_and_it_is_said(
    soft, hard, then, says
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(soft), str(hard)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == then
    assert says in done.stderr
    assert bool(says) == bool(done.stderr)
