"""A whole service squeezed: what each stage was given, and how far they go together.

`loadslice squeeze PIPELINE.yaml` writes it as ``service.json`` beside the pipeline it proved. Costs are processor time,
which a machine that others use leaves alone; throughput is wall time, with the machine's load beside it.
"""

from typing import Literal

import msgspec

from loadslice.spec.files import Stamp
from loadslice.spec.variant import CpuOffer

SCHEMA = "service/1"


class StageCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One artefact on one runtime, for one stage."""

    name: str
    backend: str
    cpu_ms: float
    """Processor time of one request's rows on one thread, mean over the inputs timed."""
    cpu_speedup: float
    """Against the source on one thread of ONNX Runtime that does not spin; median over rounds."""
    cosine: float
    """Between the stage's own outputs and the source's, mean over rows of the inputs to choose by."""
    on_front: bool
    """Nothing else of this stage is both cheaper and closer to the source; only these are tried in the service."""


class StageChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What one model stage was given."""

    stage: str
    chosen: str
    file: str | None
    """Of the artefact; ``None``: the source file, computed by another runtime or at another precision."""
    candidates: list[StageCandidate]
    buckets: list[list[int]]
    """Input shapes without rows; empty: rows keep their own."""
    buckets_from: Literal["none", "pipeline", "traffic"]
    buckets_cpu_ms: dict[str, float]
    """Processor time of a request's rows by where buckets come from, a share of shapes not met before included."""
    batch: int
    """Rows at most."""
    batch_cpu_ms: dict[str, float]
    """Rows at most -> processor time of one row."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of candidates, marked by the service's own answers."""

    variants: dict[str, str]
    """Stage -> candidate."""
    metric: float
    """On the inputs that combinations are chosen by."""
    buckets: bool = False
    """Rows were padded to the buckets of their stages."""
    rows: dict[str, int] = {}
    """Stage -> rows that ran together at most; 1: every request alone."""


class ServiceInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What each example input was used for, by name; none is in two of these."""

    calibration: list[str]
    choice: list[str]
    """Combinations were chosen by them; empty: there were too few, and those of ``calibration`` had to do."""
    judgement: list[str]
    """Judged what had been chosen, and chose nothing."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """The service called without a pause, in this process."""

    callers: int
    streams: int
    threads: int
    requests_per_s: float
    cpu_ms_per_request: float
    """Of all threads of the process."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was tried on one pipeline, on this machine."""

    pipeline: str
    metric: str
    """``characters``: share of characters right by the inputs module's own ``score``. ``cosine``: between final
    outputs and those of the untuned service."""
    floor: float
    source_metric: float
    tuned_metric: float
    judged_inputs: int
    """Nothing was calibrated on them or chosen by them."""
    inputs: ServiceInputs | None = None
    """``None``: written before they were told apart."""
    stages: list[StageChoice]
    trials: list[Trial]
    untuned: list[Rate]
    """ONNX Runtime as it comes, one session per stage, no buckets and no batches; by callers."""
    tuned: list[Rate]
    """By streams and threads; best first."""
    throughput_speedup: float
    """Of the best tuned setting against the untuned one with the most requests per second; median over windows that
    alternate."""
    cpu_speedup: float
    """The same of processor time per request."""
    load_average_1m: float | None
    """Before the throughput windows: the machine's, ours included."""
    cpu: CpuOffer
    notes: list[str]
    stamp: Stamp
