"""Where a table and the compiler disagree, and which rewrites would bring fallbacks onto the device."""

from collections.abc import Callable, Mapping, Sequence

import onnx

from loadslice.graph.rewrites import Rewrite, apply, available
from loadslice.graph.rewrites.opset import LiftOpset
from loadslice.graph.rewrites.proof import prove
from loadslice.graph.rewrites.shapes import StaticShapes
from loadslice.spec.coverage import Coverage, Disagreement, Remedy
from loadslice.spec.errors import InputError, MissingExtraError
from loadslice.spec.rewrite import Proof

LIFTS = (17, 20)
"""Opsets that other rewrites need."""

Judge = Callable[[onnx.ModelProto], Coverage | None]
"""Coverage of a model; ``None`` where the source will not take it."""


def disagreements(table: Coverage, compiler: Coverage) -> list[Disagreement]:
    """Nodes that the two place differently; what a table does not know is no disagreement."""
    found = []
    for said, done in zip(table.nodes, compiler.nodes, strict=True):
        if {said.on, done.on} == {"device", "host"}:
            found.append(
                Disagreement(
                    node=said.node,
                    op=said.op,
                    table=said.on,
                    table_source=said.source,
                    compiler=done.on,
                    compiler_reason=done.reason,
                )
            )
    return found


def remedies(
    model: onnx.ModelProto, before: Coverage, shapes: Mapping[str, list[int]], judge: Judge, *, seed: int = 0
) -> list[Remedy]:
    """Rewrites that leave less to the host, most saved first.

    Each is tried on the model, alone or after the opset it needs, and the result is put to the same judge.

    Args:
        model: With its weights in it.
        before: Its coverage by that judge.
        shapes: Of open inputs.
        judge: Coverage of a model, by the same source.
        seed: Of the random inputs that prove the rewrite.
    """
    if not _elsewhere(before):
        return []
    found = []
    for rewrite in available(shapes):
        if isinstance(rewrite, LiftOpset):
            continue
        attempt = _apply_with_lift(rewrite, model)
        if attempt is None:
            continue
        names, after, changes, tolerance = attempt
        if not isinstance(rewrite, StaticShapes) and not _touches(before, after):
            continue
        coverage = judge(after)
        if coverage is None:
            continue
        # A rewrite into an operator nobody knows about is not evidence of anything.
        known = coverage.unknown_nodes <= before.unknown_nodes
        if known and (_elsewhere(coverage) < _elsewhere(before) or (coverage.cuts or 0) < (before.cuts or 0)):
            proof = _proof(model, after, shapes, seed)
            # What `loadslice rewrite` would refuse to write is no remedy.
            if proof is None or (proof.relative or 0.0) <= tolerance:
                difference = None if proof is None else proof.max_abs_diff
                found.append(_remedy(names, changes, before, coverage, difference))
    return sorted(found, key=lambda remedy: -len(remedy.removes))


def _apply_with_lift(rewrite: Rewrite, model: onnx.ModelProto) -> tuple[str, onnx.ModelProto, int, float] | None:
    """A rewrite applied, on the model as it is or lifted; ``None`` when it is none for this model."""
    lifts: Sequence[Rewrite | None] = [None, *(LiftOpset(version) for version in LIFTS)]
    for lift in lifts:
        try:
            start = model if lift is None else apply(lift, model).model
            if rewrite.requires(start) is not None:
                continue
            result = apply(rewrite, start)
        except InputError:  # this opset cannot be reached; the next may
            continue
        names = rewrite.name if lift is None else f"{lift.name}+{rewrite.name}"
        return names, result.model, result.changes, result.tolerance
    return None


def _touches(before: Coverage, after: onnx.ModelProto) -> bool:
    """A node that no source puts on the device is gone; else asking a compiler again is time wasted."""
    left = {node.name or next((name for name in node.output if name), node.op_type) for node in after.graph.node}
    return any(node.on in ("host", "unknown") and node.node not in left for node in before.nodes)


def _elsewhere(coverage: Coverage) -> int:
    """Nodes that no source puts on the device."""
    return sum(1 for node in coverage.nodes if node.on in ("host", "unknown"))


def _proof(before: onnx.ModelProto, after: onnx.ModelProto, shapes: Mapping[str, list[int]], seed: int) -> Proof | None:
    try:
        return prove(before, after, shapes, seed=seed, runs=1)
    except (InputError, MissingExtraError):  # it cannot be run here: no shapes, no runtime, an operator of the vendor's
        return None


def _remedy(names: str, changes: int, before: Coverage, after: Coverage, difference: float | None) -> Remedy:
    left = {node.node for node in after.nodes if node.on in ("host", "unknown")}
    saved = (
        before.transfer_bytes - after.transfer_bytes
        if before.transfer_bytes is not None and after.transfer_bytes is not None
        else None
    )
    return Remedy(
        rewrite=names,
        changes=changes,
        removes=[n.node for n in before.nodes if n.on in ("host", "unknown") and n.node not in left],
        supported_nodes_share=after.supported_nodes_share,
        supported_flops_share=after.supported_flops_share,
        segments=after.segments,
        cuts=after.cuts,
        transfer_bytes=after.transfer_bytes,
        saves_transfer_bytes=saved,
        max_abs_diff=difference,
        source=after.source,
    )
