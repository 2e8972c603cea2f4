"""Parts of models as stages: what a pipeline file names by tensors, cut out before anything is loaded.

The serving room knows models only as files. So whoever opens a pipeline has its slices, and the halves of operators
that two engines share by channel, written as models of their own: into the user's cache, under the hash of what they
were made from, so that the next start finds them.
"""

import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx

from loadslice.graph.cuts import CALLER, Flow, flow, legal_cuts
from loadslice.graph.load import load
from loadslice.graph.order import reads
from loadslice.graph.shapes import infer, model_inputs
from loadslice.graph.slicing import slice_model
from loadslice.graph.split import SPLIT_OPS, channels, half_models, split_node
from loadslice.graph.steps import Body
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolve_model, sha256_file, write_bytes
from loadslice.spec.pipeline import Pipeline, SplitEngine, Stage

CUTS_NAMED = 5
"""Legal cuts that a refusal names."""


def prepared(pipeline: Pipeline, folder: Path) -> Pipeline:
    """The pipeline with every part of a model as a file; without parts it comes back as it is.

    Args:
        pipeline: Checked.
        folder: Where its file stands.

    Raises:
        InputError: A tensor that the model does not have, parts that do not make a whole, or an operator that two
            engines cannot share.
    """
    stages = list(pipeline.stages)
    first = 0
    while first < len(stages):
        last = first
        while last + 1 < len(stages) and _is_part(stages[last]) and stages[last + 1].model == stages[first].model:
            last += 1
        if _is_part(stages[first]):
            stages[first : last + 1] = _cut(stages[first : last + 1], folder)
        first = last + 1
    cut = msgspec.structs.replace(pipeline, stages=stages)
    engines = {
        name: _halved(name, engine, cut, folder)
        if isinstance(engine, SplitEngine) and engine.by == "channel"
        else engine
        for name, engine in cut.engines.items()
    }
    return msgspec.structs.replace(cut, engines=engines)


def carries(
    inputs: Sequence[Sequence[str]], outputs: Sequence[Sequence[str]], answer: Sequence[str]
) -> list[list[str]]:
    """What must pass each slice by, for a later one or the answer.

    Args:
        inputs: Tensors that each slice reads.
        outputs: Tensors that each slice gives.
        answer: Tensors that the last one must leave behind.
    """
    later = list(dict.fromkeys(answer))
    found: list[list[str]] = []
    for reads_here, gives_here in zip(reversed(inputs), reversed(outputs), strict=True):
        found.append([name for name in later if name not in gives_here])
        later = list(dict.fromkeys([*reads_here, *found[-1]]))
    return found[::-1]


def _is_part(stage: Stage) -> bool:
    return stage.from_ is not None or stage.to is not None


def _cut(stages: list[Stage], folder: Path) -> list[Stage]:
    """Consecutive stages of one model, each with a file of its own."""
    model_file = stages[0].model
    assert model_file is not None
    path = resolve_model(model_file, folder)
    model = load(path, weights=True)
    body = infer(model, {})
    graph = flow(body)
    _check_tensors(stages, graph, path)
    _check_chain(stages, path)
    made: set[str] = set()
    models: list[onnx.ModelProto] = []
    for stage in stages:
        ops = _ops_between(stage, graph, made)
        part = slice_model(model, body, body, graph, ops, stage.name)
        answers = {info.name for info in model.graph.output}
        kept = [info for info in part.graph.output if info.name == stage.to or (info.name in answers - made)]
        del part.graph.output[:]
        part.graph.output.extend(kept)
        made.update(info.name for info in kept)
        models.append(part)
    missing = [info.name for info in model.graph.output if info.name not in made]
    if missing and stages[-1].to is None:
        raise InputError(f"{path}: no stage computes its output '{missing[0]}'. Leave out `to` of the last stage.")
    inputs = [[info.name for info in model_inputs(part.graph)] for part in models]
    outputs = [[info.name for info in part.graph.output] for part in models]
    answer = [info.name for info in model.graph.output if info.name in made] if stages[-1].to is None else outputs[-1]
    by = carries(inputs, outputs, answer)
    source = sha256_file(path)
    return [
        msgspec.structs.replace(
            stage,
            model=str(_kept(part, f"{source}:{stage.from_}:{stage.to}:{sorted(out)}", f"{path.stem}-{stage.name}")),
            from_=None,
            to=None,
            carry=list(dict.fromkeys([*stage.carry, *carry])),
        )
        for stage, part, carry, out in zip(stages, models, by, outputs, strict=True)
    ]


