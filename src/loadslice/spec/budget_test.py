from pathlib import Path

import pytest

from loadslice.spec import budget
from loadslice.spec.errors import InputError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "budget.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_latency_promise_is_enough(tmp_path: Path) -> None:
    loaded = budget.load(write(tmp_path, "slo: {p95_ms: 300}\n"))
    assert loaded.slo.latency_limits_ms == {"p95": 300.0}
    assert loaded.devices is None
    assert loaded.power.per_box_w is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slo: {}\n", "give p95_ms or p99_ms"),
        ("slo: {p95_ms: -1}\n", "slo.p95_ms: -1"),
        ("slo: {p95_ms: .nan}\n", "slo.p95_ms: nan"),
        ("slo: {p95_ms: 300, p99_ms: 200}\n", "slo.p99_ms: 200.0 is below"),
        ("slo: {p95_ms: 300, error_rate: 2}\n", "slo.error_rate: 2"),
        ("slo: {p95_ms: 300}\npower: {cooling_factor: 0.5}\n", "power.cooling_factor: 0.5"),
        ("slo: {p95_ms: 300}\nscenario: cloud\n", "scenario"),
        ("slo: {p95_ms: 300}\nwatts: 4\n", "watts"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        budget.load(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("power: {tariff_per_kwh: 25}\n", "cents, write 0.25"),
        ("power: {per_box_w: 400, per_rack_w: 6}\n", "kilowatts, write 6000"),
        ("power: {per_box_w: 0.4, per_rack_w: 6000}\n", "kilowatts, write 400"),
        ("power: {per_box_w: 4000, per_rack_w: 400}\n", "above power.per_rack_w"),
        ("money: {hour_cost: 6400}\n", "a month's, write 40"),
        ("money: {currency: Euro}\n", "'Euro' is not a code"),
        ("money: {residual_share: 3}\n", "money.residual_share: 3"),
        ("offline: {requests_per_day: 1000, window_minutes: 2000}\n", "not within one day"),
        ("offline: {requests_per_day: 0}\n", "offline.requests_per_day: 0"),
        ("model: {parameters: 0}\n", "model.parameters"),
    ],
)
def test_slips_of_units_are_refused_with_what_was_likely_meant(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        budget.load(write(tmp_path, f"slo: {{p95_ms: 300}}\n{text}"))


def test_a_milliwatt_board_without_a_rack_is_no_slip(tmp_path: Path) -> None:
    assert budget.load(write(tmp_path, "slo: {p95_ms: 100}\npower: {per_box_w: 1}\n")).power.per_box_w == 1
