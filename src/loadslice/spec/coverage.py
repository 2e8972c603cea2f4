"""Where each node of a model runs on a device, who says so, and what the border between device and host costs.

Three kinds of source answer: a cited operator table, a user's own table of the same form, and the vendor's compiler.
Every fact carries its source and version. What no source covers is ``unknown``, never "supported".
"""

from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml

Place = Literal["device", "host", "load", "unknown"]
"""``load``: done once when the model is loaded, so that no device runs it."""

FactBasis = Literal["measured", "stated", "derived"]
CoverageBasis = Literal["compiler", "table"]


class OperatorRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Operators that run in one place; of a fact set's rules the first that fits a node decides."""

    ops: list[str]
    place: Literal["device", "host"]
    reason: str | None = None
    """Why not on the device, in the source's words."""
    domain: str = "ai.onnx"
    dtypes: list[str] = []
    """Element types of the first input, in ONNX's lower-case names; empty: any."""
    rank_min: int = 0
    rank_max: int = 64
    attributes: dict[str, list[int | float | str]] = {}
    """Attribute name to the values the fact holds for."""


class FactSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules that one source, at one version, vouches for."""

    source: str
    version: str
    basis: FactBasis
    method: str | None = None
    opset_max: int | None = None
    """The latest version of the standard operators that the facts hold for."""
    rules: list[OperatorRule]
    fused: dict[str, str] = {}
    """Patterns (`loadslice.graph.rewrites.patterns`) that the device runs whole, and what they become there."""


class OperatorTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of one target's operators, best source first."""

    target: str
    title: str
    devices: dict[str, str] = {}
    """Devices of the catalogue, and other names, that it holds for; each with the vendor's compiler's target for it."""
    static_shapes: bool = True
    """Only tensors of fixed shape run on it."""
    unlisted: Literal["host", "unknown"] = "unknown"
    """An operator no fact names; ``host`` only where the source claims to be complete."""
    facts: list[FactSet]
    notes: list[str] = []


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """One node and where it runs."""

    node: str
    op: str
    on: Place
    reason: str | None = None
    source: str | None = None
    segment: int | None = None
    """Which of the device's segments, from 0 in execution order."""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that crosses the border, in one direction, once a run."""

    tensor: str
    direction: Literal["to_device", "to_host"]
    segment: int
    bytes: int | None


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a table places otherwise than the compiler, which wins."""

    node: str
    op: str
    table: Place
    table_source: str | None
    compiler: Place
    compiler_reason: str | None


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A rewrite and what coverage it buys, judged by the same source as the model itself."""

    rewrite: str
    """Name for `loadslice rewrite --pass`; several are joined by '+', in that order."""
    changes: int
    """Nodes it changes."""
    removes: list[str]
    """Nodes that no source put on the device and that are gone or on it now."""
    supported_nodes_share: float | None
    supported_flops_share: float | None
    segments: int | None
    cuts: int | None
    transfer_bytes: int | None
    saves_transfer_bytes: int | None
    max_abs_diff: float | None
    """Against the model itself in ONNX Runtime, on random inputs; ``None``: not run."""
    source: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one target.

    Shares count nodes that run each time; work done at load is in neither part. A node of unknown place does not count
    as supported, so with ``unknown_nodes`` above 0 the shares are lower bounds and the border is not known.
    """

    target: str
    basis: CoverageBasis
    source: str
    supported_nodes_share: float | None
    supported_flops_share: float | None
    unknown_nodes: int
    segments: int | None
    """Parts that run on the device without a break."""
    cuts: int | None
    """Tensors copied across the border inside the model, counted once per direction and segment; the model's own inputs
    and outputs, which cross in any case, are not among them."""
    transfer_bytes: int | None
    """Their bytes in one run."""
    transfers: list[Transfer]
    nodes: list[NodePlace]
    notes: list[str] = []


def load_table(path: Path) -> OperatorTable:
    """Read and check one operator table.

    Raises:
        InputError: Not a table, or a fact without its source and version.
    """
    table = decode_yaml(path, OperatorTable)
    if not table.target or any(not (char.isalnum() or char in "-._") for char in table.target):
        raise InputError(f"{path}: target '{table.target}' must be letters, digits, '-', '.' and '_'.")
    if not table.facts:
        raise InputError(f"{path}: facts: no facts in it.")
    for place, facts in enumerate(table.facts):
        for field in ("source", "version"):
            if not getattr(facts, field).strip():
                raise InputError(
                    f"{path}: facts[{place}].{field}: a fact needs its source and the version it holds for."
                )
        for index, rule in enumerate(facts.rules):
            if not rule.ops:
                raise InputError(f"{path}: facts[{place}].rules[{index}].ops: no operators in it.")
            if rule.rank_min > rule.rank_max:
                raise InputError(f"{path}: facts[{place}].rules[{index}]: rank_min is above rank_max.")
    return table
