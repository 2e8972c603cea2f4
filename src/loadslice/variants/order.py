"""What a squeeze is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadslice.spec.variant import Target
from loadslice.variants.metrics import Score
from loadslice.variants.recorded import Recorded


@dataclass(frozen=True)
class Order:
    """What is asked for.

    Attributes:
        source: An ``.onnx`` file.
        recorded: Its inputs, checked.
        targets: Some of `loadslice.spec.variant.TARGETS`.
        out: Folder to keep variants in.
        floor: ``metric>=x``; ``None``: the metric's default.
        score: A metric of the user's own, and its name.
        seconds: Time for timing.
        seed: Which inputs are held out.
    """

    source: Path
    recorded: Recorded
    targets: Sequence[Target]
    out: Path
    floor: str | None = None
    score: tuple[str, Score] | None = None
    seconds: float = 30.0
    seed: int = 0
