"""Answers against the text that is known to be right, and answers of two runs against each other."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from loadslice.spec.files import NOT_JSON
from loadslice.spec.replay import Accuracy

Scorer = Callable[[list[str], list[str]], tuple[int, int]]
"""(truth, read) -> characters wrong, characters in the truth; an inputs module's ``score``."""

TEXT_OUTPUT = "text"


def texts_of(body: bytes) -> list[str] | None:
    """The lines an answer holds: output ``text`` of an Open Inference Protocol answer, or a plain ``text`` list.

    Returns:
        Lines in the answer's order; ``None`` when the body holds no such output.
    """
    try:
        document: Any = msgspec.json.decode(body)
    except NOT_JSON:
        return None
    if not isinstance(document, dict):
        return None
    lines: Any = document.get(TEXT_OUTPUT)
    for output in document.get("outputs") or []:
        if isinstance(output, dict) and output.get("name") == TEXT_OUTPUT:
            lines = output.get("data")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return None
    return lines


def total(scored: Iterable[tuple[int, int]]) -> Accuracy | None:
    """Add up ``(wrong, characters)`` of every scored answer; ``None`` when there is none."""
    pairs = list(scored)
    if not pairs:
        return None
    wrong, characters = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return Accuracy(
        wrong_characters=wrong,
        characters=characters,
        share=wrong / characters if characters else None,
        answers=len(pairs),
    )


def agreement(
    first: Mapping[str, list[str]], second: Mapping[str, list[str]], scorer: Scorer
) -> tuple[int, int, int, int]:
    """Compare what two runs read in the same inputs.

    Args:
        first: Input name -> lines.
        second: The same of the other run.
        scorer: Counts differing characters.

    Returns:
        Inputs both answered, inputs answered alike, characters that differ, characters of the first run.
    """
    shared = sorted(set(first) & set(second))
    alike = different = characters = 0
    for name in shared:
        wrong, count = scorer(first[name], second[name])
        alike += wrong == 0
        different += wrong
        characters += count
    return len(shared), alike, different, characters
