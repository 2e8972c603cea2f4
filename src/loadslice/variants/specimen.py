"""A small model and inputs for it that tests squeeze in seconds: convolutions, a product, a softmax, two open sides."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = 5
CHANNELS = 16


def write_model(path: Path, *, fragile: bool = False) -> Path:
    """``image`` [rows, 3, height, width] to ``scores`` [rows, CLASSES], trained on nothing.

    Args:
        path: File to write.
        fragile: One layer's input channels differ by a factor of 1000, which no single 8-bit scale can hold.
    """
    draw = np.random.default_rng(1)

    def weight(*shape: int) -> npt.NDArray[np.float32]:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        values: npt.NDArray[np.float32] = (draw.standard_normal(shape) * scale).astype(np.float32)
        return values

    second = weight(CHANNELS, CHANNELS, 3, 3)
    first = weight(CHANNELS, 3, 3, 3)
    if fragile:
        # The product of both layers is what it was; the tensor between them is not.
        spread = np.logspace(0, 3, CHANNELS).astype(np.float32)
        first *= spread[:, None, None, None]
        second /= spread[None, :, None, None]
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w4"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=-1),
    ]
    weights = {"w1": first, "w2": second, "w3": weight(CHANNELS, CHANNELS, 3, 3), "w4": weight(CLASSES, CHANNELS).T}
    graph = helper.make_graph(
        nodes,
        "specimen",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", 3, "height", "width"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", CLASSES])],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def inputs(count: int, seed: int = 0) -> list[dict[str, npt.NDArray[np.float32]]]:
    """Pictures of three sizes, one in eight of them large."""
    draw = np.random.default_rng(seed)
    sides = draw.choice([16, 24, 48], count, p=[0.5, 0.375, 0.125])
    return [{"image": draw.standard_normal((1, 3, side, side), dtype=np.float32)} for side in sides]


def write_inputs(folder: Path, count: int = 24, seed: int = 0) -> Path:
    """The same as ``.npz`` files."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, feeds in enumerate(inputs(count, seed)):
        np.savez(folder / f"in-{index:03d}.npz", **feeds)  # type: ignore[arg-type]
    return folder
