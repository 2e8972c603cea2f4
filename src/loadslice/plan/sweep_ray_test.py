"""The same sweep on a cluster of one machine (left out where Ray is absent or slow to start), and no cluster at all."""

import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from loadslice.plan.sweep_ray import connect
from loadslice.spec.errors import InputError, MissingExtraError

START_S_MAX = 150
CASE = """
import itertools, sys
from pathlib import Path
import numpy as np, polars as pl
from loadslice.plan.fleet import specimen
from loadslice.plan.sweep import Ledger, local, sweep
from loadslice.plan.sweep_ray import cluster

draws = np.random.default_rng(3)
problem, judge = specimen.judged(pl.DataFrame({"arrival_s": np.cumsum(draws.exponential(1 / 350, 1500))}))
fleets = [np.array(counts, np.int64) for counts in itertools.product(range(3), repeat=3)]
path = Path(sys.argv[1])
there = sweep(problem, fleets, cluster(judge, "local", Ledger(path, "a"), 1))
here = sweep(problem, fleets, local(judge, 1))
assert there.cheapest == here.cheapest is not None
one, other = there.verdicts[here.cheapest], here.verdicts[here.cheapest]
assert one.latency_ms == other.latency_ms and one.energy_j == other.energy_j
assert len(path.read_bytes().splitlines()) == len(there.verdicts)
again = Ledger(path, "a")
sweep(problem, fleets, cluster(judge, "local", again, 1))
assert again.found == len(there.verdicts)
print("alike")
"""


def test_an_address_where_nobody_listens_is_one_line_at_once_and_so_is_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(InputError, match=f"--ray 127.0.0.1:{port}: no cluster answers there"):
            connect(f"127.0.0.1:{port}")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError):
        connect("local")


@pytest.mark.live
def test_a_cluster_finds_what_this_machine_finds_and_takes_up_where_it_was_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    command = [sys.executable, "-c", CASE, str(tmp_path / "simulated.jsonl")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"a local Ray cluster did not answer within {START_S_MAX} s")
    assert done.stdout == "alike\n", done.stderr[-2000:]
