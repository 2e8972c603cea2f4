"""What a person reads of engines' costs when a language server is ready."""

import pytest

from loadslice.app.language_serve import costs_said
from loadslice.spec.language import LanguageEngine, StepCost


@pytest.mark.parametrize(
    ("spread", "share", "warned"),
    [(2.15, 0.74, "others took 74%"), (2.15, 0.0, "must have been busy."), (0.1, 0.5, "")],
)
def test_costs_measured_on_a_busy_machine_are_warned_of(spread: float, share: float, warned: str) -> None:
    cost = StepCost(step_ms=5.0, token_us=800.0, row_us=4.0, relative_sd=spread)
    first, *rest = costs_said("a", LanguageEngine(backend="openvino-paged"), cost, share)
    assert "0.004 ms a sequence (measured now, spread " in first
    assert bool(rest) == bool(warned)
    assert warned in "".join(rest)


def test_an_engine_that_only_computes_prompts_says_nothing_of_sequences() -> None:
    cost = StepCost(step_ms=5.0, token_us=800.0, row_us=0.0)
    (only,) = costs_said("a", LanguageEngine(backend="openvino-paged", roles=("prefill",)), cost, None)
    assert only == "engine a: a step takes 5 ms, 0.8 ms a prompt token (as the profile says)"
