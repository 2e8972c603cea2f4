"""Slots that are too small are refused before the first hand-over."""

import msgspec
import pytest

from loadslice.backends.language import messages as m
from loadslice.serve.language.layouts import check_slots
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language, LanguageEngine, Link

LAYOUT = m.Layout("00" * 32, 2, 1, 8, "float32", has_neutral=True, raw="r", raw_bytes_per_block=1000)
LANGUAGE = Language(
    version=1,
    language="chat",
    model="m",
    context=64,
    engines={name: LanguageEngine(backend="openvino-paged") for name in ("one", "two")},
    links=[Link(from_="one", to="two")],
)


def test_a_slot_holds_the_longest_prompt_whichever_way_its_kv_goes() -> None:
    raw, neutral = 2 * 1000, 2 * 2 * 8 * 64 * 4
    check_slots(LANGUAGE, [LAYOUT, LAYOUT], raw)
    with pytest.raises(InputError, match="from 'one' to 'two': KV of 64 tokens takes"):
        check_slots(LANGUAGE, [LAYOUT, LAYOUT], raw - 1)
    other = msgspec.structs.replace(LAYOUT, raw="s")
    check_slots(LANGUAGE, [LAYOUT, other], neutral)
    with pytest.raises(InputError, match="Say a smaller `prompt_max` of 'one'"):
        check_slots(LANGUAGE, [LAYOUT, other], neutral - 1)
