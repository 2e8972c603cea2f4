"""Between text and tokens: encode prompts, render chats, and turn tokens back into text as they come."""

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadslice.spec.errors import InputError, MissingExtraError

Message = dict[str, str]
"""``role`` and ``content``."""

_SPECIAL = re.compile(rb"<[^\s<>]{2,40}>")
"""What tokens that mean something to the model look like, rather than text."""


PROBE = "Hello, w\u00f6rld: \u65e5\u672c \U0001f389\n\n12 + 3\t= 15."
"""Read and written again to see that a tokenizer is understood."""


class Words:
    """A model's tokenizer.

    Args:
        folder: Of the model, as `gguf.converted` gives it.

    Raises:
        InputError: The extra is absent, or the folder has no tokenizer that can be read, or is understood.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import openvino_genai
        except ImportError as error:
            raise MissingExtraError("llm", "a language model") from error
        try:
            self._tokenizer: Any = openvino_genai.Tokenizer(str(folder))
            vocabulary: dict[bytes, int] = self._tokenizer.get_vocab()
        except RuntimeError as error:
            raise InputError(f"{folder}: its tokenizer cannot be read.") from error
        self.pieces: list[bytes] = [b""] * (max(vocabulary.values()) + 1)
        """Bytes of each token; of those that are no text, none."""
        for piece, token in vocabulary.items():
            self.pieces[token] = piece
        self.end_token = int(self._tokenizer.get_eos_token_id())
        self.specials = frozenset(token for token, piece in enumerate(self.pieces) if _SPECIAL.fullmatch(piece))
        """Tokens that are no text."""
        marks = sorted((self.pieces[token].decode(errors="replace") for token in self.specials), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, marks))) if marks else None
        self._longest = max(map(len, self.pieces))
        self._check(folder)

    def _check(self, folder: Path) -> None:
        """Refuse a tokenizer whose tokens are no bytes of text: some write blanks and single bytes as signs."""
        tokens = self._raw(PROBE)
        mine = b"".join(self.pieces[token] for token in tokens).decode(errors="replace")
        theirs = self._tokenizer.decode(tokens)
        if mine.split() != theirs.split():
            raise InputError(
                f"{folder}: its tokens are not of the kind that is read here (byte-level): they say {mine[:60]!r} for "
                f"{theirs[:60]!r}."
            )

    def cover(self, vocabulary: int) -> None:
        """Know as many tokens as an engine has: its matrix may be padded beyond the tokenizer's."""
        self.pieces += [b""] * (vocabulary - len(self.pieces))

    def least_tokens(self, text: str) -> int:
        """So many tokens text has at least, told without encoding it: none stands for more bytes than the longest."""
        return -(-len(text.encode(errors="replace")) // self._longest)

    def encode(self, text: str) -> list[int]:
        """Tokens of text. What reads like one of the model's own marks is text here too, not the mark."""
        if self._marks is None or not self._marks.search(text):
            return self._raw(text)
        # Cut inside each mark, so that none is recognised.
        tokens: list[int] = []
        at = 0
        for found in self._marks.finditer(text):
            tokens += self._raw(text[at : found.start() + 1])
            at = found.start() + 1
        return tokens + self._raw(text[at:])

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a conversation in the model's own form, up to where its answer begins.

        Raises:
            ValueError: The model has no such form, or none for these roles.
        """
        contents = [message["content"] for message in messages]
        if self._marks is None or not any(self._marks.search(content) for content in contents):
            return self._raw(self._render(messages))
        # Contents stand in for themselves by names that no text has, and are encoded apart.
        stand_ins = [f"\x02{index}\x03" for index in range(len(contents))]
        named = [{**message, "content": name} for message, name in zip(messages, stand_ins, strict=True)]
        tokens: list[int] = []
        for part in re.split("\x02(\\d+)\x03", self._render(named)):
            tokens += self.encode(contents[int(part)]) if part.isdigit() else self._raw(part)
        return tokens

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            rendered: str = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True)
        except RuntimeError as error:
            raise ValueError("the model's chat template does not take these messages") from error
        return rendered

    def _raw(self, text: str) -> list[int]:
        if not text:
            return []
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids.data
        return [int(one) for one in ids.reshape(-1)]


class TextStream:
    """Text of one answer as its tokens come: whole characters only, and nothing of a stop text.

    Args:
        words: The model's.
        stops: Texts that end the answer; they are not part of it.
    """

    def __init__(self, words: Words, stops: Sequence[str] = ()) -> None:
        self._words = words
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        """Text that may be the beginning of a stop text."""
        self.characters = 0
        """So many have come, those held back and those of a stop text among them."""
        self._longest = max(map(len, self._stops), default=0)
        self.has_stopped = False

    def add(self, token: int) -> str:
        """Text that is certain now that this token has come."""
        if self.has_stopped or token in self._words.specials:
            return ""
        fresh = self._decoder.decode(self._words.pieces[token])
        self.characters += len(fresh)
        text = self._held + fresh
        if not self._stops:
            self._held = ""
            return text
        cuts = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if cuts:
            self.has_stopped = True
            self._held = ""
            return text[: min(cuts)]
        held = self._maybe_stop(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back, when no more comes."""
        if self.has_stopped:
            return ""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return text

    def _maybe_stop(self, text: str) -> int:
        """Characters at the end that a stop text may begin with."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
