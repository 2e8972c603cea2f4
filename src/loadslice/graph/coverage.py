"""Where each node of a walked model runs on a target: by an operator table, or as its compiler placed it.

Only the top graph is placed. A control-flow node stands for everything inside it, for no NPU here runs one. Constants
are loaded, not run, and are not placed at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadslice.graph.border import border, segments
from loadslice.graph.census import node_costs, total
from loadslice.graph.rewrites.links import Links
from loadslice.graph.rewrites.patterns import PATTERNS
from loadslice.graph.steps import Body, Step
from loadslice.graph.values import dtype_name
from loadslice.spec.coverage import Coverage, CoverageBasis, FactSet, NodePlace, OperatorRule, OperatorTable
from loadslice.spec.toolchain import CompiledNode, CompilerReport

OPEN_SHAPE = "the shape of one of its tensors is open"
_QUANTISE, _DEQUANTISE = "QuantizeLinear", "DequantizeLinear"


@dataclass(slots=True)
class Placed:
    """One step with the place that was found for it."""

    place: str
    reason: str | None = None
    source: str | None = None
    segment: int | None = None


def by_table(body: Body, table: OperatorTable) -> Coverage:
    """Coverage by cited facts.

    Args:
        body: A walked model.
        table: Of one target.

    Returns:
        Its coverage; segments as a greedy partitioner makes them.
    """
    links = Links(body.graph)
    found: list[Placed] = [_by_facts(step, table) for step in body.steps]
    _fuse(found, body, links, table)
    _follow_units(found, body, links)
    parts = segments(links, [placed.place for placed in found])
    for placed, part in zip(found, parts, strict=True):
        placed.segment = part
    sources = ", ".join(dict.fromkeys(facts_source(facts) for facts in table.facts))
    return _coverage(body, links, found, target=table.target, basis="table", source=sources, notes=list(table.notes))


def facts_source(facts: FactSet) -> str:
    """A fact set's source as it is printed: what vouches, at which version, on which basis."""
    return f"{facts.source}, {facts.version} ({facts.basis})"


def _by_facts(step: Step, table: OperatorTable) -> Placed:
    if _at_load(step):
        return Placed("load")
    if table.static_shapes and any(_is_open(value) for value in [*step.inputs, *step.outputs]):
        return Placed("host", OPEN_SHAPE, "fixed shapes only")
    for facts in table.facts:
        if facts.opset_max is not None and not step.node.domain and step.opset > facts.opset_max:
            continue
        rule = next((rule for rule in facts.rules if _fits(rule, step)), None)
        if rule is not None:
            reason = (
                (rule.reason or f"{step.node.op_type} is not among its operators") if rule.place == "host" else None
            )
            return Placed(rule.place, reason, facts_source(facts))
    domain = step.node.domain or "ai.onnx"
    if table.unlisted == "host":
        return Placed(
            "host", f"{domain}::{step.node.op_type} is not in the source's list", facts_source(table.facts[0])
        )
    return Placed("unknown", f"no fact about {domain}::{step.node.op_type} at this type, rank and opset")


def _at_load(step: Step) -> bool:
    """Known before the run: made of stored tensors, or of shapes that are fixed."""
    known = [value.data is not None for name, value in zip(step.node.output, step.outputs, strict=True) if name]
    return step.folded or (bool(known) and all(known))


def _is_open(value: object) -> bool:
    shape = getattr(value, "shape", ())
    return value is not None and (shape is None or None in shape)


def _fits(rule: OperatorRule, step: Step) -> bool:
    node = step.node
    if node.op_type not in rule.ops or (node.domain or "ai.onnx") != rule.domain:
        return False
    first = next((value for value in step.inputs if value is not None), None)
    rank = len(first.shape) if first is not None and first.shape is not None else None
    if rank is not None and not rule.rank_min <= rank <= rule.rank_max:
        return False
    if rule.dtypes and (first is None or dtype_name(first.elem_type) not in rule.dtypes):
        return False
    attributes = step.attributes
    return all(attributes.get(name) in allowed for name, allowed in rule.attributes.items())


