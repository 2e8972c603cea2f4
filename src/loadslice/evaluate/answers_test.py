import json

import numpy as np
import pytest

from loadslice.evaluate.answers import alike, compare, outputs

RNG = np.random.default_rng(0)
RIGHT = [{"y": RNG.normal(size=512)} for _ in range(8)]


def differences(change: float, noise: float = 0.0) -> list:
    return [
        compare(right, {"y": right["y"] * change + noise * RNG.normal(size=512) * np.abs(right["y"]).mean()})
        for right in RIGHT
    ]


def test_the_same_numbers_are_identical() -> None:
    assert alike(differences(1.0), "fp32") == "identical"


@pytest.mark.parametrize("scheme", ["fp32", "bf16", "int8", "int4"])
def test_a_scale_off_by_two_percent_is_clearly_different_in_every_scheme(scheme: str) -> None:
    assert alike(differences(1.02), scheme) == "clearly"


def test_rounding_of_the_scheme_is_slightly_different() -> None:
    assert alike(differences(1.0, noise=1e-6), "fp32") == "slightly"
    assert alike(differences(1.0, noise=5e-3), "int8") == "slightly"


def test_rounding_coarser_than_the_scheme_is_clearly_different() -> None:
    assert alike(differences(1.0, noise=5e-3), "fp32") == "clearly"


def test_an_overflow_where_the_reference_has_a_number_is_clearly_different() -> None:
    other = RIGHT[0]["y"].copy()
    other[3] = np.inf
    found = compare(RIGHT[0], {"y": other})
    assert found.not_finite == 1
    assert alike([found], "int4") == "clearly"


def test_another_shape_is_clearly_different() -> None:
    assert alike([compare(RIGHT[0], {"y": RIGHT[0]["y"][:-1]})], "fp32") == "clearly"
    assert alike([compare(RIGHT[0], {"z": RIGHT[0]["y"]})], "fp32") == "clearly"


def test_texts_are_compared_as_they_are() -> None:
    same, other = {"text": ["a", "b"]}, {"text": ["a", "c"]}
    assert alike([compare(same, same)] * 4, None) == "identical"
    assert alike([compare(same, other)] * 4, None) == "clearly"


def test_null_in_an_answer_stands_for_what_is_no_number() -> None:
    body = json.dumps({"outputs": [{"name": "y", "data": [1.0, None]}, {"name": "t", "data": ["a"]}]}).encode()
    found = outputs(body)
    assert found is not None
    assert np.isnan(found["y"][1])
    assert found["t"] == ["a"]


@pytest.mark.parametrize("body", [b"", b"no json", b"[1, 2]"])
def test_what_holds_no_outputs_is_none(body: bytes) -> None:
    assert outputs(body) is None
