import math

import numpy as np
import pytest

from loadslice.profiles import calibration
from loadslice.profiles.calibration import Observation, covered, errors, fit, left_out, spread, t_90, time_ms


def made(
    family: str,
    *,
    conv: float,
    move: float = 0.0,
    launches: int = 0,
    off: float = 0.0,
    device: str = "d",
    precision: str = "fp32",
) -> Observation:
    """True slowness: conv 2, move 4, 0.005 ms a launch, 0.1 ms a call; off by a factor."""
    roofline = {"conv": conv} | ({"move": move} if move else {})
    return Observation(
        kind="cpu",
        device=device,
        family=family,
        model=f"{family} {conv}",
        precision=precision,
        roofline_ms=roofline,
        launches=launches,
        time_ms=(2 * conv + 4 * move + 0.005 * launches + 0.1) * math.exp(off),
        source="a test",
    )


def test_a_fit_of_exact_times_predicts_them() -> None:
    seen = [
        made(f"f{number}", conv=conv, move=move, launches=launches)
        for number, (conv, move, launches) in enumerate(
            [(1, 2, 10), (10, 1, 300), (5, 5, 50), (0.2, 0.1, 400), (3, 0.1, 20), (0.1, 3, 5)] * 4
        )
    ]
    fitted = fit(seen)
    assert fitted.slowness["conv"] == pytest.approx(2, rel=0.1)
    assert fitted.slowness["move"] == pytest.approx(4, rel=0.1)
    for each in seen:
        assert time_ms(fitted, each.roofline_ms, each.launches) == pytest.approx(each.time_ms, rel=0.05)


def test_a_family_counts_once_however_often_it_was_measured() -> None:
    twice = [made("a", conv=1, off=0.4), made("b", conv=1, off=-0.4)]
    often = [*[made("a", conv=1, off=0.4)] * 20, made("b", conv=1, off=-0.4)]
    assert time_ms(fit(often), {"conv": 1.0}, 0) == pytest.approx(time_ms(fit(twice), {"conv": 1.0}, 0), rel=1e-3)


def test_a_fit_is_off_either_way_alike() -> None:
    rng = np.random.default_rng(0)
    seen = [made(f"f{number}", conv=2.0**number, off=float(rng.normal(0, 0.5))) for number in range(12)]
    fitted = fit(seen)
    assert float(np.mean([calibration.error(fitted, each) for each in seen])) == pytest.approx(0.0, abs=1e-9)


def test_what_is_left_out_is_not_in_the_fit() -> None:
    seen = [*(made(f"f{number}", conv=float(number + 1)) for number in range(5)), made("odd", conv=3.0, off=1.0)]
    assert left_out(seen, lambda each: each.family)["odd"] == pytest.approx(1.0, abs=0.15)


def test_the_spread_of_few_errors_is_widened() -> None:
    assert spread([0.3, -0.3]) == pytest.approx(0.3 * math.sqrt(1.5))
    assert spread([0.3] * 1000) == pytest.approx(0.3, rel=1e-3)


def test_of_one_device_nothing_is_known_about_others() -> None:
    one = errors([made(f"f{number}", conv=float(number + 1)) for number in range(4)])
    assert (one.device_sd, one.devices, one.families) == (None, 1, 4)
    two = errors([made(f"f{n}", conv=float(n + 1), device=d, off=0.3 * (d == "e")) for n in range(4) for d in "de"])
    assert two.device_sd is not None
    assert two.device_sd > 0.2


def test_other_precisions_are_off_by_what_the_base_says_of_them() -> None:
    base = [made(f"f{number}", conv=float(number + 1)) for number in range(4)]
    assert calibration.between_precisions(base, "fp32") is None
    others = [made("x", conv=2.0, off=0.3, precision="int8"), made("x", conv=2.0, off=-0.3, precision="fp8")]
    assert calibration.between_precisions([*base, *others], "fp32") == pytest.approx(0.3 * math.sqrt(1.5), rel=0.05)


def test_the_stated_interval_holds_nine_of_ten_families() -> None:
    """Families off by a normal factor: over many trials the 90 % interval holds about 90 % of those left out."""
    rng = np.random.default_rng(7)
    held = []
    for _ in range(25):
        seen = [made(f"f{number}", conv=2.0 ** (number % 4), off=float(rng.normal(0, 0.3))) for number in range(8)]
        held += covered(seen).values()
    assert 0.84 <= np.mean(held) <= 0.96


def test_the_shipped_intervals_hold_about_nine_of_ten_families_that_were_left_out() -> None:
    shipped = calibration.shipped()
    held = {
        (kind, family): inside
        for kind, known in shipped.kinds.items()
        for family, inside in covered(
            [each for each in shipped.observations if (each.kind, each.precision) == (kind, known.precision)],
            known.fit.between_kinds_sd,
        ).items()
    }
    assert len(held) >= 20
    assert 0.8 <= np.mean(list(held.values())) <= 1.0


def test_the_shipped_file_says_what_follows_from_its_observations() -> None:
    shipped = calibration.shipped()
    assert set(shipped.kinds) == {"cpu", "gpu", "npu"}
    assert shipped.stamp.machine["cpu"]
    assert "modelled_bench" in shipped.command
    assert all(each.source for each in shipped.observations)
    for kind, known in shipped.kinds.items():
        own = [each for each in shipped.observations if (each.kind, each.precision) == (kind, known.precision)]
        again = calibration.calibrate(own, known.what, known.fit.between_kinds_sd)
        assert again.errors.model_sd == pytest.approx(known.errors.model_sd)
        assert again.fit.slowness == pytest.approx(known.fit.slowness)
        # Nothing reaches its roofline, but what a runtime fuses into its neighbour may seem to.
        assert all(known.fit.slowness[heavy] > 1 for heavy in ("conv", "matmul") if heavy in known.fit.slowness)


def test_points_of_students_t() -> None:
    assert (t_90(1), t_90(10)) == (6.31, 1.81)
    assert t_90(30) == pytest.approx(1.697, rel=0.01)
