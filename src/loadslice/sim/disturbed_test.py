"""Times that were taken on a busy machine say so wherever they are used."""

import msgspec
import polars as pl
import pytest

from loadslice.sim import simulate
from loadslice.sim.faults_test import TIMES, plan
from loadslice.spec.files import Stamp
from loadslice.spec.latency import OTHERS, LatencyTable


def table(percent: int, basis: str = "measured") -> LatencyTable:
    made = Stamp(schema="latency/1", loadslice="1", machine={OTHERS: percent})
    entries = [msgspec.structs.replace(entry, basis=basis) for entry in TIMES.entries]
    return msgspec.structs.replace(TIMES, entries=entries, stamp=made)


@pytest.mark.parametrize(
    ("latency", "is_told"), [(table(74), True), (table(9), False), (table(74, "modelled"), False), (TIMES, False)]
)
def test_a_simulation_on_disturbed_times_says_so(latency: LatencyTable, *, is_told: bool) -> None:
    trace = pl.DataFrame({"arrival_s": [0.0, 1.0]})
    told = [line for line in simulate.prepare(trace, plan(), latency).warnings if "other processes took 74 %" in line]
    assert bool(told) is is_told
