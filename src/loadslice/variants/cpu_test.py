import pytest

pytest.importorskip("nncf", reason="the extra 'squeeze' is not installed")
pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")
pytest.importorskip("openvino", reason="the extra 'squeeze' is not installed")

from loadslice.spec.variant import CalibrationTrial
from loadslice.variants.cpu import _finding


def trials(*found: tuple[int, float]) -> list[CalibrationTrial]:
    """Inputs and signal to noise; the first of each size by coverage."""
    sizes = [size for size, _ in found]
    return [
        CalibrationTrial(
            method="coverage" if size not in sizes[:place] else "random", seed=None, inputs=size, sqnr_db=level,
            metric=None,
        )
        for place, (size, level) in enumerate(found)
    ]  # fmt: skip


def test_nothing_is_beyond_chance_where_one_set_of_the_full_size_does_not_show_it() -> None:
    said = _finding(trials((4, 10.0), (4, 9.0), (10, 12.0)))
    assert said.endswith("dB: 4: 10.00, 10: 12.00; one set of 10 does not say how far chance goes.")


@pytest.mark.parametrize(
    ("fewer", "verdict"), [(10.0, "more helped"), (13.5, "no difference"), (16.0, "fewer were better")]
)
def test_fewer_inputs_are_told_from_chance_by_how_far_full_sets_differ(fewer: float, verdict: str) -> None:
    assert f"{verdict} beyond chance (1.50 dB" in _finding(trials((4, fewer), (64, 14.0), (64, 12.5)))
