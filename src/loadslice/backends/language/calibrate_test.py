"""An engine that measures itself on a busy machine does so again, and no cost is nothing."""

import pytest

from loadslice.backends.language import calibrate
from loadslice.backends.language.base import KvLayout
from loadslice.backends.language.calibrate import Costs, measured_costs, never_nothing
from loadslice.backends.language.measured import Measured

LAYOUT = KvLayout(0, 0, 0, 16, "", 0, has_neutral=False, sequences=4)


class Instant:
    """Tokens at no time."""

    vocabulary = 7

    def begin(self, *_: object) -> None: ...

    def next_tokens(self, sequences: object) -> object: ...

    def release(self, sequence: int) -> None: ...


@pytest.mark.parametrize(("spreads", "kept"), [([0.1], 0.1), ([2.15, 0.2, 0.1], 0.2), ([2.15, 0.7, 0.9, 0.1], 0.7)])
def test_a_disturbed_round_is_repeated_up_to_twice_and_the_quietest_is_kept(
    monkeypatch: pytest.MonkeyPatch, spreads: list[float], kept: float
) -> None:
    left = iter(spreads)
    monkeypatch.setattr(calibrate, "_round", lambda *_: Costs(1, 1, 1, 0, 0, next(left), 0, 0, 0))
    found = measured_costs(Measured(Instant(), LAYOUT, 64), None, 1024, measure=True)  # type: ignore[arg-type]
    assert found.relative_sd == kept


def test_it_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    session = Measured(Instant(), LAYOUT, 64)
    layout = type("Layout", (), {"raw_bytes_per_block": 0})()
    found = measured_costs(session, layout, 1024, measure=True, tell=lambda *one: told.append(one))  # type: ignore[arg-type]
    assert told[:10] == [(number, 10) for number in range(10)]
    assert min(found.step_ms, found.token_us, found.row_us) > 0


@pytest.mark.parametrize("hidden", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_a_cost_that_noise_hides_is_not_nothing(hidden: set[int]) -> None:
    step_ms, token_ms, row_ms = (0.0 if place in hidden else 3.0 for place in range(3))
    found = never_nothing(step_ms, token_ms, row_ms, 20.0, decodes=True)
    assert min(found) > 0
    assert [one for place, one in enumerate(found) if place not in hidden] == [3.0] * (3 - len(hidden))


def test_sequences_that_never_go_on_cost_nothing() -> None:
    assert never_nothing(5.0, 1.0, 0.0, 20.0, decodes=False) == (5.0, 1.0, 0.0)
