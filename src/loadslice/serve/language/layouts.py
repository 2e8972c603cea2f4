"""Whether KV of one engine means anything to another, and tokens of all of them the same text."""

from collections.abc import Mapping, Sequence

from loadslice.backends.language import messages as m
from loadslice.backends.language.words import Words
from loadslice.spec.errors import InputError
from loadslice.spec.language import Language

ALIKE = ("model_sha256", "layers", "kv_heads", "head_dim", "dtype")


def check_layouts(language: Language, layouts: Sequence[m.Layout]) -> None:
    """Refuse links between engines whose KV does not mean the same.

    Args:
        language: Its links are looked at.
        layouts: Of its engines, in their order.

    Raises:
        InputError: Names the link and what differs.
    """
    by_name = dict(zip(language.engines, layouts, strict=True))
    for link in language.links:
        one, other = by_name[link.from_], by_name[link.to]
        place = f"links: from '{link.from_}' to '{link.to}'"
        for key in ALIKE:
            mine, theirs = getattr(one, key), getattr(other, key)
            if mine != theirs:
                raise InputError(
                    f"{place}: their {key} differ, {mine!s:.20} and {theirs!s:.20}; KV of one means nothing to the "
                    "other."
                )
        if one.raw != other.raw and not (one.has_neutral and other.has_neutral):
            raise InputError(
                f"{place}: quantised KV moves only between engines of one runtime and precision. Give both "
                "`options: {kv_precision: f32}`."
            )


def check_slots(language: Language, layouts: Sequence[m.Layout], slot_bytes: int) -> None:
    """Refuse links whose slots would be too small for the longest prompt: every such hand-over would fail.

    Args:
        language: Its links are looked at.
        layouts: Of its engines, in their order.
        slot_bytes: Of one slot, its header left out.

    Raises:
        InputError: Names the link and what would be needed.
    """
    by_name = dict(zip(language.engines, layouts, strict=True))
    for link in language.links:
        one = by_name[link.from_]
        tokens = language.engines[link.from_].prompt_max or language.context
        size = one.layers * 2 * one.kv_heads * one.head_dim * tokens * 4
        if one.raw == by_name[link.to].raw:
            size = -(-tokens // language.block) * one.raw_bytes_per_block
        if size > slot_bytes:
            raise InputError(
                f"links: from '{link.from_}' to '{link.to}': KV of {tokens} tokens takes {size / 1e6:.0f} MB and a "
                f"slot has {slot_bytes / 1e6:.0f}. Say a smaller `prompt_max` of '{link.from_}'."
            )


def check_vocabularies(ready: Mapping[str, m.Ready], words: Words) -> None:
    """Refuse engines that do not know all of the tokenizer's tokens; what they know beyond is no text.

    Args:
        ready: What engines said, by name.
        words: The model's tokenizer; afterwards it knows as many tokens as any engine.

    Raises:
        InputError: Names the engine.
    """
    for name, one in ready.items():
        if one.vocabulary < len(words.pieces):
            raise InputError(
                f"engine '{name}': its model has {one.vocabulary} tokens and the tokenizer {len(words.pieces)}: they "
                "are not of one model. Check `model`."
            )
    words.cover(max(one.vocabulary for one in ready.values()))
