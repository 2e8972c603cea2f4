"""A model made ready for a vendor's compiler: shapes fixed, every node with a name of its own."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx

from loadslice.graph.load import MODEL_BYTES_MAX
from loadslice.graph.rewrites.edit import copied
from loadslice.graph.rewrites.shapes import StaticShapes
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason


def stage(model: onnx.ModelProto, shapes: Mapping[str, list[int]]) -> tuple[onnx.ModelProto, list[str]]:
    """Fix the given shapes and name the nodes.

    Compilers answer by node name, and exporters leave names out or give one twice.

    Args:
        model: With its weights in it; not changed.
        shapes: Of open inputs; where one is missing the compiler says what it makes of that.

    Returns:
        The staged model, and the name of each node of its top graph in order.
    """
    fixed = StaticShapes(shapes)
    staged = fixed.call(model).model if fixed.requires(model) is None else copied(model)
    times = Counter(node.name for node in staged.graph.node)
    taken = {name for name in times if name}
    names = []
    for place, node in enumerate(staged.graph.node):
        if not node.name:
            node.name = _free(next((name for name in node.output if name), node.op_type), taken)
        elif times[node.name] > 1:
            node.name = _free(f"{node.name}_{place}", taken)
        names.append(node.name)
    return staged, names


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write a staged model; weights go beside it where one file cannot hold them.

    Raises:
        InputError: The disk is full or closed to us.
    """
    try:
        if model.ByteSize() < MODEL_BYTES_MAX:
            path.write_bytes(model.SerializeToString())
        else:
            onnx.save(model, str(path), save_as_external_data=True, location=f"{path.name}.data")
    except OSError as error:
        raise InputError(f"{path}: cannot be written, {reason(error)}.") from error