def _fuse(found: list[Placed], body: Body, links: Links, table: OperatorTable) -> None:
    """Nodes of a pattern that the device runs whole are on it, whatever is known of each alone."""
    for facts in table.facts:
        opset = next((step.opset for step in body.steps if not step.node.domain), 0)
        if facts.opset_max is not None and opset > facts.opset_max:
            continue
        for name, into in facts.fused.items():
            for match in PATTERNS[name](links) if name in PATTERNS else []:
                if any(found[place].place == "host" and found[place].reason == OPEN_SHAPE for place in match.nodes):
                    continue
                for place in match.nodes:
                    found[place] = Placed("device", f"part of {into}", facts_source(facts))


def _follow_units(found: list[Placed], body: Body, links: Links) -> None:
    """Quantise and dequantise nodes go where the operator between them goes; at the model's edge they stay on the host.

    This is how ONNX Runtime's NPU providers partition a quantised model: a node and its pairs are one unit, and
    quantising the inputs and outputs of the whole model is left to the CPU.
    """
    outputs = {info.name for info in body.graph.output}
    for place, step in enumerate(body.steps):
        if found[place].place == "load" or step.node.op_type not in (_QUANTISE, _DEQUANTISE):
            continue
        if step.node.op_type == _QUANTISE:
            maker = links.maker.get(step.node.input[0])
            units = [] if maker is None else [maker]
        else:
            readers = links.readers[step.node.output[0]]
            units = [] if step.node.output[0] in outputs else readers
        around = [found[unit] for unit in units if body.steps[unit].node.op_type not in (_QUANTISE, _DEQUANTISE)]
        if not around:
            found[place] = Placed("host", "it converts an input or output of the model", found[place].source)
            continue
        best = next((unit for unit in around if unit.place == "device"), around[0])
        found[place] = Placed(best.place, best.reason, best.source)


def by_compiler(body: Body, report: CompilerReport, names: Sequence[str]) -> Coverage:
    """Coverage as the vendor's compiler placed the nodes.

    Args:
        body: The walked model that the compiler was given.
        report: What it said.
        names: The name each node of the top graph had for the compiler, in order.

    Returns:
        Its coverage. A node the compiler does not name was merged away before it saw the graph; it is where the
        neighbour is that it was merged into.
    """
    links = Links(body.graph)
    said = {node.name: node for node in report.nodes}
    found: list[Placed] = []
    for step, name in zip(body.steps, names, strict=True):
        node = said.get(name)
        if node is not None:
            found.append(Placed(node.on, node.reason, report.source, node.segment))
        else:
            found.append(Placed("load" if _at_load(step) else "unknown", None, report.source))
    ours = set(names)
    extra = [node for node in report.nodes if node.name not in ours]
    kept = _edges_on_host(found, body, [node for node in extra if node.on == "host"], report)
    _merge_silent(found, links, report)
    if all(placed.segment is None for placed in found):
        # This compiler does not say what runs without a break; its placement does.
        for placed, part in zip(found, segments(links, [placed.place for placed in found]), strict=True):
            placed.segment = part
    notes = list(report.notes)
    if extra:
        hosted = [node.name for node in extra if node.on == "host"][kept:]
        named = f" ({', '.join(hosted[:3])})" if hosted else ""
        notes.append(f"nodes added by the compiler itself: {len(extra) - kept}, on the host {len(hosted)}{named}")
    return _coverage(body, links, found, target=report.target, basis="compiler", source=report.source, notes=notes)


def _edges_on_host(found: list[Placed], body: Body, hosted: Sequence[CompiledNode], report: CompilerReport) -> int:
    """Find the conversions at the model's edge again that the compiler leaves to the host under a name of its own.

    Returns:
        How many there were.
    """
    inputs = {info.name for info in body.graph.input}
    outputs = {info.name for info in body.graph.output}
    waiting = [node for node in hosted if node.op in (_QUANTISE, _DEQUANTISE)]
    before = len(waiting)
    for place, step in enumerate(body.steps):
        at_edge = not inputs.isdisjoint(step.node.input[:1]) or step.node.output[0] in outputs
        node = next((node for node in waiting if node.op == step.node.op_type), None)
        if found[place].place != "host" and at_edge and node is not None:
            found[place] = Placed("host", node.reason, report.source)
            waiting.remove(node)
    return before - len(waiting)


