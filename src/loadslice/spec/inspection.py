"""What `inspect` says about a model: work, bytes, memory, and where a device's roofline puts them.

Conventions, once for all numbers here:

- One multiply-accumulate is two FLOPs. Every other scalar operation of an operator's defining formula is one, a
  transcendental (exp, erf, tanh, sqrt) included. Integer operators count like floating-point ones.
- ``bytes`` is unfused traffic: each node reads its inputs once and writes its outputs once, weights included. A runtime
  that fuses moves less, so ``intensity_flop_per_byte`` is a lower bound.
- Work on constants alone is done once at load and counts nothing per run.
- Unknown is ``None``, never 0.
"""

from typing import Literal

import msgspec

from loadslice.spec.coverage import CoverageBasis, Disagreement, NodePlace, Remedy, Transfer
from loadslice.spec.latency import ModelError

Fit = Literal["onchip", "device", "no"]
Bound = Literal["compute", "memory"]


class DynamicInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input whose shape the file leaves open."""

    name: str
    dtype: str
    shape: list[int | str | None] | None
    """As the file has it: a number, a symbol, or ``None`` for each dimension; ``None``: even the rank is open."""
    given: list[int] | None = None
    """The shape this inspection was made at."""


class OpCount(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of one operator type, those inside control flow included."""

    type: str
    count: int
    flops: int | None
    """Per run of the model; ``None`` when the cost of any of them is unknown."""
    bytes: int | None


class UnknownOp(msgspec.Struct, frozen=True, kw_only=True):
    """Operators whose cost is not in the totals."""

    type: str
    count: int
    reason: str


class NodeCost(msgspec.Struct, frozen=True, kw_only=True):
    """One node's cost over one run of the model."""

    name: str
    op: str
    scope: str = ""
    """Path of the subgraph that holds the node, for instance ``If_3/then_branch``; empty at the top."""
    times: int | None
    """Executions per run: 0 for work on constants and for a branch not taken; ``None``: known only at run time."""
    macs: int | None
    flops: int | None
    bytes: int | None
    weight_bytes: int
    """Stored bytes of the weights it reads; part of ``bytes``."""
    output_shapes: list[list[int | None] | None]
    reason: str | None = None
    """Why a cost is unknown."""

    @property
    def intensity_flop_per_byte(self) -> float | None:
        """FLOPs per byte moved; ``None`` where either is unknown or nothing moves."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None


class Unsupported(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a device cannot run, by a cited source."""

    node: str
    op: str
    reason: str
    source: str


class TableFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The same shares by an operator table."""

    supported_nodes_share: float | None
    supported_flops_share: float | None
    unknown_nodes: int
    source: str


class NodeTime(msgspec.Struct, frozen=True, kw_only=True):
    """One node alone on a device's roofline: modelled."""

    name: str
    time_ms: float | None
    """max(FLOPs / peak, bytes / bandwidth)."""
    bound: Bound | None
    """Which of the two it is; ``None``: unknown, or no work."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """One call on a device that is not here: the roofline calibrated on measurements, with all that comes on top."""

    time_ms: float
    low_ms: float
    """Between this and ``high_ms`` lie 95 of 100 such models and devices, by `error`."""
    high_ms: float
    parts_ms: dict[str, float]
    """``compute``, ``launch`` (of its kernels), ``copy`` (over the host's link), ``fixed`` (driver, of each call)."""
    error: ModelError
    sources: list[str]
    """Of the measurements that work over the roof, launches and the fixed part are fitted on."""


class DeviceFit(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one device. Operator support is ``None`` where no operator table or compiler could be asked.

    Shares, segments, cuts and transfers are those of `loadslice.spec.coverage.Coverage`.
    """

    supported_nodes_share: float | None = None
    supported_flops_share: float | None = None
    unsupported: list[Unsupported] | None = None
    segments: int | None = None
    cuts: int | None = None
    transfer_bytes: int | None = None
    source: str | None = None
    """Where operator support comes from, with its version."""
    basis: CoverageBasis | None = None
    """A compiler, where one is installed, wins over the table."""
    unknown_nodes: int | None = None
    """Nodes that no source covers; above 0 the shares are lower bounds and the border is unknown."""
    transfers: list[Transfer] = []
    placement: list[NodePlace] = []
    """Every node that is not a Constant, in the file's order."""
    by_table: TableFigures | None = None
    """What the operator table says beside the compiler."""
    disagreements: list[Disagreement] = []
    remedies: list[Remedy] = []
    coverage_notes: list[str] = []
    bound: Bound | None
    fits: Fit | None
    """Weights and peak activations at ``precision``: in on-chip memory, in the device's memory, or not at all."""
    kv_tokens: int | None = None
    """Tokens of KV cache that fit in its memory beside weights and activations; ``None``: no cache, or unknown."""
    precision: str | None
    """Precision the figures below hold at: the model's own where the device states a peak for it."""
    needs_conversion: bool | None = None
    """The device states no peak for the model's own precision; its bytes are scaled to ``precision``."""
    peak_flop_per_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    ridge_flop_per_byte: float | None = None
    """Intensity from which the device is bound by compute."""
    attainable_flop_per_s: float | None = None
    """min(peak, bandwidth x the model's intensity)."""
    bound_if_fused: Bound | None = None
    """The same at the other end, where only weights, inputs and outputs move. A real runtime lies between the two."""
    time_ms_modelled: float | None = None
    """Sum over nodes of max(FLOPs / peak, bytes / bandwidth): unfused, no launches, no overlap. Not a measurement."""
    time_ms_modelled_if_fused: float | None = None
    """max(FLOPs / peak, compulsory bytes / bandwidth): nothing on this roofline is faster."""
    estimate: Estimate | None = None
    """What a call would take, launches, copies and driver included, and how far off that may be; ``None``: it cannot be
    modelled, or nobody asked."""
    figures: dict[str, str] = {}
    """Source and basis of each device figure used."""
    nodes: list[NodeTime] = []
    """In the order of `Inspection.nodes_cost`."""


class LiveTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An activation that is in memory at the peak."""

    name: str
    bytes: int


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Activations over one run, as ONNX Runtime's sequential executor keeps them; kernels' scratch is not in it."""

    input_bytes: int
    """The model's inputs: the caller's, held for the whole run."""
    arena_bytes: int
    """Peak of everything the run itself allocates, outputs included."""
    peak_bytes: int
    """Both."""
    at: str | None
    """The node during which the peak is reached."""
    tensors: list[LiveTensor]
    """The largest that are in memory then."""
    unshared_bytes: int
    """If nothing were freed or shared."""


class ShapeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Inferred shapes against those one real run produced."""

    runtime: str
    tensors: int
    """Compared; tensors inside control flow are not seen."""
    disagree: list[str]


class KvCache(msgspec.Struct, frozen=True, kw_only=True):
    """What a decoder keeps of the tokens it has seen: inputs that come back a position longer for each new token."""

    inputs: list[str]
    axis: int
    """That grows, of the first of them."""
    bytes_per_token: int
    """All of them together, for one sequence."""
    bytes: int | None
    """At the given shapes; part of the inputs of the memory plan, and once more, longer, of its outputs."""


class BucketChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best that so many buckets can do."""

    buckets: list[int]
    padding_share: float
    """Padding as a share of the recorded sizes that fit: 0.1 is a tenth more work than asked for."""


class SizeUse(msgspec.Struct, frozen=True, kw_only=True):
    """One open dimension of one input in the recorded traffic."""

    input: str
    axis: int
    symbol: str | None
    """As the file names it."""
    source: str
    """Where its sizes were read from: a column of a trace, or the recorded shapes."""
    requests: int
    min: int
    p50: int
    p99: int
    max: int
    distinct: int
    chosen: BucketChoice
    """The fewest buckets with no more padding than allowed, or the most that were allowed."""
    outside_share: float
    """Requests above the largest bucket."""
    outside_share_later: float | None
    """The same for the later half of the traffic with buckets from the earlier half; ``None``: too few requests."""
    choices: list[BucketChoice]
    """From one bucket on."""


class TrafficSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Which sizes recorded traffic asks a model's open inputs for."""

    traffic: str
    requests: int
    cover: float
    """Share of the requests that the largest bucket of each dimension must hold."""
    padding_max: float
    sizes: list[SizeUse]
    shapes: int
    """Static shapes to build: the product of the dimensions' buckets; dimensions of one symbol count once."""
    outside_share: float
    """Requests that any dimension has no bucket for."""
    unread: list[str] = []
    """Open dimensions that the traffic says nothing of, as ``name[axis]``."""


class KernelGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that were timed, and the nodes of the file that they stand for."""

    kernels: list[str]
    """Operator types of the runtime's kernels, in execution order."""
    nodes: list[str]
    """The file's nodes they cover; several: the runtime fused them, and only their sum is measured."""
    time_ms: float
    """Sum over the kernels of the midmean over runs."""
    roofline_ms: float | None
    """Sum over the nodes of max(FLOPs / peak, bytes / bandwidth) on this machine, unfused: modelled."""
    bound: Bound | None
    """What the larger part of that roofline time is bound by."""
    flops: int | None
    bytes: int | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Every kernel of one model timed on this machine, through the runtime's own profiler."""

    runtime: str
    optimised: bool
    """The runtime fused and laid out as it does by default; otherwise its kernels are the file's nodes."""
    threads: int
    runs: int
    """After ``warmup`` runs that do not count; figures are midmeans: means of the middle half of the runs."""
    warmup: int
    run_ms: float
    """One run as a whole, profiler on."""
    kernels_ms: float
    """Sum of the groups below; the rest of a run is the runtime between its kernels."""
    unrecognised_ms: float
    """Of the kernels that cover no node of the file."""
    groups: list[KernelGroup]
    """In execution order."""
    ops_ms: dict[str, float]
    """By the file's operator types, longest first; a group's time is divided as in `op-times.json`."""
    not_run: list[str]
    """Nodes that no kernel covers: the runtime removed them."""
    arena_bytes: int | None
    """Most that the run held of what it allocated itself, between kernels; ``None``: the runtime does not say."""
    roofline: str
    """Whose roofline the modelled times are of."""
    roofline_notes: list[str] = []
    """What its peak and bandwidth were measured beside, where the machine was busy then."""
    inputs: str
    """What was fed: drawn numbers, or a file."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The document `inspect --json` prints."""

    model: str
    sha256: str
    opset: int | None
    """Version of the default operator set."""
    opsets: dict[str, int]
    nodes: int
    """Nodes of the file, those of subgraphs included, local functions expanded."""
    parameters: int
    """Elements of all stored tensors: initializers and Constant nodes, wherever they are."""
    weight_bytes: int
    weight_dtypes: dict[str, int]
    """Stored bytes by element type."""
    precision: str | None
    """Element type the heavy operators compute in, by FLOPs."""
    shapes: dict[str, list[int]]
    """Input shapes the figures below hold at."""
    macs: int | None
    flops: int | None
    """Of one run. ``None`` while a dynamic input has no shape; with ``complete`` false, at least this many."""
    bytes_moved: int | None
    compulsory_bytes: int | None
    """Weights, inputs and outputs, once each: what moves however well a runtime fuses."""
    intensity_flop_per_byte: float | None
    peak_activation_bytes: int | None
    """Largest sum of live activation bytes over a run, inputs and outputs included, weights excluded."""
    memory: MemoryPlan | None = None
    """What is alive at that peak, and which part of it the runtime allocates; ``None``: a size is unknown."""
    kv_cache: KvCache | None = None
    """``None``: the model keeps none."""
    complete: bool
    """Every node's cost is known."""
    dynamic_inputs: list[DynamicInput]
    ops: list[OpCount]
    unknown_ops: list[UnknownOp]
    notes: list[str] = []
    devices: dict[str, DeviceFit] = {}
    nodes_cost: list[NodeCost] = []
    """In execution order; Constant nodes left out."""
    shape_check: ShapeCheck | None = None
    traffic: TrafficSizes | None = None
    """Only with `--traffic`."""
    measured: Measured | None = None
    """Only with `--measure`."""
    basis: str = "modelled"
    conventions: str = (
        "1 multiply-accumulate = 2 FLOPs; every other scalar operation = 1; "
        "bytes are unfused reads and writes, weights included"
    )
