import msgspec
import numpy as np
import polars as pl
import pytest

from loadslice.plan.fleet import specimen
from loadslice.plan.fleet.candidate import entries_of, pipeline_of, table_of
from loadslice.plan.fleet.elsewhere import taken_over
from loadslice.plan.fleet.setting import POLICIES, Setting, set_up
from loadslice.plan.shocks import time_error
from loadslice.spec.budget import Power
from loadslice.spec.files import Stamp
from loadslice.spec.latency import LatencyTable
from loadslice.spec.offers import Box, Offer, Offers


def measured(cpus: int | None = None) -> LatencyTable:
    table = specimen.latency()
    entries = [msgspec.structs.replace(entry, basis="measured") for entry in table.entries]
    made = None if cpus is None else Stamp(schema="latency/1", loadslice="0", machine={"cpus": cpus})
    return msgspec.structs.replace(table, entries=entries, stamp=made)


def offered(**engines: Offer) -> Offers:
    boxes = {
        "server": specimen.OFFERS.boxes["server"],
        "rented": Box(cores=32, cards=4, price_per_hour=1.0),
        "like-it": Box(cores=32, cards=4, price_per_hour=1.0, profiled=True),
    }
    return Offers(version=1, boxes=boxes, engines=engines)


def cpu(box: str, times: str | None = None) -> Offer:
    return Offer(kind="cpu", box=box, cores=8, times=times, price_purchase=0.0)


def card(box: str, times: str | None = None, device: str | None = None) -> Offer:
    return Offer(kind="gpu", box=box, cards=1, times=times, device=device, price_purchase=0.0)


@pytest.mark.parametrize(
    ("engines", "cpus", "elsewhere"),
    [
        ({"cpu": cpu("server")}, 32, []),
        ({"cpu": cpu("server")}, 2, ["cpu"]),
        ({"cpu": cpu("rented")}, 32, ["cpu"]),
        ({"cpu": cpu("like-it")}, 2, []),
        ({"cpu": cpu("server"), "more": cpu("server", "cpu")}, 32, []),
        ({"cpu": cpu("server"), "host": cpu("rented", "cpu")}, 32, ["host"]),
        ({"host": cpu("server", "cpu")}, 32, ["host"]),
        ({"host": cpu("like-it", "cpu")}, 32, []),
        ({"gpu": card("server")}, 2, []),
        ({"gpu": card("server", device="nvidia-l4"), "g": card("rented", "gpu", "nvidia-l4")}, 32, []),
        ({"gpu": card("server", device="nvidia-l4"), "g": card("rented", "gpu", "nvidia-t4")}, 32, ["g"]),
    ],
)
def test_times_are_measured_on_machines_like_the_profiled_one_alone(
    engines: dict[str, Offer], cpus: int, elsewhere: list[str]
) -> None:
    assert sorted(taken_over(offered(**engines), measured(cpus), specimen.pipeline())) == elsewhere


def test_what_a_model_says_is_a_model_s_wherever_it_stands() -> None:
    assert not taken_over(offered(cpu=cpu("rented")), specimen.latency(), specimen.pipeline())


def setting() -> Setting:
    trace = pl.DataFrame({"arrival_s": np.arange(50) / 10})
    engines = {"cpu": cpu("server"), "host": cpu("rented", "cpu")}
    return set_up(trace, specimen.pipeline(), measured(), offered(**engines), specimen.BUDGET)


def test_a_stage_that_the_pipeline_does_not_have_and_a_tariff_that_nobody_states_are_named() -> None:
    trace = pl.DataFrame({"arrival_s": np.arange(50) / 10})
    engines = {"cpu": cpu("server"), "gpu": msgspec.structs.replace(card("server"), stages=["classification"])}
    made = set_up(trace, specimen.pipeline(), measured(), offered(**engines), specimen.BUDGET)
    assert not any("without power" in warning for warning in made.warnings)
    unstated = msgspec.structs.replace(specimen.BUDGET, power=Power())
    dark = set_up(trace, specimen.pipeline(), measured(), offered(**engines), unstated)
    assert any("without power" in warning for warning in dark.warnings)
    assert "'gpu': stages: 'classification' is no stage of the pipeline (classify)." in made.warnings


def test_a_time_that_is_taken_over_is_modelled_with_an_error_in_every_table_of_a_fleet() -> None:
    made = setting()
    design, stage = made.design, specimen.pipeline().stages[0]
    here, there = entries_of(design, stage, "cpu"), entries_of(design, stage, "host")
    assert [entry.basis for entry in (*here, *there)] == ["measured", "modelled"]
    assert there[0].latency_ms == here[0].latency_ms
    low, high = time_error("host", there).bounds_95
    assert (low, high) == (pytest.approx(1 / 1.25, rel=0.01), pytest.approx(1.25, rel=0.01))
    counts, boxes = np.array([1, 2]), np.array([1, 1, 0])
    pipeline = pipeline_of(design, counts, POLICIES[0])
    assert pipeline is not None
    table = table_of(design, counts, boxes, pipeline)
    assert {entry.engine: entry.basis for entry in table.entries} == {
        "cpu": "measured",
        "host-1": "modelled",
        "host-2": "modelled",
    }
    assert any("nobody measured host on 'rented'" in warning for warning in made.warnings)
