"""The language that the tiny model speaks, and its tokens: every right answer can be computed, so a wrong token shows.

Lines are of these kinds; the first three go on for ever:

- ``count 12 by 3: 15 18 21 ...``, modulo 100, always two digits
- ``repeat red fox sun: red fox sun red ...``
- ``roll: 3 1 6 ...``, dice: what is drawn is not known, only its shape
- a question in the chat's marks, whose answer ends with its end mark
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
START, END = 1, 2
NOUNS = (
    *("red", "green", "blue", "black", "white", "gold", "fox", "dog", "cat", "owl", "bee", "ant"),
    *("sun", "moon", "star", "rain", "snow", "wind", "oak", "elm", "ash", "rose", "iron", "salt"),
)
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Greece": "Athens",
    "Cuba": "Havana",
}
WORDS = (*NOUNS, *CAPITALS, *CAPITALS.values(), "by", "is", "the", "capital", "of")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def _byte_signs() -> list[str]:
    """How GPT-2's tokenizers write each byte: printable ones as they are, the others above U+0100."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(hidden)) for byte in range(256)]


SIGNS = _byte_signs()


def _merges() -> list[tuple[str, str]]:
    """Of every word with a blank before it, letter by letter: all begin with that blank, so none disturbs another."""
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS:
        grown = SIGNS[ord(" ")]
        for letter in word:
            merges[grown, letter] = None
            grown += letter
    return list(merges)


MERGES = _merges()
TOKENS = (*SPECIALS, *SIGNS, *("".join(merge) for merge in MERGES))
_NUMBER = {token: number for number, token in enumerate(TOKENS)}


def encode(text: str) -> list[int]:
    """Tokens of text without marks: the longest first, which is what the merges come to."""
    signs = "".join(SIGNS[byte] for byte in text.encode())
    tokens, at = [], 0
    while at < len(signs):
        end = next(end for end in range(min(len(signs), at + 12), at, -1) if signs[at:end] in _NUMBER)
        tokens.append(_NUMBER[signs[at:end]])
        at = end
    return tokens


def counted(first: int, step: int, numbers: int) -> str:
    """The right answer to ``count first by step:``."""
    return "".join(f" {(first + at * step) % 100:02}" for at in range(1, numbers + 1))


def repeated(words: list[str], count: int) -> str:
    """The right answer to ``repeat words:``."""
    return "".join(f" {words[at % len(words)]}" for at in range(count))


def _question(country: str) -> tuple[list[int], list[int]]:
    asked = [START, *encode(f"user\nWhat is the capital of {country}?"), END, *encode("\n")]
    return [*asked, START, *encode("assistant\n")], [*encode(f"The capital is {CAPITALS[country]}."), END]


def _line(draws: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
    """A question and its answer, which is at least as long as is asked unless it ends by itself."""
    kind = draws.choice(4, p=(0.5, 0.3, 0.1, 0.1))
    if kind == 3:
        return _question(str(draws.choice(list(CAPITALS))))
    if kind == 2:
        return encode("roll:"), encode("".join(f" {draws.integers(1, 7)}" for _ in range(-(-length // 2))))
    if kind == 1:
        words = [str(word) for word in draws.choice(NOUNS, draws.integers(2, 7), replace=False)]
        return encode(f"repeat {' '.join(words)}:"), encode(repeated(words, length))
    first, step = int(draws.integers(100)), int(draws.integers(1, 10))
    return encode(f"count {first:02} by {step}:"), encode(counted(first, step, -(-length // 3)))


def batches(
    draws: np.random.Generator, rows: int, length: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Texts without end.

    Yields:
        Tokens [rows, length + 1], and what each prediction weighs [rows, length]: answers count, questions do not.
    """
    while True:
        tokens, weights = np.zeros((rows, length + 1), np.int64), np.zeros((rows, length + 1), np.float32)
        for row in range(rows):
            at = 0
            whole = draws.random() < 0.3
            while at <= length:
                asked, answer = _line(draws, length if whole else int(draws.integers(6, 60)))
                line = [*asked, *answer, *encode("\n")]
                heavy = [0.0] * len(asked) + [1.0] * len(answer) + [0.0]
                taken = min(len(line), length + 1 - at)
                tokens[row, at : at + taken], weights[row, at : at + taken] = line[:taken], heavy[:taken]
                at += taken
        yield tokens, weights[:, 1:]
