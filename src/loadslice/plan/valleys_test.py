import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.plan import valleys
from loadslice.plan.money.specimen import engine, fleet
from loadslice.spec.budget import Offline
from loadslice.spec.plan import HourLoad, Load

DAY = [1.0] * 8 + [4.0] * 8 + [1.0] * 8


def load(rates: list[float] = DAY) -> Load:
    buckets = [HourLoad(hour=hour, seconds=3600.0, requests=round(rate * 3600)) for hour, rate in enumerate(rates)]
    total = sum(bucket.requests for bucket in buckets)
    span_s = 3600.0 * len(rates)
    return Load(requests=total, span_s=span_s, rate_per_s=total / span_s, peak_rate_per_s=max(rates), buckets=buckets)


FLEET = fleet("gpu-only", {"gpu": engine("gpu", 2, utilisation=0.2)})


def test_an_hour_is_as_busy_as_its_demand_and_leaves_the_rest_up_to_the_cap() -> None:
    found = valleys.valleys(FLEET, load())
    assert [hour.demand_per_s for hour in found] == DAY
    assert found[0].utilisation == pytest.approx(0.1)
    assert found[10].utilisation == pytest.approx(0.4)
    assert found[0].spare_per_s == pytest.approx(8.0 - 1.0)
    assert found[10].spare_per_s == pytest.approx(8.0 - 4.0)


def test_a_days_valleys_hold_what_is_left_of_every_hour() -> None:
    filled = valleys.filling(FLEET, load())
    assert filled.requests_per_day == pytest.approx((16 * 7.0 + 8 * 4.0) * 3600)
    assert filled.engine_s_per_day["gpu"] == pytest.approx(2 * 3600 * (16 * 0.7 + 8 * 0.4))
    assert valleys.by_kind(filled)["gpu"] == pytest.approx(2 * (16 * 0.7 + 8 * 0.4))
    assert filled.fits is None


def test_offline_work_fits_only_if_its_window_holds_it() -> None:
    night = valleys.filling(FLEET, load(), Offline(requests_per_day=200_000.0, window_minutes=480.0))
    assert (night.fits, night.window_requests) == (True, pytest.approx(8 * 7.0 * 3600))
    short = valleys.filling(FLEET, load(), Offline(requests_per_day=200_000.0, window_minutes=60.0))
    assert (short.fits, short.window_requests) == (False, pytest.approx(7.0 * 3600))
    assert "200,000 are to be done" in short.evidence


def test_a_night_that_the_beginning_of_the_trace_cuts_in_two_is_one_window() -> None:
    cut = [1.0] * 4 + [7.0] * 16 + [1.0] * 4
    night = valleys.filling(FLEET, load(cut), Offline(requests_per_day=1.0, window_minutes=480.0))
    rate = load(cut).rate_per_s
    assert night.window_requests == pytest.approx(8 * 3600 * (0.8 / 0.2 * rate - 1.0))


def test_a_full_fleet_has_no_valleys() -> None:
    full = fleet("gpu-only", {"gpu": engine("gpu", 1, utilisation=0.9)})
    assert valleys.filling(full, load([1.0] * 24)).requests_per_day == 0


def test_an_hour_over_the_cap_takes_nothing_from_the_others() -> None:
    tidal = valleys.filling(fleet("g", {"gpu": engine("gpu", 1, utilisation=0.5)}), load([0.0, 2.0]))
    assert tidal.requests_per_day == pytest.approx(1.6 * 3600 * 12)


def test_the_busiest_type_limits_what_fits() -> None:
    mixed = fleet("hybrid", {"gpu": engine("gpu", 1, utilisation=0.1), "cpu": engine("cpu", 1, utilisation=0.4)})
    assert valleys.valleys(mixed, load())[0].spare_per_s == pytest.approx(0.8 / 0.4 * 2.0 - 1.0)


def test_what_was_not_simulated_is_unknown() -> None:
    dark = fleet("gpu-only", {"gpu": engine("gpu", 1, utilisation=None)})
    filled = valleys.filling(dark, load(), Offline(requests_per_day=1.0))
    assert (filled.requests_per_day, filled.fits) == (None, None)
    assert valleys.extra_w(dark, load(), Offline(requests_per_day=1.0)) is None
    idle = fleet("gpu-only", {"gpu": engine("gpu", 1, utilisation=0.0)})
    assert valleys.filling(idle, load()).requests_per_day is None


def test_filling_saves_the_separate_machines_less_the_power_it_draws() -> None:
    job = Offline(requests_per_day=86_400.0)
    filled = valleys.filling(FLEET, load(), job)
    watts = valleys.extra_w(FLEET, load(), job)
    assert watts == pytest.approx(2 * 0.2 * 0.5 * 200)
    assert watts is not None
    saved = valleys.saving(filled, 9000.0, extra_w=watts, tariff_per_kwh=0.2, cooling_factor=1.5, years=2)
    assert saved.power_total == pytest.approx(watts / 1000 * 24 * 365.25 * 2 * 0.3)
    assert saved.saved == pytest.approx(9000.0 - saved.power_total)
    assert valleys.saving(filled, None, extra_w=watts, tariff_per_kwh=0.2, cooling_factor=1.5, years=2).saved is None


def test_what_does_not_fit_saves_nothing() -> None:
    filled = valleys.filling(FLEET, load(), Offline(requests_per_day=1e9))
    made = valleys.saving(filled, 9000.0, extra_w=1.0, tariff_per_kwh=0.2, cooling_factor=1.5, years=2)
    assert made.saved is None
    assert "does not fit" in made.evidence


@settings(deadline=None, max_examples=100)
@given(
    rates=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=48).filter(lambda rates: sum(rates) > 0.1),
    utilisation=st.floats(0.01, 1.0),
    minutes=st.floats(1.0, 1440.0),
)
def test_a_longer_window_never_holds_less_and_never_more_than_its_emptiest_hour_allows(
    rates, utilisation, minutes
) -> None:
    one = fleet("g", {"gpu": engine("gpu", 1, utilisation=utilisation)})
    job = [Offline(requests_per_day=1.0, window_minutes=span) for span in (minutes, min(1440.0, minutes * 1.5))]
    shorter, longer = (valleys.filling(one, load(rates), each).window_requests for each in job)
    most = max(hour.spare_per_s or 0.0 for hour in valleys.valleys(one, load(rates)))
    assert shorter is not None
    assert longer is not None
    if job[1].window_minutes * 60 <= 3600 * len(rates):
        assert shorter <= longer + 1e-6
    assert shorter <= most * minutes * 60 + 1e-6
