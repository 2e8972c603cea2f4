"""What is given back is not lost: it is the compiler's code, and the compiler works afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadslice.serve.memory import _untouched

SMAPS = """
7f00-7f10 r-xp 00000000 fd:00 1 /lib/libllvmlite.so
Rss:                  64 kB
Anonymous:             0 kB
7f10-7f20 r--p 00000000 fd:00 1 /lib/libllvmlite.so
Rss:                  64 kB
Anonymous:             8 kB
7f20-7f30 rw-p 00000000 fd:00 1 /lib/libllvmlite.so
Anonymous:             0 kB
7f30-7f40 r-xp 00000000 fd:00 1 /lib/libother.so
Anonymous:             0 kB
"""

CODE = """
from pathlib import Path
from loadslice.policy.kernel import entry
from loadslice.serve.memory import give_back

def mapped_kb():
    return int(Path("/proc/self/smaps_rollup").read_text().partition("Rss:")[2].split()[0])

before = mapped_kb()
give_back()
after = mapped_kb()
import numba
assert numba.njit(lambda x: x + 1)(1) == 2
print(before - after)
"""


def test_only_what_stands_in_the_file_as_it_is_mapped_is_let_go() -> None:
    assert list(_untouched(SMAPS)) == [(0x7F00, 0x7F10)]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="not Linux")
def test_the_compiler_still_compiles_once_its_code_has_been_let_go() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