def _merge_silent(found: list[Placed], links: Links, report: CompilerReport) -> None:
    """Give nodes that vanished before partitioning the place of a neighbour."""
    reason = "merged into its neighbour before partitioning"

    def adopt(place: int, neighbours: list[int]) -> bool:
        known = next((found[n] for n in neighbours if found[n].place in ("device", "host")), None)
        if known is None:
            return False
        found[place] = Placed(known.place, known.reason or reason, report.source, known.segment)
        return True

    def makers(place: int) -> list[int]:
        return [links.maker[name] for name in links.nodes[place].input if name in links.maker]

    def readers(place: int) -> list[int]:
        return [reader for name in links.nodes[place].output for reader in links.readers[name]]

    silent = [place for place, placed in enumerate(found) if placed.place == "unknown"]
    # A dequantise node belongs to the operator that reads it, everything else rather to what it reads. Neighbours may
    # themselves have vanished: forwards for chains after a kept node, then backwards for those before one.
    for place in silent:
        if links.nodes[place].op_type == _DEQUANTISE:
            adopt(place, readers(place))
    for place in silent:
        if found[place].place == "unknown":
            adopt(place, makers(place))
    for place in reversed(silent):
        if found[place].place == "unknown":
            adopt(place, readers(place))


def _coverage(
    body: Body,
    links: Links,
    found: Sequence[Placed],
    *,
    target: str,
    basis: CoverageBasis,
    source: str,
    notes: list[str],
) -> Coverage:
    counted = [
        (step, placed)
        for step, placed in zip(body.steps, found, strict=True)
        if placed.place != "load" and step.node.op_type != "Constant"
    ]
    unknown = sum(1 for _, placed in counted if placed.place == "unknown")
    order = _renumbered(found)
    loaded = [placed.place == "load" for placed in found]
    crossing = None if unknown else border(body, links, [order.get(placed.segment) for placed in found], loaded)
    return Coverage(
        target=target,
        basis=basis,
        source=source,
        supported_nodes_share=_share([(1, placed) for _, placed in counted]),
        supported_flops_share=_share([(_flops(body, step), placed) for step, placed in counted]),
        unknown_nodes=unknown,
        segments=None if unknown else len(order),
        cuts=len(crossing) if crossing is not None else None,
        transfer_bytes=total(transfer.bytes for transfer in crossing) if crossing is not None else None,
        transfers=crossing or [],
        nodes=[
            NodePlace(
                node=step.name,
                op=step.node.op_type,
                on=placed.place,  # type: ignore[arg-type] # one of Place
                reason=placed.reason,
                source=placed.source,
                segment=order.get(placed.segment) if not unknown else None,
            )
            for step, placed in zip(body.steps, found, strict=True)
            if step.node.op_type != "Constant"
        ],
        notes=notes,
    )


def _renumbered(found: Sequence[Placed]) -> Mapping[int | None, int]:
    """Segments in execution order, from 0."""
    order: dict[int | None, int] = {}
    for placed in found:
        if placed.place == "device" and placed.segment is not None:
            order.setdefault(placed.segment, len(order))
    return order


def _flops(body: Body, step: Step) -> int | None:
    """Work of one step, everything inside it included."""
    return total(cost.flops for cost in node_costs(Body(body.graph, [step], body.env), []))


def _share(parts: Sequence[tuple[int | None, Placed]]) -> float | None:
    """The part on the device; ``None`` where a weight is unknown or there is nothing to share out."""
    whole = total(weight for weight, _ in parts)
    ours = total(weight for weight, placed in parts if placed.place == "device")
    return ours / whole if whole and ours is not None else None
