"""OpenVINO, on any device its plug-ins find.

Choices and their reasons: precision is always stated, because OpenVINO computes fp32 models in bf16 by itself where
the processor can; streams equal slots, one infer request each; threads are not pinned, because every model of a
pipeline would pin its stream to the same first core; no compiled blobs are cached on disk.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from loadslice.backends.base import EngineError, TensorInfo, check_feeds
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import Tensor

_PRECISION_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_PRECISIONS = {hint: precision for precision, hint in _PRECISION_HINTS.items()}


@functools.cache
def core() -> Any:
    """The one core of this process.

    Its plug-in for processors with AMX puts a stack of its own under the signal handlers of the thread that makes it,
    and takes it away when it goes. Two that do not go in the reverse order of their coming leave the address of memory
    that is given back, and the next signal ends the process (seen with OpenVINO 2026.4).
    """
    return ov.Core()


class OpenVinoBackend:
    """Loads models with ``openvino.Core.compile_model``."""

    def load(self, model: Path, engine: Engine) -> "OpenVinoSession":
        """See `loadslice.backends.base.Backend.load`."""
        device = (engine.device or "CPU").upper()
        settings = _settings(engine, device)
        _require_device(device)
        try:
            compiled = core().compile_model(core().read_model(model), device, settings)
        except Exception as error:
            raise InputError(f"{model}: openvino cannot load it on {device}: {_last_line(error)}") from error
        return OpenVinoSession(compiled, engine)


class OpenVinoSession:
    """One compiled model; a slot is an infer request."""

    def __init__(self, compiled: Any, engine: Engine) -> None:
        self._compiled = compiled
        self._requests = [compiled.create_infer_request() for _ in range(engine.max_inflight)]
        self._threads = engine.threads
        self.inputs = [_info(port) for port in compiled.inputs]
        self.outputs = [_info(port) for port in compiled.outputs]

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`."""
        check_feeds(self.inputs, feeds)
        # Shared inputs are read in place; they must be contiguous, or OpenVINO reads them wrongly.
        rows = {name: np.ascontiguousarray(tensor) for name, tensor in feeds.items()}
        try:
            values = self._requests[slot].infer(rows, share_inputs=True, share_outputs=False)
        except Exception as error:
            raise EngineError(f"openvino: {_last_line(error)}") from error
        return {info.name: values[index] for index, info in enumerate(self.outputs)}

    def describe(self) -> dict[str, str | int]:
        """See `loadslice.backends.base.Session.describe`."""
        compiled = self._compiled
        # What the device does, which is fp32 where bf16 was asked of a processor without it.
        computed = str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
        return {
            "runtime": "openvino",
            "version": ov.get_version(),
            "device": ",".join(compiled.get_property("EXECUTION_DEVICES")),
            "threads": self._threads,
            "precision": _PRECISIONS.get(computed, computed),
        }

    def close(self) -> None:
        """Free the model."""
        self._requests.clear()
        self._compiled = None


BACKEND = OpenVinoBackend()


def _settings(engine: Engine, device: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"CACHE_DIR": "", "NUM_STREAMS": engine.max_inflight}
    if engine.precision in _PRECISION_HINTS:
        settings["INFERENCE_PRECISION_HINT"] = _PRECISION_HINTS[engine.precision]
    if device == "CPU":
        settings["INFERENCE_NUM_THREADS"] = engine.threads * engine.max_inflight
        settings["ENABLE_CPU_PINNING"] = False
    return settings | engine.options


def _require_device(device: str) -> None:
    """Every device named must be here; ``AUTO:GPU,CPU`` and ``HETERO:...`` name several."""
    available: list[str] = core().available_devices
    virtual, _, listed = device.rpartition(":")
    wanted = listed.split(",") if virtual else [device]
    for name in wanted:
        if name not in ("AUTO", "HETERO", "MULTI") and not any(
            here.split(".")[0] == name.split(".")[0] for here in available
        ):
            raise InputError(
                f"openvino has no device '{name}' here (there are {', '.join(available) or 'none'}). "
                "Install its driver, or change engines.*.device."
            )


def _info(port: Any) -> TensorInfo:
    shape = tuple(None if side.is_dynamic else int(side.get_length()) for side in port.partial_shape)
    return TensorInfo(port.any_name, np.dtype(port.element_type.to_dtype()), shape)


def _last_line(error: Exception) -> str:
    """OpenVINO prefixes its messages with source places of its own; the last line is the cause."""
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
