"""Slices of a model: operator times that a plan starts from, and the plan.

A plan compares assignments of one model's operators to devices. Its figures are sums of operator times and transfers:
``measured`` where a times file gives them, ``modelled`` from a roofline otherwise; a link that nobody gave is
``assumed``. Nothing overlaps within a request. Unknown is ``null``, never 0.
"""

import math
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.coverage import CoverageBasis
from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json
from loadslice.spec.latency import ModelError

SCHEMA = "slices/1"
TIMES_SCHEMA = "op-times/1"

MS_MAX = 1e7
"""Nearly three hours; a longer operator is a slip of units."""

Objective = Literal["latency", "throughput"]
TimesBasis = Literal["measured", "modelled", "emulated"]
LinkBasis = Literal["measured", "stated", "assumed", "host"]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Between one device and the host's memory; every transfer goes through that memory."""

    bytes_per_s: float | None
    """``null``: the device is the host, nothing is moved."""
    sync_us: float
    """Paid for each transfer, whatever its size: launch, wait, wake."""
    basis: LinkBasis
    source: str | None = None


class DeviceTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times of a model's nodes on one device."""

    basis: TimesBasis
    source: str
    nodes_ms: dict[str, float | None]
    """Node name (or, where names repeat or are missing, its first output) to time; ``null``: it cannot run there."""
    link: Link | None = None
    error: ModelError | None = None
    """Of modelled times; ``null``: measured, or nobody says."""
    fitted_on: list[str] = []
    """Sources of the measurements that modelled times and launches are fitted on."""


class OpTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A times file: how long each node of one model takes on each device, at one set of shapes."""

    model_sha256: str
    shapes: dict[str, list[int]]
    """Input name to the shape the times hold at."""
    devices: dict[str, DeviceTimes]
    stamp: Stamp | None = None


class DeviceBasis(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan knows of a device."""

    basis: TimesBasis
    source: str
    link: Link
    error: ModelError | None = None
    """How far off its times may be; ``null``: measured, or nobody says."""
    times_95: tuple[float, float] | None = None
    """Factors on its times that the truth lies between 95 times of 100, by `error`."""
    fitted_on: list[str] = []
    """As of `DeviceTimes`."""


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Operators of one type that a device does not run."""

    op: str
    count: int
    ms: float
    """Of all of them on the fastest device that runs each, copies not included."""
    reason: str


class DeviceCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Who says what a device runs, and what that leaves to the others."""

    basis: CoverageBasis
    source: str
    fallback_ops: int
    fallback_ms: float
    """Sum of ``fallbacks``; the copies it causes are in each assignment's own figures."""
    fallbacks: list[Fallback]
    """Longest first."""


class DeviceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One device's part of one request."""

    ops: int
    compute_ms: float
    transfer_ms: float
    """Over its link, synchronisation included."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One way to place the operators, and what it costs."""

    name: str
    how: str
    latency_ms: float | None
    """One request alone; ``null``: this way cannot run."""
    bottleneck_ms: float | None
    """Between requests in a full pipeline: the busiest device with its link."""
    compute_ms: float | None = None
    copy_ms: float | None = None
    """Transfers without synchronisation."""
    sync_ms: float | None = None
    slices: int | None = None
    cuts: int | None = None
    """Changes of device."""
    transfers: int | None = None
    transfer_bytes: int | None = None
    devices: dict[str, DeviceLoad] = {}
    gap_pct: float | None = None
    """At most this far above the best there is, proven; ``null``: no claim."""
    reason: str | None = None
    """Why it cannot run."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive operators on one device."""

    index: int
    engine: str
    from_: list[str] = msgspec.field(name="from")
    """Tensors it needs: inputs of the model, or made by slices before it."""
    to: list[str]
    """Tensors that later slices or the caller read."""
    ops: int
    first: str
    """Name of its first node."""
    last: str
    compute_ms: float
    transfer_in_ms: float
    """What comes over its device's link for it; a tensor that is there already costs nothing."""
    transfer_out_ms: float
    in_bytes: int | None
    """All of ``from``."""
    out_bytes: int | None
    model: str | None = None
    """File of the slice, beside this document; ``null``: none was written."""
    sha256: str | None = None


class BankPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One way to divide an operator, measured here; medians over rounds in which all ways took turns."""

    first_units: int
    """On the first engine; 0 or all: it runs whole on one of them."""
    first_ms: float | None
    """Its part alone; ``None``: it has none."""
    second_ms: float | None
    together_ms: float
    """Both parts at the same time, divided, waited for and joined; of a whole, its time alone."""
    slower_by: float
    """The slower part while both run, over the slower one alone: what they take from each other."""
    sync_ms: float
    """Of ``together_ms``, starting the second part and waiting beyond the slower one."""
    join_ms: float
    """Of ``together_ms``, copying both parts into one tensor."""


class BankSplit(msgspec.Struct, frozen=True, kw_only=True):
    """One operator shared by two devices (dual bank), each computing a part of its output."""

    node: str
    op: str
    by: Literal["channel", "batch"]
    units: int
    """Output channels or rows."""
    first_units: int
    """Of them on the first device, a multiple of ``tile`` unless all."""
    tile: int
    devices: list[str]
    split_ms: float
    """max(first part, second part) + synchronisation + merge."""
    alone_ms: float
    """On the faster of the two devices."""
    basis: Literal["measured", "modelled"] = "modelled"
    """Of the two times. ``modelled``: a part takes the whole's time in proportion to its tiles."""
    curve: list[BankPoint] = []
    """By units of the first engine, where it was measured: the series that the division was chosen by. ``split_ms`` and
    ``alone_ms`` are of a second series, of that division alone."""


class StitchCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The slices one after another against the whole model, on drawn inputs."""

    runtime: str
    runs: int
    bit_equal: bool
    max_abs_diff: float | None
    """``null``: not even the shapes are equal, or a value is no number."""
    max_rel_diff: float | None
    """The same as a share of the largest output."""
    seed: int


class SlicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The document `slice --json` prints and `--out` keeps as `slices.json`."""

    model: str
    sha256: str
    shapes: dict[str, list[int]]
    objective: Objective
    devices: dict[str, DeviceBasis]
    """Where operator times and links come from."""
    coverage: dict[str, DeviceCoverage] = {}
    """Of devices that an operator table or a compiler speaks for; any other is taken to run everything."""
    ops: int
    """Operators that are placed; what a runtime folds at load is not."""
    legal_cuts: int
    """Places where one main tensor crosses, masks and positions aside."""
    assignments: list[Assignment]
    chosen: str
    """Name of the assignment that the slices below are of."""
    slices: list[Slice]
    fragmentation_ms: float | None
    """Copies and synchronisation of the runtimes' greedy rule; ``null``: it cannot run."""
    greedy_excess_pct: float | None
    """How much the greedy rule costs above the chosen assignment, at the objective."""
    splits: list[BankSplit] = []
    """Heavy operators that two devices together finish sooner than either alone."""
    stitched: StitchCheck | None = None
    """``null``: no slices were written, or there is no runtime to run them (`notes`)."""
    shared: StitchCheck | None = None
    """The model with its shared operators in halves against the whole."""
    notes: list[str] = []
    stamp: Stamp | None = None


def load_op_times(path: Path) -> OpTimes:
    """Read and check a times file.

    Raises:
        InputError: Unreadable, no devices, or a time or link that cannot be right.
    """
    times = decode_json(path, OpTimes)
    if not times.devices:
        raise InputError(f"{path}: devices: empty. Give the times of the model's nodes on at least one device.")
    for name, device in times.devices.items():
        place = f"{path}: devices.{name}"
        for node, value in device.nodes_ms.items():
            if value is not None and not 0 <= value <= MS_MAX:
                raise InputError(f"{place}.nodes_ms.'{node[:80]}': {value} is not a time from 0 to {MS_MAX:g} ms.")
        if device.link is not None:
            check_link(device.link, f"{place}.link")
    return times


def check_link(link: Link, place: str) -> None:
    """Refuse a link that cannot be right.

    Raises:
        InputError: A bandwidth that is not positive, or a synchronisation time out of range.
    """
    if link.bytes_per_s is not None and not 1e3 <= link.bytes_per_s < math.inf:
        raise InputError(f"{place}.bytes_per_s: {link.bytes_per_s:g} is not a bandwidth; values are in bytes/s.")
    if not 0 <= link.sync_us <= MS_MAX:
        raise InputError(f"{place}.sync_us: {link.sync_us:g} is not a time from 0 to {MS_MAX:g} us.")
