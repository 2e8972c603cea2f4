"""A placement as a layer sees it: where it is, what can be sent, and what is known about it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Self

from loadslice.evaluate.accuracy import Scorer
from loadslice.evaluate.infer import encode as encode_tensors
from loadslice.evaluate.payloads import Inputs, encode
from loadslice.evaluate.wire import Letter, Line
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline


@dataclass(slots=True)
class Subject:
    """A server that is up."""

    name: str
    url: str
    """Of the endpoint that is posted to."""
    letters: list[Letter]
    """One per input."""
    truths: dict[str, list[str]]
    score: Scorer | None
    tensors: bool
    """Requests are tensors, not raw bytes."""
    timeout_s: float
    dilate: float = 1.0
    pipeline: Pipeline | None = None
    """``None``: it was not started by us."""
    table: LatencyTable | None = None
    """Its profile, overhead included, for predictions."""
    memory_bytes: Callable[[], int] | None = None
    cpu_s: Callable[[], float] | None = None
    """Processor time of the server so far."""
    fresh: Callable[[], AbstractContextManager[Self]] | None = None
    """Starts another server of the same for as long as the block lasts; ``None``: this one was not started here."""
    alive: Callable[[], bool] = field(default=lambda: True)

    def line(self) -> Line:
        """A connection to it; a dilated one has more patience."""
        return Line(self.url, self.timeout_s * self.dilate, self.dilate)

    def numbered(self, prefix: str) -> Iterator[Letter]:
        """Its letters in turn for ever, each with an id of its own."""
        number = 0
        while True:
            letter = self.letters[number % len(self.letters)]
            yield Letter(letter.input, letter.body, {**letter.headers, "x-request-id": f"{prefix}-{number}"})
            number += 1


def letters_of(inputs: Inputs, names: Sequence[str] | None = None) -> list[Letter]:
    """A letter per input; answers to tensors are asked for in binary, as who sends tensors does."""
    found = []
    for name in names or list(inputs.samples):
        sample = inputs.samples[name]
        body, headers = encode(sample)
        if sample.tensors is not None:
            body, binary = encode_tensors(name, sample.tensors, binary_outputs=True)
            headers = {**headers, **binary}
        found.append(Letter(name, body, headers))
    return found
