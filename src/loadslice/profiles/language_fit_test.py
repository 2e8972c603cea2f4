"""Fits of steps that were made from known costs."""

import numpy as np
import pytest

from loadslice.profiles.language_fit import (
    Held,
    Kind,
    Taken,
    as_served,
    expected_ms,
    fitted,
    handover_line,
    noise_of,
)
from loadslice.spec.language import StepCost
from loadslice.spec.language_profile import NOISE_AT, NOISE_POINTS, SHAPE_ROWS

KINDS = [Kind(tokens, 0, 0) for tokens in (16, 64, 256, 1024)] + [
    Kind(0, rows, before) for rows in (1, 2, 4, 8, 16) for before in (48, 512)
]


def line(kind: Kind) -> float:
    return 10 + 1.3 * kind.prompt_tokens + 2.0 * kind.rows + 0.0004 * (kind.pairs + kind.prompt_pairs)


def taken(time_ms: float) -> list[Taken]:
    return [Taken(time_ms, time_ms - 0.1)] * 3


def test_costs_that_are_a_line_are_found() -> None:
    fit = fitted({kind: taken(line(kind)) for kind in KINDS})
    assert fit.cost.step_ms == pytest.approx(10, rel=1e-6)
    assert fit.cost.token_us == pytest.approx(1300, rel=1e-6)
    assert fit.cost.row_us == pytest.approx(2000, rel=1e-6)
    assert fit.cost.attend_ns == pytest.approx(400, rel=1e-6)
    assert fit.error_max < 1e-6
    assert fit.cost.relative_sd < 1e-6


def test_attention_of_prompts_and_of_those_who_decode_have_prices_of_their_own() -> None:
    kinds = [*KINDS, Kind(64, 0, 512), Kind(64, 0, 48), Kind(64, 8, 256)]
    fit = fitted({kind: taken(line(kind) + 0.006 * kind.pairs) for kind in kinds})
    assert fit.cost.attend_ns == pytest.approx(6400, rel=1e-3)
    assert fit.cost.prompt_attend_ns == pytest.approx(400, rel=1e-3)


def test_what_a_line_cannot_say_of_many_sequences_is_in_the_shape() -> None:
    def bent(kind: Kind) -> float:
        return line(kind) * (0.8 if kind.rows in (2, 4) else 1.0)

    fit = fitted({kind: taken(bent(kind)) for kind in KINDS})
    for kind in KINDS:
        said_ms = expected_ms(fit.cost, fit.shape, *kind[:2], kind.pairs, kind.prompt_pairs)
        assert said_ms == pytest.approx(bent(kind), rel=0.05)


def test_no_cost_is_below_nothing() -> None:
    # The more sequences, the less time: no machine does that, and no fit may say so.
    fit = fitted({kind: taken(100 - 5 * kind.rows + 0.01 * kind.prompt_tokens) for kind in KINDS})
    assert fit.cost.row_us == 0
    assert min(fit.cost.step_ms, fit.cost.token_us, fit.cost.attend_ns) >= 0


def test_a_shape_goes_on_beyond_what_was_measured_as_it_ended() -> None:
    fit = fitted({kind: taken(line(kind)) for kind in KINDS})
    assert len(fit.shape) == len(SHAPE_ROWS)
    assert fit.shape[-1] == fit.shape[SHAPE_ROWS.index(16)]


def test_noise_is_kept_as_quantiles_and_not_from_a_handful() -> None:
    parts = np.linspace(0.5, 1.5, 1001).tolist()
    assert noise_of(parts) == pytest.approx(np.interp(NOISE_AT, [0, 1], [0.5, 1.5]))
    # One stall among a thousand steps stays one in a thousand.
    stalled = [*parts[:-1], 50.0]
    drawn = np.interp(np.random.default_rng(0).random(100_000), NOISE_AT, noise_of(stalled))
    assert drawn.mean() == pytest.approx(np.mean(stalled), rel=0.03)
    assert np.quantile(drawn, 0.99) < 1.6
    assert len(noise_of([1.0] * 20)) == NOISE_POINTS
    assert noise_of([1.0] * 19) == []


def test_hand_overs_have_a_base_and_a_price_per_token() -> None:
    tokens = [64, 256, 1024] * 3
    line = handover_line(tokens, [2 + 0.015 * count for count in tokens])
    assert line.base_ms == pytest.approx(2)
    assert line.token_us == pytest.approx(15)
    assert line.relative_sd < 1e-9
    assert line.noise == []


def test_the_line_of_hand_overs_has_their_mean_whatever_their_spread() -> None:
    draws = np.random.default_rng(3)
    tokens = draws.integers(16, 1024, 400)
    times_ms = (2 + 0.015 * tokens) * draws.lognormal(0, 0.6, 400)
    line = handover_line(tokens.tolist(), times_ms.tolist())
    assert (line.base_ms + line.token_us * tokens / 1e3).mean() == pytest.approx(times_ms.mean(), rel=0.05)
    assert np.interp(np.linspace(0, 1, 4001), NOISE_AT, line.noise).mean() == pytest.approx(1, rel=0.01)


def test_what_serving_adds_to_every_step_is_not_taken_for_a_share_of_long_ones() -> None:
    cost = StepCost(step_ms=10, token_us=1000, row_us=2000, attend_ns=100)
    shape = [1.0] * len(SHAPE_ROWS)
    kinds = [(tokens, 0) for tokens in (16, 64, 256, 500)] + [(0, rows) for rows in (1, 2, 4, 8)]
    # Five milliseconds more a step, prompts slower by a tenth, a neighbour that takes a fifth.
    served = [
        Held(tokens, rows, 0.0, tokens**2 / 2, 1.2, 1.2 * (15 + 1.1 * (tokens + tokens**2 / 2 * 1e-4) + 2 * rows))
        for tokens, rows in kinds
        for _ in range(40)
    ]
    said, noise, cold_ms, reshape_ms = as_served(cost, shape, served)
    assert said.step_ms == pytest.approx(15, rel=0.02)
    assert said.token_us == pytest.approx(1100, rel=0.01)
    assert said.row_us == pytest.approx(2000, rel=0.05)
    assert noise[0] > 0.97
    assert noise[-1] < 1.03
    assert cold_ms == reshape_ms == 0
    assert as_served(cost, shape, served[:19], 3.0) == (cost, [], 0, 3.0)
    # Every fourth comes after a pause and is seven milliseconds longer for it, every third has another shape: four.
    paused = [
        one._replace(
            took_ms=one.took_ms + 1.2 * (7 * (number % 4 == 0) + 4 * (number % 3 == 0)),
            is_cold=number % 4 == 0,
            is_reshaped=number % 3 == 0,
        )
        for number, one in enumerate(served)
    ]
    said, _, cold_ms, reshape_ms = as_served(cost, shape, paused)
    assert cold_ms == pytest.approx(7, rel=0.05)
    assert reshape_ms == pytest.approx(4, rel=0.05)
    assert said.step_ms == pytest.approx(15, rel=0.03)
