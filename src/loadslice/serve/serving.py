"""What is to be served: a pipeline, where it stands, and what is known of it beforehand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadslice.serve.patience import Step
from loadslice.serve.stages import LoadedStage
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline

Probation = Callable[[list[LoadedStage], Step], None]


@dataclass(frozen=True, slots=True)
class Serving:
    """What a generation is to serve."""

    pipeline: Pipeline
    """Checked, with its emulated engines resolved."""
    folder: Path
    """Where its file stands."""
    latency: LatencyTable | None = None
    """Expected service times; without it the core learns them."""
    version: str | None = None
    """Of a repository; ``None``: a pipeline file."""
    probation: Probation | None = None
    """Called once everything is loaded and warm; raises InputError when its answers are not the recorded ones."""
