"""ONNX Runtime, by any execution provider that is installed.

Choices and their reasons (measured by us on 2 cores, see docs): threads do not spin, because a spinning pool takes the
core its neighbour engine needs; one session serves all slots when a run uses one thread (it then runs on the caller's
thread and shares the weights), otherwise every slot has a session, so that ``threads`` is per run; telemetry is off.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Read when the native library starts; its uploader is on by default since 1.29.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort

from loadslice.backends.base import EngineError, TensorInfo, check_feeds
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import Tensor

ort.disable_telemetry_events()

CPU = "CPUExecutionProvider"

GRAPH_LEVEL = "graph_optimization_level"
"""The one session setting that has neither a dot in its name nor a provider it belongs to."""

_GRAPH_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


class OnnxRuntimeBackend:
    """Loads models with ``onnxruntime.InferenceSession``."""

    def load(self, model: Path, engine: Engine) -> "OnnxRuntimeSession":
        """See `loadslice.backends.base.Backend.load`."""
        provider = _provider(engine.device)
        if engine.precision == "bf16" and provider == CPU:
            raise InputError(
                f"{model}: onnxruntime computes at the precision of the model's own tensors and has no bf16 on {CPU}. "
                "Set engines.*.precision to what the file holds."
            )
        copies = engine.max_inflight if engine.threads > 1 else 1
        return OnnxRuntimeSession([_open(model, engine, provider) for _ in range(copies)], engine, provider)


class OnnxRuntimeSession:
    """One model on one execution provider."""

    def __init__(self, sessions: list[Any], engine: Engine, provider: str) -> None:
        self._sessions = sessions
        self._engine = engine
        self._provider = provider
        self.inputs = [_info(value) for value in sessions[0].get_inputs()]
        self.outputs = [_info(value) for value in sessions[0].get_outputs()]

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`."""
        check_feeds(self.inputs, feeds)
        session = self._sessions[slot % len(self._sessions)]
        names = [info.name for info in self.outputs]
        try:
            # Outputs are allocated by this run and owned by the arrays that come back.
            values = session.run(names, dict(feeds))
        except Exception as error:
            raise EngineError(f"onnxruntime: {_first_line(error)}") from error
        return dict(zip(names, values, strict=True))

    def describe(self) -> dict[str, str | int]:
        """See `loadslice.backends.base.Session.describe`."""
        return {
            "runtime": "onnxruntime",
            "version": ort.__version__,
            "device": self._provider,
            "threads": self._engine.threads,
            "precision": self._engine.precision,
        }

    def close(self) -> None:
        """Free the model."""
        self._sessions.clear()


BACKEND = OnnxRuntimeBackend()


def _provider(device: str | None) -> str:
    """The execution provider of ``engines.NAME.device``: ``cuda``, ``CUDAExecutionProvider``; default: CPU."""
    available: list[str] = ort.get_available_providers()
    if device is None:
        return CPU
    for provider in available:
        if device.lower() in (provider.lower(), provider.lower().removesuffix("executionprovider")):
            return provider
    raise InputError(
        f"onnxruntime has no device '{device}' here (there are {', '.join(available)}). "
        "Install the build of onnxruntime that has it, or change engines.*.device."
    )


def _open(model: Path, engine: Engine, provider: str) -> Any:
    # ONNX Runtime's session settings have a dot in their names, provider settings have none.
    provider_options = {
        key: str(value) for key, value in engine.options.items() if "." not in key and key != GRAPH_LEVEL
    }
    level = engine.options.get(GRAPH_LEVEL, "all")
    if level not in _GRAPH_LEVELS:
        raise InputError(f"onnxruntime: option {GRAPH_LEVEL}: '{level}' is none of {', '.join(_GRAPH_LEVELS)}.")
    try:
        session = ort.InferenceSession(
            str(model),
            _session_options(engine, provider),
            providers=[provider],
            provider_options=[provider_options],
            enable_fallback=0,
        )
    except Exception as error:
        raise InputError(f"{model}: onnxruntime cannot load it on {provider}: {_first_line(error)}") from error
    placed = session.get_providers()[0]
    if placed != provider:
        raise InputError(f"{model}: onnxruntime placed it on {placed} and not on {provider}. Change engines.*.device.")
    return session


def _session_options(engine: Engine, provider: str) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = engine.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = _GRAPH_LEVELS[str(engine.options.get(GRAPH_LEVEL, "all"))]
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if provider != CPU:
        # A node the device cannot run is refused at load instead of moved to the CPU.
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in engine.options.items():
        if "." in key:
            options.add_session_config_entry(key, str(value))
    return options


def _info(value: Any) -> TensorInfo:
    if value.type not in _DTYPES:
        raise InputError(f"onnxruntime: tensor '{value.name}' is of type {value.type}, which cannot be fed from NumPy.")
    shape = tuple(side if isinstance(side, int) and side >= 0 else None for side in value.shape)
    return TensorInfo(value.name, np.dtype(_DTYPES[value.type]), shape)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
