"""What a person reads of engines' costs when a language server is ready; and what it reads again when it is told to."""

from pathlib import Path

import pytest

from loadslice.app.language_serve import costs_said, reload_tokens
from loadslice.serve.access import Access
from loadslice.spec import access
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


def test_tokens_are_read_again_when_the_file_is_good_and_stay_when_it_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted, file = Access(None), tmp_path / "tokens.yaml"
    taken: list[object] = []
    monkeypatch.setattr(granted, "replace", taken.append)
    file.write_text("nonsense", encoding="utf-8")
    reload_tokens(granted, file)
    assert taken == []
    assert "as before" in caplog.text
    monkeypatch.setattr(access, "load", lambda path: path)
    reload_tokens(granted, file)
    assert taken == [file]
    reload_tokens(None, None)
