"""Makes the two parts of the network: `python examples/inspection/build_models.py`.

The backbone is four convolutions whose filters are set or drawn once and never trained, cut to int8 with ranges
calibrated on drawn plates; the head is one convolution fitted in closed form, by ridge regression on what the int8
backbone gives for other drawn plates. It is small, its weights are our own, and it finds what it was made for.

References:
    Random filters as features: Saxe et al., "On Random Weights and Unsupervised Feature Learning", ICML 2011.
"""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from inspection_inputs import FAULT_PX, INPUT_PX, KINDS, plate
from inspection_stages import CELLS, SIZE_SCALE, normalised
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from PIL import Image

HERE = Path(__file__).resolve().parent

CHANNELS = (3, 16, 16, 32, 80)
CONTRASTS = 16
KERNEL = 5
REACH = 3
"""The head looks at so many cells along a side."""
TRAINING, CALIBRATION = 500, 40
RIDGE = 0.05
OPSET = 13

Floats = npt.NDArray[np.float32]


def backbone(rng: np.random.Generator) -> onnx.ModelProto:
    """Image [rows, 3, 352, 352] -> features [rows, 80, 22, 22].

    The first channel of the first two layers is the light, smoothed; the third layer draws contrasts of it, which lose
    their sign's other half in the rectifier; the fourth hands each contrast on from the four quarters of a cell. Beside
    them run filters drawn over everything.
    """
    nodes, stored, name = [], [], "image"
    for layer, (given, made) in enumerate(pairwise(CHANNELS)):
        filters = rng.standard_normal((made, given, KERNEL, KERNEL)).astype(np.float32)
        filters -= filters.mean(axis=(2, 3), keepdims=True)  # contrast, not brightness
        filters *= np.sqrt(1 / (given * KERNEL * KERNEL))
        bias = np.full(made, 0.02, np.float32)
        if layer < 2:
            filters[0] = 0
            filters[0, : given if layer == 0 else 1] = 1 / (KERNEL * KERNEL * (given if layer == 0 else 1))
            bias[0] = 1.0 if layer == 0 else 0.0
        elif layer == 2:
            filters[:CONTRASTS, 1:] = 0
            filters[:CONTRASTS, 0] *= np.sqrt(given)
        else:
            filters[: 4 * CONTRASTS] = 0
            for quarter, (row, column) in enumerate(((1, 1), (1, 2), (2, 1), (2, 2))):
                for contrast in range(CONTRASTS):
                    filters[4 * contrast + quarter, contrast, row, column] = 1
        stored += [numpy_helper.from_array(filters, f"w{layer}"), numpy_helper.from_array(bias, f"b{layer}")]
        conv = {"strides": [2, 2], "pads": [KERNEL // 2] * 4, "kernel_shape": [KERNEL, KERNEL]}
        nodes.append(
            helper.make_node("Conv", [name, f"w{layer}", f"b{layer}"], [f"c{layer}"], name=f"conv{layer}", **conv)
        )
        name = "features" if layer == len(CHANNELS) - 2 else f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [name], name=f"relu{layer}"))
    shapes = ("image", [3, INPUT_PX, INPUT_PX]), ("features", [CHANNELS[-1], CELLS, CELLS])
    return _model("backbone", nodes, stored, shapes)


def head(weights: Floats, bias: Floats) -> onnx.ModelProto:
    """Features -> grid [rows, 4 + kinds, 22, 22]: score, place in the cell, size, kinds."""
    stored = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")]
    node = helper.make_node(
        "Conv", ["features", "w", "b"], ["grid"], name="head", pads=[REACH // 2] * 4, kernel_shape=[REACH, REACH]
    )
    shapes = ("features", [CHANNELS[-1], CELLS, CELLS]), ("grid", [len(bias), CELLS, CELLS])
    return _model("head", [node], stored, shapes)


def _model(name: str, nodes: list[Any], stored: list[Any], shapes: Any) -> onnx.ModelProto:
    ends = [[helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["rows", *sides])] for tensor, sides in shapes]
    graph = helper.make_graph(nodes, name, *ends, stored)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="loadslice"
    )
    onnx.checker.check_model(model)
    return model


