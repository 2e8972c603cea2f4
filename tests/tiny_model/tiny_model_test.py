"""The trainer's parts: slopes are those of the loss, the file is read back as written, tokens are the engines'."""

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from tests.tiny_model.language import TOKENS, batches, chat, encode, spelled
from tests.tiny_model.network import Sizes, as_filed, fresh, loss_and_slopes

from loadslice.backends.language.weights import GgufWeights

FOLDER = Path(__file__).parent


def test_slopes_are_those_of_the_loss() -> None:
    draws = np.random.default_rng(0)
    sizes = Sizes(len(TOKENS), layers=2, hidden=64, heads=2, kv_heads=1, inner=64)
    weights = {name: one.astype(np.float64) for name, one in fresh(sizes, draws).items()}
    tokens, heavy = next(batches(draws, 2, 16))
    _, _, slopes = loss_and_slopes(weights, sizes, tokens, heavy)  # type: ignore[arg-type]
    for name, weight in weights.items():
        place = (int(tokens[0, 0]), 3) if name == "token_embd" else tuple(draws.integers(side) for side in weight.shape)
        kept, losses = weight[place], []
        for step in (1e-5, -1e-5):
            weight[place] = kept + step
            losses.append(loss_and_slopes(weights, sizes, tokens, heavy)[0])  # type: ignore[arg-type]
        weight[place] = kept
        assert slopes[name][place] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-3, abs=1e-7), name


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    sizes = Sizes(len(TOKENS), layers=1)
    weights = fresh(sizes, np.random.default_rng(1))
    importlib.import_module("gguf_file").write(tmp_path / "one.gguf", weights, sizes)
    read = GgufWeights(tmp_path / "one.gguf")
    read.check_whole()
    for name, wanted in as_filed(weights).items():
        found = read.vector(f"{name}.weight") if wanted.ndim == 1 else read.matrix(f"{name}.weight").dense()
        np.testing.assert_array_equal(found, wanted, err_msg=name)


@pytest.mark.skipif(
    not (FOLDER / "tiny.gguf").is_file() or importlib.util.find_spec("openvino_genai") is None,
    reason="needs the extra llm, and tests/tiny_model/tiny.gguf",
)
def test_its_tokens_are_those_of_the_tokenizer_in_its_file() -> None:
    from loadslice.backends.language.gguf import converted
    from loadslice.backends.language.words import Words

    words = Words(converted(FOLDER / "tiny.gguf"))
    assert len(words.pieces) == len(TOKENS)
    for text in (
        f"up c:{spelled('c', 1, 9)}\n",
        "The capital of France is Paris, what else?",
        "größer\x00 Ünï",
    ):
        assert words.encode(text) == encode(text)
        assert b"".join(words.pieces[token] for token in encode(text)) == text.encode()
    assert words.chat([{"role": "user", "content": "What is the capital of Peru?"}]) == chat("Peru")
