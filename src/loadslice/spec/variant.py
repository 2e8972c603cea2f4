"""A variant: one source model made ready for one target, with what was measured on it and everything to make it again.

`loadslice squeeze` writes one ``manifest.json`` beside each variant it ships, and ``squeeze.json`` with all it tried.
A figure that was not measured here is ``null``; a variant that could not be run on its target is never shipped.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json, sha256_file
from loadslice.spec.pipeline import Engine

Target = Literal["cpu-fp32", "cpu-bf16", "cpu-int8", "cpu-int4", "gpu-fp16", "gpu-tensorrt", "npu-int8"]

TARGETS: tuple[Target, ...] = (
    "cpu-fp32",
    "cpu-bf16",
    "cpu-int8",
    "cpu-int4",
    "gpu-fp16",
    "gpu-tensorrt",
    "npu-int8",
)
"""What ``--target`` may say; ``cpu-fp32`` is the source's own precision, fused and tuned."""


class MetricFigure(msgspec.Struct, frozen=True, kw_only=True):
    """How good the answers are on inputs that nothing was calibrated on or chosen by; higher is better."""

    name: str
    """``cosine``, ``top1``, ``sqnr_db``, or the name of the function given with ``--metric``."""
    source: float | None
    """Of the source model. For a comparison with the source's own answers this is the value of equality."""
    variant: float | None
    labelled: bool = False
    """It compares with labels; otherwise with the source model's answers."""
    inputs: int = 0
    on_choice: float | None = None
    """The variant's, on the inputs that it was chosen by."""


