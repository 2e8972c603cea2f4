"""ONNX Runtime's quantisers and float16 converter: the only module of this room that imports onnxruntime.

Choices and their reasons (measured by us, see docs): unsigned 8-bit activations and signed per-channel weights, because
signed activations run 1.5 to 2.7 times slower on AVX-512 VNNI; heavy operators only; the entropy calibrator is left
out, for its default does nothing and its finer setting ruined a model; block-wise INT4 computes in INT8 (accuracy
level 4), without which it is slower than INT8.
"""

import contextlib
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
from onnx import numpy_helper

from loadslice.spec.errors import MissingExtraError

try:
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_dynamic
    from onnxruntime.quantization import qdq_loss_debug as loss_debug
    from onnxruntime.quantization.calibrate import create_calibrator
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
except ModuleNotFoundError as error:
    raise MissingExtraError("squeeze", "quantising (onnxruntime)") from error

from loadslice.variants.prepare import HEAVY
from loadslice.variants.recorded import Feeds

VERSION: str = f"onnxruntime {onnxruntime.__version__}"

FP16_BLOCKED = ("Resize", "Softmax", "ReduceMean", "LayerNormalization", "Pow", "Sqrt", "ReduceL2", "ReduceSum")
"""Sums and powers leave float16's range; given whole, because a list replaces the converter's own."""

PERCENTILE = 99.99
"""Better than MinMax on the text recogniser (error rate .0067 against .0145); 99.9 was far worse."""

BLOCK = 128


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Feeds in order, again and again."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = feeds
        self.rewind()

    def get_next(self) -> dict[str, Any] | None:
        return next(self._next, None)

    def rewind(self) -> None:
        self._next = iter([dict(one) for one in self._feeds])


def calibrate(model: Path, feeds: Sequence[Feeds], *, method: str = "minmax", all_operators: bool = False) -> Any:
    """Ranges of every tensor a quantised node reads or writes; taken once, used by many builds.

    Args:
        model: A prepared model.
        feeds: The calibration set.
        method: ``minmax`` or ``percentile``.
        all_operators: Also of element-wise operators.
    """
    options = {"percentile": PERCENTILE, "num_bins": 2048} if method == "percentile" else {}
    kind = CalibrationMethod.Percentile if method == "percentile" else CalibrationMethod.MinMax
    with tempfile.TemporaryDirectory() as folder, _quiet():
        calibrator = create_calibrator(
            model,
            None if all_operators else list(HEAVY),
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=kind,
            extra_options=options,
        )
        # One at a time: within a call the histograms want one shape; over calls ranges are merged.
        for one in feeds:
            calibrator.collect_data(_Reader([one]))
        return calibrator.compute_data()


def quantise(
    model: Path,
    ranges: Any,
    out: Path,
    *,
    only: Sequence[str] = (),
    keep: Sequence[str] = (),
    all_operators: bool = False,
) -> Path:
    """Static INT8 as QuantizeLinear and DequantizeLinear pairs.

    Args:
        model: A prepared model.
        ranges: From `calibrate`, of the same model.
        out: File to write.
        only: Quantise these nodes; empty: all of the operator types.
        keep: Leave these nodes as they are.
        all_operators: Also element-wise operators.
    """
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    kinds = list({*QLinearOpsRegistry, *QDQRegistry}) if all_operators else list(HEAVY)
    with _quiet():
        quantiser = QDQQuantizer(
            onnx.load(model), True, False, QuantType.QInt8, QuantType.QUInt8, ranges, list(only), list(keep), kinds, {}
        )
        quantiser.quantize_model()
        quantiser.model.save_model_to_file(str(out), False)
    return out


def quantise_dynamic(model: Path, out: Path) -> Path:
    """INT8 weights, activations scaled as they come, for MatMul, Gemm and fused attention.

    It slows convolutions down and, per channel, computes them wrongly.
    """
    with _quiet():
        quantize_dynamic(
            model, out, per_channel=True, weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm", "Attention"],
        )  # fmt: skip
    return out


