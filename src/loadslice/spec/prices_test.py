from pathlib import Path

import pytest

from loadslice.spec import prices
from loadslice.spec.errors import InputError
from loadslice.spec.offers import Box, Offer, Offers

SERVER = "{purchase: 9000, idle_w: 120, rack_units: 2}"
OFFERS = Offers(
    version=1,
    boxes={"server": Box(cores=32, cards=2, price_purchase=5000.0, idle_w=90.0)},
    engines={"gpu": Offer(kind="gpu", box="server", device="nvidia-l4", cards=1, idle_w=16.0, active_w=72.0)},
)


def load(tmp_path: Path, parts: str, head: str = "currency: EUR") -> prices.Prices:
    path = tmp_path / "prices.yaml"
    path.write_text(f"{head}\nparts:\n{parts}", encoding="utf-8")
    return prices.load(path)


def test_an_unstated_amount_is_unknown_and_not_zero(tmp_path: Path) -> None:
    loaded = load(tmp_path, "  board: {}\n")
    assert loaded.parts["board"].purchase is None
    assert loaded.parts["board"].idle_w is None
    assert prices.hours_of(loaded, "board", None, "npu") == prices.Hours()


def test_hours_are_found_by_name_then_device_then_kind(tmp_path: Path) -> None:
    head = "currency: EUR\nhours: {gpu: {migration: 40}, nvidia-l4: {migration: 30}, gpu1: {migration: 20}}"
    loaded = load(tmp_path, "  server: {}\n", head)
    assert prices.hours_of(loaded, "gpu1", "nvidia-l4", "gpu").migration == 20
    assert prices.hours_of(loaded, "gpu0", "nvidia-l4", "gpu").migration == 30
    assert prices.hours_of(loaded, "gpu0", "nvidia-t4", "gpu").migration == 40


def test_another_currency_is_brought_in_by_the_stated_rate(tmp_path: Path) -> None:
    text = "  a: {purchase: 1000, currency: USD}\n  b: {rent_per_hour: 2, currency: USD}\n"
    parts = load(tmp_path, text, "currency: EUR\nexchange: {USD: 0.9}").parts
    assert parts["a"].purchase == pytest.approx(900)
    assert parts["b"].rent_per_hour == pytest.approx(1.8)
    assert {part.currency for part in parts.values()} == {"EUR"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("  a: {purchase: 9000, currency: USD}\n", "the file in EUR, this part in USD"),
        ("  a: {purchase: 0.5}\n", "parts.a.purchase: 0.5 EUR is not plausible.*thousands, write 500"),
        ("  a: {rent_per_hour: 700}\n", "a price per month, write 0.9582"),
        ("  a: {idle_w: 0.12, rack_units: 2}\n", "kilowatts, write 120"),
        ("  a: {idle_w: 300, active_w: 200}\n", "idle_w 300 is above active_w 200"),
        ("  a: {purchase: -1}\n", "not an amount"),
        ("  a: {purchase: .nan}\n", "not an amount"),
        ("  a: {purchase: 9000, rent_per_hour: 1}\n", "give one"),
        ("  a: {rent_per_hour: 1, owned: 2}\n", "not owned"),
        ("  a: {rent_per_hour: 0}\n", "nothing is rented for 0"),
        ("  a: {idle_w: 1, active_w: 2, power_curve: [[0, 1], [1, 2]]}\n", "twice"),
        ("  a: {power_curve: [[0, 1], [0.5, 2]]}\n", "rise from 0 to 1"),
        ("  a: {power_curve: [[0, 9], [1, 2]]}\n", "must not fall"),
        ("  a: {price: 3}\n", "price"),
        ("  a: {active_w: 90000}\n", "parts.a.active_w: 90000"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_key(tmp_path: Path, parts: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, parts)


def test_an_unlisted_currency_is_not_questioned_and_a_wrong_code_is(tmp_path: Path) -> None:
    assert load(tmp_path, "  a: {purchase: 0.5}\n", "currency: XAU").parts["a"].purchase == 0.5
    with pytest.raises(InputError, match="1e\\+30 is not an amount"):
        load(tmp_path, "  a: {purchase: 1.0e+30}\n", "currency: XAU")
    with pytest.raises(InputError, match="'euro' is not a code"):
        load(tmp_path, f"  a: {SERVER}\n", "currency: euro")


def test_yen_are_judged_on_their_own_scale(tmp_path: Path) -> None:
    assert load(tmp_path, "  a: {rent_per_hour: 700}\n", "currency: JPY").parts["a"].rent_per_hour == 700


def test_prices_replace_those_of_the_offers_and_leave_what_they_do_not_state(tmp_path: Path) -> None:
    text = "  server: {purchase: 6000}\n  nvidia-l4: {rent_per_hour: 0.7, power_curve: [[0, 20], [1, 60]]}\n"
    priced = prices.apply(load(tmp_path, text), OFFERS, "EUR", "prices.yaml")
    assert priced.boxes["server"].price_purchase == 6000
    assert priced.boxes["server"].idle_w == 90
    assert (priced.engines["gpu"].price_purchase, priced.engines["gpu"].price_per_hour) == (None, 0.7)
    assert (priced.engines["gpu"].idle_w, priced.engines["gpu"].active_w) == (20, 60)


def test_prices_and_budget_must_share_a_currency_and_parts_must_be_offered(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"  server: {SERVER}\n")
    with pytest.raises(InputError, match="the budget in USD, the prices in EUR"):
        prices.apply(loaded, OFFERS, "USD", "prices.yaml")
    with pytest.raises(InputError, match=r"parts\.sever: not offered\. Offered are gpu, nvidia-l4, server"):
        prices.apply(load(tmp_path, f"  sever: {SERVER}\n"), OFFERS, "EUR", "prices.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parts:\n  gpu: {idle_w: 80}", r"parts\.gpu: with what the offers say, idle_w 80 is above active_w 72"),
        ("parts:\n  vm: {owned: 1}", r"parts\.vm\.owned: 1 of a part that is rented for 0\.5 an hour"),
        ("hours: {gpus: {migration: 40}}", r"hours\.gpus: neither .* Write one of cpu, gpu, npu, nvidia-l4"),
        ("hours: {server: {migration: 40}}", r"hours\.server: neither"),
    ],
)
def test_what_only_contradicts_the_offers_is_refused_where_both_are_known(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(f"currency: EUR\n{text}\n", encoding="utf-8")
    boxes = dict(OFFERS.boxes) | {"vm": Box(cores=2, price_per_hour=0.5)}
    offers = Offers(version=1, boxes=boxes, engines=OFFERS.engines)
    with pytest.raises(InputError, match=message):
        prices.apply(prices.load(path), offers, "EUR", "prices.yaml")


def test_what_is_there_of_a_device_that_several_engines_are_is_asked_for_by_engine(tmp_path: Path) -> None:
    both = {"fp16": OFFERS.engines["gpu"], "int8": OFFERS.engines["gpu"]}
    twice = Offers(version=1, boxes=OFFERS.boxes, engines=both)
    with pytest.raises(InputError, match=r"nvidia-l4\.owned: fp16, int8 are all of that device"):
        prices.apply(load(tmp_path, "  nvidia-l4: {owned: 2}\n"), twice, "EUR", "prices.yaml")


def test_a_box_that_stands_in_no_rack_takes_no_space(tmp_path: Path) -> None:
    priced = prices.apply(load(tmp_path, "  server: {rack_units: 0}\n"), OFFERS, "EUR", "prices.yaml")
    assert priced.boxes["server"].rack_units == 0
