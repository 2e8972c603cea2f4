from pathlib import Path

import msgspec
import pytest

from loadslice.spec.device import (
    Basis,
    Device,
    Figure,
    PowerCurve,
    Price,
    load_device,
    power_curve,
    purchase_price,
    rent_per_hour,
)
from loadslice.spec.errors import InputError

GOOD = """
name: my-npu
title: My NPU
kind: npu
peak_ops_per_s:
  int8: {value: 6.0e+12, basis: stated, dense: true, source: the vendor's page}
tdp_w: {value: 8.0, basis: stated, source: the vendor's page}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "my.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_device_of_ones_own_is_read(tmp_path: Path) -> None:
    device = load_device(written(tmp_path, GOOD))
    assert device.peak_ops_per_s["int8"].value == 6e12
    assert device.memory_bytes is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dense: true", "dense: false", "2:4 sparsity"),
        ("dense: true, ", "", "dense"),
        ("6.0e+12", "6.0", "not plausible"),
        ("6.0e+12", "6.0e12", "write 6.0e+12"),
        ("6.0e+12", ".nan", "not plausible"),
        ("int8:", "tops:", "tops"),
        ("source: the vendor's page}\ntdp", "source: ''}\ntdp", "needs a source"),
        ("kind: npu", "kind: toaster", "kind"),
        ("tdp_w", "tdp_watts", "tdp_watts"),
        ("name: my-npu", "name: My NPU", "lower case"),
        ("value: 8.0", "value: 8000000.0", "not plausible"),
        (
            "6.0e+12, basis: stated, dense: true, source: the vendor's page}\ntdp_w: {value: 8.0",
            "485.0e+12, basis: stated, dense: true, source: the vendor's page}\ntdp_w: {value: 0.072",
            "If that is kilowatts, write 72",
        ),
        ("tdp_w:", "idle_w: {value: 9.0, basis: measured, source: a meter}\ntdp_w:", "is not below tdp_w"),
    ],
)
def test_a_figure_that_cannot_be_right_is_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as error:
        load_device(written(tmp_path, GOOD.replace(old, new)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ("active_w: {value: 80.0, basis: measured, source: a meter}", "of a whole server"),
        (
            "idle_w: {value: 3.0, basis: measured, source: m}\nactive_w: {value: 2.0, basis: measured, source: m}",
            "above active_w",
        ),
        ("host_link_bytes_per_s: {value: 16.0, basis: stated, source: GB for bytes}", "not plausible"),
        ("launch_s: {value: 5.0, basis: stated, source: microseconds for seconds}", "not plausible"),
        ("power: {points: [[0, 2], [0.5, 4]], basis: measured, source: m}", "rise from 0 to 1"),
        ("power: {points: [[0, 2], [0.5, 8], [1, 4]], basis: measured, source: m}", "not fall with load"),
        ("power: {points: [[0, 2], [1, 4]], basis: measured, source: ' '}", "needs a source"),
        (
            "purchase_price: [{value: 100, currency: dollars, date: '2026', basis: stated, source: s}]",
            "three capital letters",
        ),
        ("purchase_price: [{value: 100, currency: USD, date: June, basis: stated, source: s}]", "YYYY-MM"),
        ("rent_per_hour: [{value: 5000, currency: USD, date: '2026', basis: stated, source: s}]", "at most 1000"),
        ("rent_per_hour: [{value: 0, currency: USD, date: '2026', basis: stated, source: s}]", "above 0"),
    ],
)
def test_power_links_and_prices_that_cannot_be_right_are_refused(tmp_path: Path, added: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        load_device(written(tmp_path, f"{GOOD}{added}\n"))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"fp16": 1e12}, "without tensor units"),
        ({"fp16": 3e12, "bf16": 9e12}, "differ more than twice"),
        ({"fp16": 6e12, "fp8": 30e12}, "2:4 sparsity"),
    ],
)
def test_peaks_that_cannot_be_of_one_part_are_refused(tmp_path: Path, added: dict[str, float], words: str) -> None:
    lines = [f"  {key}: {{value: {value:.1e}, basis: stated, dense: true, source: s}}" for key, value in added.items()]
    text = GOOD.replace("  int8:", "\n".join([*lines, "  int8:"]))
    with pytest.raises(InputError, match=words):
        load_device(written(tmp_path, text))


def figure(value: float, basis: Basis = "measured") -> Figure:
    return Figure(value=value, basis=basis, source="a meter")


def test_a_power_curve_is_the_stated_one_or_a_line_from_idle_to_active_and_never_the_tdp_alone() -> None:
    bare = Device(name="d", title="D", kind="gpu", tdp_w=figure(70.0, "stated"))
    assert power_curve(bare) is None
    to_tdp = power_curve(msgspec.structs.replace(bare, idle_w=figure(10.0)))
    assert to_tdp is not None
    assert (to_tdp.basis, to_tdp.at(0.5)) == ("derived", 40.0)
    assert to_tdp.note is not None
    assert "upper bound" in to_tdp.note
    measured = power_curve(msgspec.structs.replace(bare, idle_w=figure(10.0), active_w=figure(50.0)))
    assert measured is not None
    assert (measured.basis, measured.active_w, measured.idle_w) == ("measured", 50.0, 10.0)
    own = PowerCurve(points=[(0.0, 5.0), (0.5, 45.0), (1.0, 50.0)], source="a meter", basis="measured")
    given = power_curve(msgspec.structs.replace(bare, power=own))
    assert given is not None
    assert [given.at(load) for load in (0.0, 0.25, 0.5, 0.75, 1.0)] == [5.0, 25.0, 45.0, 47.5, 50.0]


def test_the_latest_price_of_the_asked_currency_counts() -> None:
    def price(value: float, currency: str, date: str) -> Price:
        return Price(value=value, currency=currency, date=date, source="a shop", basis="stated")

    device = Device(
        name="d",
        title="D",
        kind="gpu",
        purchase_price=[price(900, "EUR", "2026-05"), price(800, "USD", "2024-02-07"), price(700, "USD", "2025-01")],
    )
    assert [getattr(purchase_price(device, code), "value", None) for code in ("USD", "EUR", "CHF", None)] == [
        700,
        900,
        None,
        900,
    ]
    assert rent_per_hour(device) is None