def quantise_blocks(
    model: Path, out: Path, *, bits: int, block: int = BLOCK, symmetric: bool = True, in_8_bits: Sequence[str] = ()
) -> Path:
    """Weights of MatMul in blocks with a scale each; activations stay as they are.

    Args:
        model: A prepared model.
        out: File to write.
        bits: 4 or 8.
        block: Weights that share a scale.
        symmetric: About 0; else every block has a zero point of its own.
        in_8_bits: Nodes that get 8 bits whatever ``bits`` is.
    """
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ModuleNotFoundError as error:
        raise MissingExtraError("squeeze", f"block-wise INT{bits} ({error.name})") from error
    made = onnx.load(model)
    with _quiet():
        if in_8_bits:
            others = [node.name for node in made.graph.node if node.name not in in_8_bits]
            careful = MatMulNBitsQuantizer(
                made, bits=8, block_size=block, is_symmetric=symmetric, accuracy_level=4, nodes_to_exclude=others
            )
            careful.process()
            made = careful.model.model
        quantiser = MatMulNBitsQuantizer(
            made, bits=bits, block_size=block, is_symmetric=symmetric, accuracy_level=4,
            nodes_to_exclude=list(in_8_bits),
        )  # fmt: skip
        quantiser.process()
        quantiser.model.save_model_to_file(str(out), use_external_data_format=False)
    return out


def fuse_transformer(model: Path, out: Path) -> Path:
    """Attention, normalisations and activations as the single operators that ONNX Runtime has for them.

    The fuser knows what exporters write: scores and the argument of Erf divided by a number, not multiplied by its
    inverse.

    Raises:
        ValueError: There is nothing in the model that the fuser knows.
    """
    from onnxruntime.transformers import optimizer

    with tempfile.TemporaryDirectory() as folder, _quiet():
        divided = Path(folder) / "divided.onnx"
        onnx.save(_divided(onnx.load(model)), divided)
        fused = optimizer.optimize_model(str(divided), model_type="bert", opt_level=0)
    if not any(fused.get_fused_operator_statistics().values()):
        raise ValueError("ONNX Runtime's fuser recognises nothing in it")
    fused.save_model_to_file(str(out))
    return out


def _divided(model: onnx.ModelProto) -> onnx.ModelProto:
    """Multiplications by a stored number before an Erf or on the way to a Softmax as divisions by its inverse."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = {name: node.op_type for node in model.graph.node for name in node.input}
    onward = {node.output[0] for node in model.graph.node if readers.get(node.output[0]) == "Softmax"}
    onward |= {
        name for node in model.graph.node if node.op_type == "Add" and node.output[0] in onward for name in node.input
    }
    for node in model.graph.node:
        if node.op_type != "Mul" or not (readers.get(node.output[0]) == "Erf" or node.output[0] in onward):
            continue
        place = next((index for index, name in enumerate(node.input) if name in stored), None)
        value = None if place is None else numpy_helper.to_array(stored[node.input[place]])
        if value is None or value.size != 1 or not value.all():
            continue
        inverse = f"{node.name}/inverse"
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(1 / value, value.dtype), inverse))
        node.op_type = "Div"
        del node.input[place]
        node.input.append(inverse)
    return model


def to_float16(model: Path, out: Path) -> Path:
    """Weights and activations in float16 but for `FP16_BLOCKED`; inputs and outputs keep their types."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():
        onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True, op_block_list=list(FP16_BLOCKED)), out)
    return out


def local_errors_db(model: Path, quantised: Path, feeds: Sequence[Feeds]) -> dict[str, float]:
    """What quantising each tensor alone costs it, by tensor name: activations from one run, weights from the file.

    Returns:
        Signal to noise in dB.
    """
    with tempfile.TemporaryDirectory() as name, _quiet():
        folder = Path(name)
        plain, paired = str(folder / "plain.onnx"), str(folder / "paired.onnx")
        loss_debug.modify_model_output_intermediate_tensors(str(model), plain)
        loss_debug.modify_model_output_intermediate_tensors(str(quantised), paired)
        found = loss_debug.collect_activations(plain, _Reader(feeds))
        found_paired = loss_debug.collect_activations(paired, _Reader(feeds))
        matched = loss_debug.create_activation_matching(found_paired, found)
        errors = {
            tensor: float(said["qdq_err"]) for tensor, said in loss_debug.compute_activation_error(matched).items()
        }
        weights = loss_debug.create_weight_matching(str(model), str(quantised))
        errors |= {tensor: float(value) for tensor, value in loss_debug.compute_weight_error(weights).items()}
    return errors


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The tools print on standard output, which is ours, and warn on the root logger of what is meant to be so."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
