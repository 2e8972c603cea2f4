"""The language that the tiny model speaks, and its tokens: every right answer can be computed, so a wrong token shows.

Lines are of these kinds; the first two go on for ever:

- ``up c: d e f g ...`` and ``down c: b a z y ...``, round the alphabet
- ``roll: 3 1 6 ...``, dice: what is drawn is not known, only its shape
- a question in the chat's marks, whose answer ends with its end mark
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
START, END = 1, 2
BEGINNING = 6.0
"""What the first token of an answer weighs: it takes most looking back."""
LONG_SHARE = 0.1
"""Of lines as long as the text has room for; the others have some two dozen tokens."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
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
WORDS = (*LETTERS, *"123456", *CAPITALS, *CAPITALS.values(), "is", "the", "capital", "of")
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
        end = next(end for end in range(min(len(signs), at + 10), at, -1) if signs[at:end] in _NUMBER)
        tokens.append(_NUMBER[signs[at:end]])
        at = end
    return tokens


def spelled(letter: str, way: int, count: int) -> str:
    """The right answer to ``up letter:``, or with ``way`` -1 to ``down letter:``."""
    first = LETTERS.index(letter)
    return "".join(f" {LETTERS[(first + way * at) % 26]}" for at in range(1, count + 1))


def chat(country: str) -> list[int]:
    """A question in the chat's marks, up to where its answer begins."""
    asked = [START, *encode(f"user\nWhat is the capital of {country}?"), END, *encode("\n")]
    return [*asked, START, *encode("assistant\n")]


def _line(draws: np.random.Generator, length: int) -> tuple[list[int], list[int]]:
    """A question and its answer, which is at least as long as is asked unless it ends by itself."""
    kind = draws.choice(4, p=(0.22, 0.22, 0.06, 0.5))
    if kind == 3:
        country = str(draws.choice(list(CAPITALS)))
        return chat(country), [*encode(f"The capital is {CAPITALS[country]}."), END]
    if kind == 2:
        return encode("roll:"), encode("".join(f" {draws.integers(1, 7)}" for _ in range(length)))
    letter, way = str(draws.choice(list(LETTERS))), 1 - 2 * int(kind)
    return encode(f"{'up' if way > 0 else 'down'} {letter}:"), encode(spelled(letter, way, length))


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
            while at <= length:
                longest = length if draws.random() < LONG_SHARE else 24
                asked, answer = _line(draws, int(draws.integers(4, longest)))
                line = [*asked, *answer, *encode("\n")]
                heavy = [0.0] * len(asked) + [BEGINNING] + [1.0] * (len(answer) - 1) + [0.0]
                if at == 0:  # a text that begins anywhere: what goes on must be told from what is near
                    cut = int(draws.integers(0, len(asked) + 2))
                    line, heavy = line[cut:], [0.0, 0.0, *heavy[cut + 2 :]]
                taken = min(len(line), length + 1 - at)
                tokens[row, at : at + taken], weights[row, at : at + taken] = line[:taken], heavy[:taken]
                at += taken
        yield tokens, weights[:, 1:]