def _check_tensors(stages: Sequence[Stage], graph: Flow, path: Path) -> None:
    made = {edge.name for edge in graph.edges if edge.maker != CALLER}
    for stage in stages:
        for key, name in (("from", stage.from_), ("to", stage.to)):
            if name is not None and name not in made:
                raise InputError(f"stage '{stage.name}'.{key}: no operator of {path} makes '{name}'. {_advice(graph)}")


def _check_chain(stages: Sequence[Stage], path: Path) -> None:
    for before, after in itertools.pairwise(stages):
        if before.to is None or after.from_ != before.to:
            raise InputError(
                f"stages '{before.name}' and '{after.name}': parts of {path.name} follow one another; "
                f"'{after.name}'.from must be '{before.name}'.to ({before.to or 'not given'})."
            )


def _ops_between(stage: Stage, graph: Flow, made: set[str]) -> list[int]:
    """Operators that compute a stage's end out of its beginning and the model's inputs, in order.

    Raises:
        InputError: The end does not depend on the beginning.
    """
    maker = {edge.name: edge.maker for edge in graph.edges}
    after = _descendants(graph, stage.from_)
    ends = [
        edge.name for edge in graph.edges if CALLER in edge.readers and edge.maker != CALLER and edge.name not in made
    ]
    wanted = [stage.to] if stage.to is not None else [name for name in ends if maker[name] in after]
    found: set[int] = set()
    open_ends = [maker[name] for name in wanted]
    while open_ends:
        op = open_ends.pop()
        if op in found:
            continue
        found.add(op)
        makers = {maker.get(name, CALLER) for name in reads(graph.ops[op]) if name != stage.from_}
        open_ends += [one for one in makers if one != CALLER]
    if not found or (stage.from_ is not None and not found & after):
        raise InputError(f"stage '{stage.name}': '{stage.to}' does not depend on '{stage.from_}'. {_advice(graph)}")
    return sorted(found)


def _descendants(graph: Flow, start: str | None) -> set[int]:
    """Operators that depend on a tensor; all of them where there is none."""
    if start is None:
        return set(range(len(graph.ops)))
    found: set[int] = set()
    known = {start}
    for op, step in enumerate(graph.ops):
        if known.intersection(reads(step)):
            found.add(op)
            known.update(step.node.output)
    return found


def _advice(graph: Flow) -> str:
    names = [graph.edges[cut.main].name for cut in legal_cuts(graph)]
    step = max(1, len(names) // CUTS_NAMED)
    return f"Legal cuts are at {', '.join(names[::step][:CUTS_NAMED]) or 'no tensor'}."


def _halved(name: str, engine: SplitEngine, pipeline: Pipeline, folder: Path) -> SplitEngine:
    """An engine that shares operators by channel, with the halves of its models as files."""
    halves = {}
    for stage in pipeline.stages:
        if name in stage.engine_names and stage.model is not None:
            path = resolve_model(stage.model, folder)
            halves[str(path)] = _halves(stage, path)
    return msgspec.structs.replace(engine, halves=halves)


def _halves(stage: Stage, path: Path) -> tuple[str, str, int]:
    model = load(path, weights=True)
    nodes = [step.node for step in flow(infer(model, {})).ops]
    if len(nodes) != 1 or nodes[0].op_type not in SPLIT_OPS:
        raise InputError(
            f"stage '{stage.name}'.engines: by channel two engines share one {' or '.join(SPLIT_OPS)}; {path.name} has "
            f"{len(nodes)} operators. Cut it out with `from` and `to`, or split by batch."
        )
    node = nodes[0]
    if not node.name:
        node.name = "shared"
    found = channels(model, node.name)
    first = found.units // 2 // found.step * found.step
    whole = split_node(model, node.name, first, "channel")
    body: Body = infer(whole, {})
    axis = next(a.i for n in whole.graph.node if n.op_type == "Concat" for a in n.attribute if a.name == "axis")
    output = model.graph.output[0].name
    files = []
    for half, part in enumerate(half_models(whole, body, body, node.name)):
        _rename_output(part, output)
        files.append(str(_kept(part, f"{sha256_file(path)}:half{half}", f"{path.stem}-half{half}")))
    return files[0], files[1], axis


def _rename_output(model: onnx.ModelProto, name: str) -> None:
    """Both halves give what the whole gives, under its name."""
    (info,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = [name if one == info.name else one for one in node.output]
    info.name = name


def _kept(model: onnx.ModelProto, made_from: str, name: str) -> Path:
    """The file of a model in the user's cache; made from the same, it is there already."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loadslice" / "slices"
    path = root / hashlib.sha256(made_from.encode()).hexdigest()[:24] / f"{name}.onnx"
    if not path.is_file():
        try:
            write_bytes(path, model.SerializeToString())
        except ValueError as error:
            raise InputError(f"{name}: is more than a protobuf file can hold. Cut the model smaller.") from error
    return path
