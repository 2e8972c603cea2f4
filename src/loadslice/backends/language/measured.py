"""An engine of whole requests as `calibrate` wants to see it: how long its tokens take, whichever they are."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from loadslice.backends.language import messages as m
from loadslice.backends.language.base import Float32s, KvLayout, StepRow


class Pipeline(Protocol):
    """What it must offer."""

    vocabulary: int

    def begin(self, sequence: int, tokens: Sequence[int], sampling: m.Sampling) -> None:
        """Have a sequence continued."""

    def next_tokens(self, sequences: Sequence[int]) -> object:
        """Wait for the next token of each."""

    def release(self, sequence: int) -> None:
        """Forget a sequence."""


class Measured:
    """A pipeline, step by step.

    Args:
        pipeline: Nothing in it.
        layout: What the language file says of it.
        blocks: Of KV.
    """

    def __init__(self, pipeline: Pipeline, layout: KvLayout, blocks: int) -> None:
        self._pipeline, self.layout = pipeline, layout
        self.vocabulary = pipeline.vocabulary
        self.free_blocks = blocks
        self._begun: set[int] = set()

    def step(self, rows: Sequence[StepRow]) -> Float32s:
        """See `base.LanguageSession.step`; there are no logits."""
        for row in rows:
            if row.sequence not in self._begun:
                self._begun.add(row.sequence)
                self._pipeline.begin(row.sequence, row.tokens, m.Sampling())
        self._pipeline.next_tokens([row.sequence for row in rows])
        return np.zeros((0, self.vocabulary), np.float32)

    def release(self, sequence: int) -> None:
        """See `base.LanguageSession.release`."""
        self._begun.discard(sequence)
        self._pipeline.release(sequence)
