"""Opening an ONNX file nobody vouches for.

Rules: nothing outside the model's folder is ever opened; a tensor's file, offset and length are checked before a byte
of it is read; whatever is wrong is one readable line. A model that passes satisfies `onnx.checker`.

Data with a second hard link is refused, as onnx itself does: it may be a file of somewhere else under a new name.
"""

import contextlib
import math
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper

from loadslice.graph.values import element_bits
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason, resolved

MODEL_BYTES_MAX = 2**31 - 1
"""A protobuf message cannot be larger; bigger models keep their weights in external files."""

SMALL_TENSOR_BYTES = 64 * 1024
"""External tensors up to this size are read at once: shape arithmetic may need their values."""

_RUNTIME_DOMAIN = "com.microsoft"

_RUNTIME_OPS = frozenset({"SimplifiedLayerNormalization", "LayerNormalization", "Gelu", "RMSNormalization"})

DEPTH_MAX = 8
"""Levels of control flow inside control flow. Real exports have one to three; analysis is exponential in it."""

FUNCTION_NODES_MAX = 1_000_000
"""Nodes after local functions are expanded."""


def load(path: Path, *, weights: bool = False) -> onnx.ModelProto:
    """Open and check a model.

    Args:
        path: An `.onnx` file.
        weights: Also read external tensors larger than `SMALL_TENSOR_BYTES` into the model.

    Returns:
        The model, local functions expanded into its graph.

    Raises:
        InputError: Not a readable, valid ONNX model, or one that reaches outside its folder.
    """
    model = _parse(path)
    _check_names(path, model)
    _check_opset(path, model)
    external = [tensor for tensor in _all_tensors(model) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for tensor in external:
        _check_external(tensor, path)
    check_valid(path, model, external=bool(external))
    for tensor in external:
        if weights or stored_bytes(tensor) <= SMALL_TENSOR_BYTES:
            _read_external(tensor, path)
    model = _without_functions(path, model)
    if any(depth > DEPTH_MAX for _, depth in graphs(model.graph)):
        raise InputError(f"{path}: control flow is nested more than {DEPTH_MAX} levels deep.")
    return model


def _parse(path: Path) -> onnx.ModelProto:
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder, not a model. Give the .onnx file inside it.")
        if not path.is_file():
            raise InputError(f"{path}: no such file.")
        size = path.stat().st_size
        if size == 0:
            raise InputError(f"{path}: is empty (0 bytes). Fetch or export the model again.")
        if size > MODEL_BYTES_MAX:
            raise InputError(
                f"{path}: {size} bytes is more than a protobuf file can hold ({MODEL_BYTES_MAX}). "
                "Save it with external data."
            )
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {reason(error)}.") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    except DecodeError as error:
        raise InputError(
            f"{path}: not an ONNX model, or a truncated one ({size} bytes). Fetch or export it again."
        ) from error
    if not model.HasField("graph") or model.ir_version <= 0 or not model.opset_import:
        raise InputError(f"{path}: not an ONNX model (no graph, IR version or operator set in it).")
    return model


def _check_opset(path: Path, model: onnx.ModelProto) -> None:
    """Refuse an operator set of the future: its operators may mean something else than what is known of them here."""
    known = onnx.defs.onnx_opset_version()
    newest = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if newest > known:
        raise InputError(
            f"{path}: opset {newest} is newer than the {known} that onnx {onnx.__version__} knows. Export the model at "
            f"opset {known} or older, or upgrade onnx and onnxruntime."
        )


def _check_names(path: Path, model: onnx.ModelProto) -> None:
    """Refuse names that are not UTF-8: protobuf hands them out as bytes, which no runtime expects."""
    nodes = [node for graph, _ in graphs(model.graph) for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    texts = [text for node in nodes for text in (node.name, node.op_type, node.domain, *node.input, *node.output)]
    texts += [attribute.name for node in nodes for attribute in node.attribute]
    texts += [tensor.name for tensor in _all_tensors(model)]
    for graph, _ in graphs(model.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            texts += [info.name, *(dim.dim_param for dim in info.type.tensor_type.shape.dim)]
    texts += [entry.domain for entry in model.opset_import]
    if any(not isinstance(text, str) for text in texts):
        raise InputError(f"{path}: not an ONNX model: a name in it is not UTF-8. Fetch or export it again.")


def graphs(graph: onnx.GraphProto) -> Iterator[tuple[onnx.GraphProto, int]]:
    """A graph and every subgraph inside it, with their depth; the top is 0."""
    yield graph, 0
    pending = [(inner, 1) for inner in _subgraphs(graph.node)]
    while pending:
        current, depth = pending.pop()
        yield current, depth
        pending.extend((inner, depth + 1) for inner in _subgraphs(current.node))


def _subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def stored_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Tensors whose values the file stores for one graph itself: initializers, sparse values, tensor attributes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _attribute_tensors(graph.node)


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse = [
                *attribute.sparse_tensors,
                *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
            ]
            for tensor in sparse:
                yield tensor.values
                yield tensor.indices


def _all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph, _ in graphs(model.graph):
        yield from stored_tensors(graph)
    for function in model.functions:
        yield from _attribute_tensors(function.node)
        for inner in _subgraphs(function.node):
            for graph, _ in graphs(inner):
                yield from stored_tensors(graph)


def _external_entries(tensor: onnx.TensorProto, path: Path) -> tuple[str, int, int | None]:
    """Location, offset and length of an external tensor, as the file has them."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers: dict[str, int | None] = {"offset": 0, "length": None}
    for key in numbers:
        if key in entries:
            text = entries[key]
            if not (text.isascii() and text.isdigit()) or len(text) > 18:
                raise InputError(
                    f"{path}: tensor '{tensor.name}': external {key} '{text[:40]}' is not a size in bytes."
                )
            numbers[key] = int(text)
    return entries.get("location", ""), numbers["offset"] or 0, numbers["length"]


def _check_external(tensor: onnx.TensorProto, path: Path) -> None:
    """Refuse an external tensor before anything of it is opened."""
    location, offset, length = _external_entries(tensor, path)
    place = f"{path}: tensor '{tensor.name}': external data '{location[:120]}'"
    pure = PurePosixPath(location.replace("\\", "/"))
    if not location or "\0" in location:
        raise InputError(f"{path}: tensor '{tensor.name}': external data without a location.")
    if pure.is_absolute() or PureWindowsPath(location).drive or ".." in pure.parts:
        raise InputError(f"{place} points outside the model's folder. Save the model with its data beside it.")
    folder = resolved(path.parent)
    target = folder / location
    try:
        real = resolved(target)
        if not real.is_relative_to(folder):
            raise InputError(f"{place} is a link that leaves the model's folder. Put the data itself beside the model.")
        if not real.is_file():
            raise InputError(f"{place} is missing. Put the file beside the model.")
        status = real.stat()
    except (OSError, ValueError) as error:
        raise InputError(f"{place} cannot be opened: {error}.") from error
    if status.st_nlink > 1:
        raise InputError(f"{place} is hard-linked to a file elsewhere. Put a copy of its own beside the model.")
    if any(dim < 0 for dim in tensor.dims):
        raise InputError(f"{path}: tensor '{tensor.name}' has a negative dimension: {list(tensor.dims)}.")
    size, expected = status.st_size, stored_bytes(tensor)
    length = size - offset if length is None else length
    if length < 0 or offset + length > size:
        raise InputError(f"{place} ends at byte {offset + length}, the file at {size}. Fetch the file again.")
    if length < expected:
        raise InputError(f"{place} has {length} bytes, the tensor needs {expected}. Export the model again.")


def stored_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a stored tensor's values, packed types packed; strings by their length."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    elements: int = math.prod(tensor.dims)
    return (elements * element_bits(tensor.data_type) + 7) // 8


def _read_external(tensor: onnx.TensorProto, path: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown keys of an entry are ignored by onnx with a warning
            external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise InputError(f"{path}: tensor '{tensor.name}': {_first_line(error)}") from error


def check_valid(place: Path | str, model: onnx.ModelProto, *, external: bool = False) -> None:
    """Run onnx's checker on what it can judge.

    It would open external data from the working directory, so those tensors are shown to it as empty ones; it wants
    a shape on every input and output, which runtimes do not and exporters leave out where the rank is open; and a
    runtime's own operators that stand in the default domain are unknown to it.

    Args:
        place: For errors.
        model: Is as it was afterwards.
        external: It has tensors whose data is not read.

    Raises:
        InputError: What the checker says.
    """
    shown = model
    if external:
        shown = onnx.ModelProto()
        shown.CopyFrom(model)
        for tensor in _all_tensors(shown):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    infos = [info for graph, _ in graphs(shown.graph) for info in (*graph.input, *graph.output)]
    open_rank = [info.type.tensor_type for info in infos if _has_open_rank(info)]
    ahead = _ahead_of_the_standard(shown)
    imported = len(shown.opset_import)
    if ahead and not any(entry.domain == _RUNTIME_DOMAIN for entry in shown.opset_import):
        shown.opset_import.append(onnx.helper.make_opsetid(_RUNTIME_DOMAIN, 1))
    for node in ahead:
        node.domain = _RUNTIME_DOMAIN
    for tensor_type in open_rank:
        tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(shown)
    except (onnx.checker.ValidationError, ValueError, RuntimeError, TypeError, UnicodeDecodeError) as error:
        raise InputError(f"{place}: not a valid ONNX model: {_first_line(error)}") from error
    finally:
        for tensor_type in open_rank:
            tensor_type.ClearField("shape")
        for node in ahead:
            node.ClearField("domain")
        del shown.opset_import[imported:]


def _ahead_of_the_standard(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes that ONNX Runtime's optimiser writes into the default domain although the file's opset has none such."""
    opset = next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), None)
    return [
        node
        for graph, _ in graphs(model.graph)
        for node in graph.node
        if node.domain == "" and node.op_type in _RUNTIME_OPS and (opset is None or not _standard(node.op_type, opset))
    ]


def _standard(op: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return False
    return True


def _has_open_rank(info: onnx.ValueInfoProto) -> bool:
    return info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape")


def _without_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Expand the model's local functions, refusing recursion and explosions first."""
    if not model.functions:
        return model
    from onnx import inliner

    bodies = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(key: tuple[str, str], above: frozenset[tuple[str, str]]) -> int:
        if key in above:
            raise InputError(f"{path}: local function '{key[1]}' calls itself.")
        if len(above) > 64:
            raise InputError(f"{path}: local functions call each other more than 64 levels deep.")
        if key not in sizes:
            sizes[key] = sum(
                size((node.domain, node.op_type), above | {key}) if (node.domain, node.op_type) in bodies else 1
                for node in bodies[key].node
            )
        return sizes[key]

    total = sum(size((n.domain, n.op_type), frozenset()) for n in model.graph.node if (n.domain, n.op_type) in bodies)
    if total > FUNCTION_NODES_MAX:
        raise InputError(f"{path}: local functions expand to {total} nodes, more than {FUNCTION_NODES_MAX}.")
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise InputError(f"{path}: local functions cannot be expanded: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    with contextlib.suppress(IndexError):
        return lines[0].rstrip(".") + "."
    return type(error).__name__ + "."
