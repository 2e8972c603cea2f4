"""A tokenizer whose tokens are no bytes of text would give wrong text without a sound: it is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadslice.backends.language.words import PROBE, Words
from loadslice.spec.errors import InputError


def words(pieces: list[bytes], decoded: str) -> Words:
    ids = SimpleNamespace(input_ids=SimpleNamespace(data=np.arange(len(pieces))))
    tokenizer: Any = SimpleNamespace(encode=lambda text, add_special_tokens: ids, decode=lambda tokens: decoded)
    made = Words.__new__(Words)
    made._tokenizer, made.pieces = tokenizer, pieces
    return made


def test_a_tokenizer_is_understood_when_its_tokens_are_the_bytes_of_what_it_decodes() -> None:
    raw = PROBE.encode()
    words([raw[at : at + 2] for at in range(0, len(raw), 2)], PROBE)._check(Path("m"))
    signs = [word.encode() for word in PROBE.replace(" ", " \u2581").replace("\n", "<0x0A>").split(" ")]
    with pytest.raises(InputError, match="not of the kind that is read here") as refused:
        words(signs, PROBE)._check(Path("m"))
    assert "\n" not in str(refused.value)
