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
