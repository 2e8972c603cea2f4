from pathlib import Path

import msgspec
import pytest

from loadslice.app import plan_times
from loadslice.app.plan_model import single
from loadslice.spec.errors import InputError
from loadslice.spec.offers import Box, Offer, Offers

INSPECTION = Path(__file__).resolve().parents[3] / "examples" / "inspection"


def offers(**changes) -> Offers:
    card = Offer(kind="gpu", box="server", cards=1, device="nvidia-l4", precision="fp16")
    return Offers(
        version=1,
        boxes={"server": Box(cores=16, cards=2)},
        engines={"gpu": msgspec.structs.replace(card, **changes)},
    )


def test_only_offers_on_devices_without_times_are_modelled_each_once() -> None:
    two = offers()
    two = msgspec.structs.replace(
        two, engines=two.engines | {"again": msgspec.structs.replace(two.engines["gpu"], times="gpu")}
    )
    (asked,) = plan_times.on_devices(two, set())
    assert (asked.engine, asked.device.name, asked.precision) == ("gpu", "nvidia-l4", "fp16")
    assert plan_times.on_devices(two, {"gpu"}) == []
    assert plan_times.on_devices(None, set()) == []


def test_an_offered_device_that_nobody_knows_is_refused_when_its_times_are_needed() -> None:
    with pytest.raises(InputError, match="ghost-9"):
        plan_times.on_devices(offers(device="ghost-9"), set())


def test_modelled_times_say_so_and_state_their_error() -> None:
    model = INSPECTION / "head.onnx"
    table = plan_times.modelled_times(
        INSPECTION / "pipeline.yaml", single("head", model), None, plan_times.on_devices(offers(), set()), {}
    )
    assert table is not None
    assert {entry.batch for entry in table.entries} <= {*plan_times.ROWS, 1}
    assert all(entry.basis == "modelled" and entry.error is not None for entry in table.entries)


def test_the_catalogue_fills_what_no_file_states_and_nothing_else() -> None:
    warnings: list[str] = []
    stated = plan_times.catalogued(offers(idle_w=1.0, active_w=2.0), "EUR", warnings).engines["gpu"]
    assert (stated.idle_w, stated.active_w) == (1.0, 2.0)
    assert stated.memory_bytes is not None
    filled = plan_times.catalogued(offers(), "EUR", warnings).engines["gpu"]
    assert filled.idle_w == 28.0
    assert not warnings
    plan_times.catalogued(offers(device="ghost-9"), "EUR", warnings)
    assert "ghost-9" in warnings[0]


def test_a_card_in_a_rented_machine_gets_no_price_of_its_own() -> None:
    device = "huawei-ascend-2x310p-atlas-300i-duo"
    bought = plan_times.catalogued(offers(device=device), "EUR", []).engines["gpu"]
    assert bought.price_purchase == 1370
    rented = msgspec.structs.replace(
        offers(device=device), boxes={"server": Box(cores=16, cards=2, price_per_hour=1.0)}
    )
    assert plan_times.catalogued(rented, "EUR", []).engines["gpu"].price_purchase is None
