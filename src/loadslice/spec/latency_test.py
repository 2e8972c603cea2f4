import json
from pathlib import Path
from typing import Any

import pytest

from loadslice.spec.errors import InputError
from loadslice.spec.latency import Drift, load

ENTRY = {"variant": "detect", "engine": "npu0", "batch": 1, "latency_ms": {"p50": 12.0}, "basis": "measured"}


def written(folder: Path, entries: list[Any], **rest: Any) -> Path:
    path = folder / "latency.json"
    path.write_text(json.dumps({"entries": entries, **rest}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"p50": -1.0}, r"latency_ms\.p50: -1 must be finite, not negative"),
        ({"p50": 1.0, "p90": 2e9}, r"latency_ms\.p90: 2e\+09 must be finite"),
        ({"samples": [1.0, -2.0]}, r"latency_ms\.samples\[1\]: -2 must be finite"),
        ({"samples": []}, r"samples: empty"),
        ({}, "give p50"),
        ({"p50": 5.0, "p90": 4.0}, r"percentiles must not fall \(5.0, 4.0\)"),
        ({"p50": 5.0, "mean": 5.0, "family": "constant"}, "a mean with a family and percentiles say it twice"),
        ({"samples": [1.0], "mean": 5.0, "family": "constant"}, "a mean with a family and samples say it twice"),
        ({"mean": 5.0}, r"a mean alone is no distribution. Add `family`"),
        ({"family": "exponential"}, "a family needs its mean"),
        ({"mean": 5.0, "family": "lognormal"}, r"a lognormal needs its coefficient of variation. Add `cv`"),
        ({"mean": 5.0, "family": "constant", "cv": 0.1}, "of a lognormal only; the family is constant"),
        ({"mean": 5.0, "family": "lognormal", "cv": -0.1}, r"latency_ms\.cv: -0.1 must be"),
        ({"mean": 5.0, "family": "gamma"}, "family"),
    ],
)
def test_a_distribution_that_says_nothing_or_two_things_is_one_line_with_file_and_entry(
    tmp_path: Path, times: dict[str, Any], said: str
) -> None:
    path = written(tmp_path, [ENTRY, ENTRY | {"batch": 4, "latency_ms": times}])
    with pytest.raises(InputError, match=said) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert "entries[1]" in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_no_number_is_refused_with_the_file(tmp_path: Path, number: str) -> None:
    path = written(tmp_path, [ENTRY])
    path.write_text(path.read_text(encoding="utf-8").replace("12.0", number), encoding="utf-8")
    with pytest.raises(InputError, match=r"latency\.json") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, r"entries\[1\] \(detect on npu0, batch 1\): entries\[0\] is of the same batch and shape"),
        ({"batch": 0}, "batch must be from 1"),
        ({"shape": [3, 0]}, r"shape: \[3, 0\] has a side below 1"),
        ({"energy_j": -1.0}, "energy_j: -1 is not an energy"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load(written(tmp_path, [ENTRY, ENTRY | change]))


def test_entries_that_differ_in_batch_shape_engine_or_variant_are_different_work(tmp_path: Path) -> None:
    changes = ({}, {"batch": 2}, {"shape": [3, 8]}, {"shape": [3, 9]}, {"engine": "cpu0"}, {"variant": "read"})
    assert len(load(written(tmp_path, [ENTRY | change for change in changes])).entries) == len(changes)


def test_a_table_without_drift_says_nothing_of_it_and_one_with_it_keeps_it(tmp_path: Path) -> None:
    assert load(written(tmp_path, [ENTRY])).drift is None
    found = load(written(tmp_path, [ENTRY], drift={"period_ms": 250.0, "likeness": 0.3, "between_runs": 0.02}))
    assert found.drift == Drift(period_ms=250.0, likeness=0.3, between_runs=0.02)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"period_ms": 0.0}, r"drift\.period_ms: 0 must be above 0"),
        ({"likeness": 1.0}, r"drift\.likeness: 1 must be from 0 to below 1"),
        ({"between_runs": 2.0}, r"drift\.between_runs: 2 must be a share"),
        ({"level_runs": 0}, r"drift\.level_runs: 0 runs have no mean"),
        ({"misses": 1.5}, r"drift\.misses: 1\.5 of 0 rehearsals"),
        ({"misses": 11.0, "missed_runs": 2}, r"drift\.misses: 11 of 2 rehearsals; it must be from 0 to 10"),
    ],
)
def test_a_drift_that_cannot_be_drawn_is_refused(tmp_path: Path, change: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load(written(tmp_path, [ENTRY], drift={"period_ms": 250.0, "likeness": 0.3} | change))


ERROR = {"device": "gpu", "device_sd": 0.3, "model_sd": 0.2, "freedom": 5, "why": "calibrated"}


def test_a_modelled_time_may_say_how_far_off_it_is(tmp_path: Path) -> None:
    error = load(written(tmp_path, [ENTRY | {"basis": "modelled", "error": ERROR}])).entries[0].error
    assert error is not None
    assert (error.device_sd, error.power_sd) == (0.3, 0.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"error": ERROR}, "a measured time has no model's error"),
        ({"basis": "modelled", "error": ERROR | {"device_sd": -0.1}}, r"error\.device_sd: -0.1 must be from 0 to 3"),
        ({"basis": "modelled", "error": ERROR | {"model_sd": 30}}, r"error\.model_sd: 30 must be from 0 to 3"),
        ({"basis": "modelled", "error": ERROR | {"freedom": 0}}, r"error\.freedom: 0 must be at least 1"),
    ],
)
def test_an_error_that_cannot_be_meant_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load(written(tmp_path, [ENTRY | change]))
