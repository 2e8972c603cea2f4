"""Turns an ONNX model into int8 TFLite, and says which of its nodes each TFLite tensor came from.

Calibrated on random input: placement, cycles and sizes of the result hold, its answers do not.
"""

import json
from pathlib import Path
from typing import Any

from ask_protocol import RefusedError, last_line, serve, versions  # type: ignore[import-not-found]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Convert with onnx2tf, quantise with AI Edge Quantizer."""
    import onnx2tf  # type: ignore[import-not-found]

    out = Path(request["folder"]) / "converted"
    try:
        onnx2tf.convert(input_onnx_file_path=request["model"], output_folder_path=str(out), non_verbose=True)
    except SystemExit as error:
        raise RefusedError("onnx2tf cannot convert it") from error
    except Exception as error:
        raise RefusedError(f"onnx2tf cannot convert it: {last_line(str(error))}") from error
    float_model = next(iter(out.glob("*_float32.tflite")), None)
    report = next(iter(out.glob("*_tensor_correspondence_report.json")), None)
    if float_model is None or report is None:
        raise RefusedError("onnx2tf wrote no float32 model")
    whole = Path(request["folder"]) / "model_int8.tflite"
    _quantise(float_model, whole)
    records = json.loads(report.read_text(encoding="utf-8"))["records"]
    return {
        "version": ", ".join(f"{name} {value}" for name, value in versions("onnx2tf", "ai-edge-quantizer").items()),
        "file": whole.name,
        "tensors": [
            {"node": record["onnx_op_name"], "tensor": name} for record in records for name in sorted(_names(record))
        ],
    }


def _names(record: dict[str, Any]) -> set[str]:
    """A tensor's name in the ONNX model and every one it had on the way: layers keep any of them."""
    return {
        record["onnx_output_name"],
        record["resolved_tflite_tensor_name"],
        *(record.get("rewrite_name_chain") or []),
    } - {None, ""}


def _quantise(source: Path, target: Path) -> None:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-not-found]
    from ai_edge_quantizer import quantizer, recipe  # type: ignore[import-not-found]

    interpreter = Interpreter(str(source))
    key = next(iter(interpreter.get_signature_list()), None)
    if key is None:
        raise RefusedError("the converted model has no signature to calibrate by")
    generator = np.random.default_rng(0)
    details = interpreter.get_signature_runner(key).get_input_details()
    feeds = {
        name: (generator.standard_normal(detail["shape"]) * 0.5).astype(detail["dtype"])
        for name, detail in details.items()
    }
    work = quantizer.Quantizer(str(source))
    work.load_quantization_recipe(recipe.static_wi8_ai8())
    work.quantize(work.calibrate({key: [feeds]})).export_model(str(target))


if __name__ == "__main__":
    serve(answer)