class _Plates(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, images: list[Floats]) -> None:
        self._images = iter(images)

    def get_next(self) -> dict[str, Floats] | None:
        image = next(self._images, None)
        return None if image is None else {"image": image[None]}


def drawn(seed: int, count: int) -> tuple[list[Floats], list[Any]]:
    """Plates as the network sees them, and their faults."""
    images, truths = [], []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        side_px = int(rng.choice([352, 440, 528]))
        pixels, faults = plate(rng, int(rng.integers(0, 7)), side_px)
        images.append(normalised(Image.fromarray(pixels)))
        truths.append(faults)
    return images, truths


def fitted(features: Floats, truths: list[Any]) -> tuple[Floats, Floats]:
    """Weights [4 + kinds, 80, 3, 3] and bias of the head: ridge regression, a row for every cell.

    Score and kinds are fitted on all cells, with faults weighing as much as everything else together; place and size on
    the cells that hold a fault and their neighbours.
    """
    padded = np.pad(features, ((0, 0), (0, 0), (REACH // 2,) * 2, (REACH // 2,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (REACH, REACH), axis=(2, 3))
    rows = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, features.shape[1] * REACH * REACH).astype(np.float64)
    targets = np.zeros((len(truths), CELLS, CELLS, 4 + len(KINDS)))
    held = np.zeros((len(truths), CELLS, CELLS), bool)
    near = np.zeros_like(held)
    for number, faults in enumerate(truths):
        for kind, x, y, size in faults:
            column, row = int(x * CELLS), int(y * CELLS)
            for r in range(max(0, row - 1), min(CELLS, row + 2)):
                for c in range(max(0, column - 1), min(CELLS, column + 2)):
                    apart = max(abs(x * CELLS - c - 0.5), abs(y * CELLS - r - 0.5))
                    near[number, r, c] = True
                    one = targets[number, r, c]
                    one[0] = max(one[0], 1.0 if (r, c) == (row, column) else max(0.0, 1.3 - apart))
                    one[1:4] = x * CELLS - c - 0.5, y * CELLS - r - 0.5, size * INPUT_PX / SIZE_SCALE
                    one[4 + KINDS.index(kind)] = 1.0
            held[number, row, column] = True
    flat, wanted = held.reshape(-1), targets.reshape(-1, targets.shape[-1])
    weight = np.where(flat, (~flat).sum() / flat.sum() / 4, 1.0)
    close = near.reshape(-1)
    mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    scaled = (rows - mean) / scale
    score = _ridge(scaled, wanted[:, :1], weight)
    rest = _ridge(scaled[close], wanted[close, 1:], np.ones(int(close.sum())))
    solved = np.concatenate([score, rest], axis=1)
    weights = solved[:-1] / scale[:, None]
    bias = solved[-1] - mean @ weights
    return weights.T.reshape(-1, features.shape[1], REACH, REACH).astype(np.float32), bias.astype(np.float32)


def _ridge(rows: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64], weight: npt.NDArray[np.float64]) -> Any:
    one = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    gram = (one * weight[:, None]).T @ one
    penalty = RIDGE * len(rows) / 1000 * np.eye(one.shape[1])
    penalty[-1, -1] = 0
    return np.linalg.solve(gram + penalty, (one * weight[:, None]).T @ wanted)


def main() -> None:
    """Write `backbone.int8.onnx` and `head.onnx` beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "backbone.onnx"
        onnx.save(backbone(np.random.default_rng(0)), source)
        target = HERE / "backbone.int8.onnx"
        quantize_static(
            str(source),
            str(target),
            _Plates(drawn(1, CALIBRATION)[0]),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    session = ort.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    images, truths = drawn(2, TRAINING)
    features = np.concatenate([session.run(None, {"image": image[None]})[0] for image in images])
    onnx.save(head(*fitted(features, truths)), HERE / "head.onnx")


if __name__ == "__main__":
    assert FAULT_PX[1] / INPUT_PX * CELLS < REACH, "a fault must lie inside what the head sees"
    main()