class InputSet(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the recorded inputs."""

    names: list[str]
    sha256: str
    """Of the tensors, in the order of ``names``."""


class InputSets(msgspec.Struct, frozen=True, kw_only=True):
    """What the recorded inputs were used for; no input is in two of these sets."""

    calibration: InputSet
    """Ranges were taken from some of them; see `Calibration`."""
    choice: InputSet | None
    """Calibration sets, layers and candidates were chosen by them; ``None``: there were too few inputs, and those of
    ``calibration`` had to do."""
    judgement: InputSet
    """What had been chosen was judged by them, and nothing was chosen by them."""


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """How numbers are stored and computed."""

    weight_bits: int
    activation_bits: int
    tool: str
    """What made it, with its version; ``none`` where the runtime computes the source file at another precision."""
    activation_scales: Literal["static", "dynamic"] | None = None
    per_channel: bool | None = None
    symmetric: bool | None = None
    """Weights are symmetric about 0."""
    group_size: int | None = None
    """Weights that share one scale, for block-wise schemes."""
    calibrator: str | None = None
    operators: list[str] = []
    """Operator types that were quantised."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, timed in turns with the untuned model in the same process."""

    engine: Engine
    batch: int
    latency_ms_p50: float
    """Wall time of one run."""
    cpu_ms_p50: float
    """Processor time of all threads of one run: what is left of a timing on a machine that others use, too."""
    speedup_vs_untuned: float
    """Median over rounds of untuned time divided by this one's."""
    basis: Literal["wall", "processor"]
    """``wall``: of rounds in which the processors were ours. ``processor``: there were fewer than three such rounds,
    and processor time is compared instead."""
    cpu_speedup_vs_untuned: float
    """In processor time, against the untuned file on one thread."""
    rounds: int
    clean_rounds: int
    """Rounds in which neither of the two waited for a processor that others held."""


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Items per second while every core has a caller."""

    streams: int
    threads: int
    batch: int
    items_per_s: float
    speedup_vs_untuned: float
    """Against the untuned model called by as many callers."""
    metric: float | None = None
    """Of judged inputs that ran together, in batches of this size, with others of their shape. ``None``: alone, as
    in `Variant.metric`, or no two of them have one shape."""
    judged_inputs: int = 0
    """That ``metric`` is of."""
    meets_floor: bool | None = None
    """``None``: there is no ``metric``."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant's output differs from the source's on one category of inputs."""

    output: str
    category: str
    """Shape of the inputs."""
    inputs: int
    sqnr_db: float | None
    """Signal to noise of the worst tenth of these inputs; ``None``: equal."""
    bias_share: float
    """Share of the squared error that a constant shift explains, 0 to 1."""
    outlier_share: float
    """Share of the squared error that sits in the worst hundredth of the elements, 0 to 1."""
    kind: Literal["none", "shift", "outliers", "spread"]


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the speed-quality chart."""

    name: str
    target: Target
    path: str | None
    """File to serve; ``None``: not kept."""
    sha256: str | None
    """Of the file, or of all files of the artefact in the order of their names."""
    files: dict[str, str] = {}
    """Name and SHA-256 of each."""
    engine: Engine | None
    """Backend, threads and precision it was proved with: paste it under ``engines:`` of a pipeline."""
    scheme: Scheme
    speedup_vs_untuned: float | None
    """Latency of ONNX Runtime as it comes, on the source file, divided by this one's; measured, in turns."""
    metric: MetricFigure
    sqnr_db: float | None
    """Median over inputs; ``None``: equal, or not run."""
    kept_layers: list[str] = []
    """Nodes left in the source's precision."""
    shipped: bool
    """Of those of its target that met the floor on the inputs to choose by it is the fastest; it met the floor on the
    inputs that judge, too, on the runtime that serves it; and it is faster than the model as it is."""
    why: str
    timings: list[Timing] = []
    throughput: list[Throughput] = []
    on_front: bool = False
    """Nothing else that was measured is both faster and better."""
    meets_floor: bool | None = None
    """``None``: not judged on the runtime that would serve it."""
    recipe: str | None = None
    """File with the build steps, for a target that is not on this machine."""
    bytes_on_disk: int | None = None


class CalibrationTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One calibration set, judged by what came of it: the same scheme built from it, run on the inputs to choose by."""

    method: Literal["coverage", "random"]
    seed: int | None
    inputs: int
    sqnr_db: float | None
    metric: float | None


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs that ranges were taken from, and how much the choice mattered."""

    method: Literal["coverage", "random"]
    inputs: list[str]
    sha256: str
    """Of the tensors, in the order of ``inputs``."""
    trials: list[CalibrationTrial]
    finding: str
    """Whether coverage beat random here, in words, from ``trials``."""


class LayerSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """What quantising one layer costs."""

    layer: str
    kind: str
    proxy_db: float | None
    """Signal to noise of its quantised input and weight, whichever is worse: cheap, one run of the model for all."""
    alone_db: float | None
    """Signal to noise of the model's output when only this layer is quantised; ``None``: not tried, or equal."""


class KeepStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rung of the ladder: the worst layers kept."""

    kept: int
    sqnr_db: float | None
    metric: float | None
    cosine: float
    """Mean over inputs, between the source's output and this one's."""
    recovered_share: float | None
    """Of the cosine lost by plain INT8; ``None``: nothing was lost. Like all of a step on the inputs to choose by."""
    recovered_share_judged: float | None = None
    """The same on the inputs that judge; ``None``: nothing was lost, or this step became no candidate."""


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """The three steps: how the output differs, which layers do it, what keeping them gives back."""

    plain: str
    """Variant the steps look at."""
    differences: list[Difference] = []
    layers: list[LayerSensitivity] = []
    """Worst first."""
    keep: list[KeepStep] = []


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """One fixed shape that requests are padded to."""

    shapes: dict[str, list[int]]
    """Input name to shape without the row dimension."""
    share: float
    """Of the recorded requests, 0 to 1."""
    padded_share: float
    """Of the elements computed in this bucket that are padding."""
    metric: float | None
    """Of the source model's answers on padded inputs against those on the inputs as they were."""
    sqnr_db: float | None
    compile_s: dict[str, float]
    """Runtime to seconds until the first answer at this shape."""


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Shapes chosen from recorded traffic."""

    buckets: list[Bucket]
    distinct_shapes: int
    padded_share: float
    """Over all requests."""
    finding: str


class EnvironmentLock(msgspec.Struct, frozen=True, kw_only=True):
    """What figures depend on beside the files: checked before two of them are compared."""

    cpu: str
    architecture: str
    cores_usable: int
    isa: list[str] | None
    numa_nodes: int | None
    memory_bytes: int
    system: str
    python: str
    packages: dict[str, str]
    """Runtimes and tools."""
    devices: dict[str, list[str]]
    """Runtime to the devices it reports."""
    driver: str | None
    """Of the accelerator; ``None``: none here."""
    cpu_governor: str | None
    """Power policy; ``None``: not visible (virtual machines hide it)."""
    cpu_mhz_max: float | None


class CpuOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What this processor has for low precision."""

    int8: str | None
    """Instruction set for 8-bit products; ``None``: none, INT8 may be slower than fp32."""
    bf16: str | None
    fp16: str | None
    numa_nodes: int | None
    cores_usable: int


class Squeeze(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was tried on one model, on this machine."""

    model: str
    sha256: str
    floor: str
    """As it was applied, for instance ``top1>=0.897``."""
    inputs: InputSets | None = None
    """``None``: written before sets were told apart."""
    untuned: Timing
    """ONNX Runtime with its defaults on the source file: what every speed-up is against."""
    cpu: CpuOffer
    variants: list[Variant]
    calibration: Calibration | None
    precision: Precision | None
    buckets: Buckets | None
    environment: EnvironmentLock
    notes: list[str]
    conclusion: str = ""
    """What to serve, in one sentence."""
    stamp: Stamp


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What goes with one shipped variant."""

    variant: Variant
    source: str
    source_sha256: str
    floor: str
    calibration_sha256: str | None
    calibration_inputs: int | None
    inputs: InputSets | None = None
    """``None``: written before sets were told apart."""
    environment: EnvironmentLock
    stamp: Stamp


def sha256_files(paths: Sequence[Path]) -> str:
    """SHA-256 of an artefact: the file's own for one file, else of the files' hashes in the order of their names."""
    if len(paths) == 1:
        return sha256_file(paths[0])
    lines = [f"{sha256_file(path)}  {path.name}\n" for path in sorted(paths, key=lambda path: path.name)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def load_manifest(path: Path) -> Manifest:
    """Read a manifest and check that the files beside it are the ones it speaks of.

    Raises:
        InputError: Not a manifest, or a file is missing or was changed.
    """
    manifest = decode_json(path, Manifest)
    for name, wanted in manifest.variant.files.items():
        if Path(name).name != name:
            raise InputError(f"{path}: variant.files: '{name}' is not a file name.")
        found = sha256_file(path.parent / name)
        if found != wanted:
            raise InputError(
                f"{path.parent / name}: its SHA-256 is {found[:12]}..., the manifest says {wanted[:12]}... "
                "Run `loadslice squeeze` again."
            )
    return manifest
