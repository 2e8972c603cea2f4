"""ONNX Runtime, by any execution provider that is installed.

Choices and their reasons (measured by us on 2 cores, see docs): threads do not spin, because a spinning pool takes the
core its neighbour engine needs; one session serves all slots when a run uses one thread (it then runs on the caller's
thread and shares the weights), otherwise every slot has a session, so that ``threads`` is per run; telemetry is off.
"""

import logging
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

# Read when the native library starts; its uploader is on by default since 1.29.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort

from loadslice.backends.base import EngineError, NotPreparedError, Place, TensorInfo, check_feeds
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import Tensor

ort.disable_telemetry_events()

log = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"

_NOT_AS_BOUND = (
    "The output OrtValue provided for output",
    "OrtValue shape verification failed",
    "Unexpected output data type",
)
"""What the runtime says where outputs are not as its model says they are; whatever else it says is about this batch."""

GRAPH_LEVEL = "graph_optimization_level"
"""The one session setting that has neither a dot in its name nor a provider it belongs to."""

SPINNING = "session.intra_op.allow_spinning"

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
        sessions = [_open(model, engine, provider) for _ in range(copies)]
        try:
            return OnnxRuntimeSession(sessions, engine, provider)
        except UnicodeDecodeError as error:
            raise InputError(f"{model}: the name of an input or output is not UTF-8; is the file damaged?") from error


class OnnxRuntimeSession:
    """One model on one execution provider."""

    def __init__(self, sessions: list[Any], engine: Engine, provider: str) -> None:
        self._sessions = sessions
        self._engine = engine
        self._provider = provider
        self.inputs = [_info(value) for value in sessions[0].get_inputs()]
        self.outputs = [_info(value) for value in sessions[0].get_outputs()]
        self._names = [info.name for info in self.outputs]
        numeric = all(info.dtype.kind in "biuf" for info in (*self.inputs, *self.outputs))
        self._binds = provider == CPU and numeric and all(info.shape for info in self.inputs)
        self._rooms: dict[int, _Rooms] = {}
        sides = [value.shape for value in sessions[0].get_inputs()]
        self._output_sides = _known_sides(sides, [value.shape for value in sessions[0].get_outputs()])

    def room(self, slot: int, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Tensor] | None:
        """Memory of one slot that the runtime has been told to read its inputs from, for inputs of these shapes.

        What is written there is overwritten by the next batch of the slot; `run` given this very dictionary reads it in
        place. Bound are processors' numeric inputs of moderate size.

        Args:
            slot: As in `run`.
            shapes: By input, in the model's order.

        Raises:
            StageInputError: The model takes no such shapes.
        """
        if not self._binds:
            return None
        rooms = self._rooms.get(slot)
        if rooms is None:
            rooms = self._rooms[slot] = _Rooms(self._sessions[slot % len(self._sessions)], self.inputs, self._names)
        try:
            return rooms.find(shapes)
        except RuntimeError as error:
            self._binds = False
            log.warning("onnxruntime: inputs are copied from now on, it cannot bind them: %s", _first_line(error))
            return None

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`."""
        rooms = self._rooms.get(slot)
        binding = None if rooms is None else rooms.bound(feeds)
        session = self._sessions[slot % len(self._sessions)]
        if binding is None:
            check_feeds(self.inputs, feeds)
        try:
            # Outputs are allocated by this run and owned by the arrays that come back.
            if binding is None:
                values = session.run(self._names, dict(feeds))
            else:
                session.run_with_iobinding(binding)
                values = binding.copy_outputs_to_cpu()
        except Exception as error:
            raise EngineError(f"onnxruntime: {_first_line(error)}") from error
        return dict(zip(self._names, values, strict=True))

    def prepared(self, feeds: Mapping[str, Tensor], slot: int, place: Place) -> Callable[[], None] | None:
        """See `loadslice.backends.base.Prepares.prepared`."""
        check_feeds(self.inputs, feeds)
        if not self._binds or self._output_sides is None:
            return None
        shapes = [feeds[info.name].shape for info in self.inputs]
        outputs = place(self.outputs, [_lengths(sides, shapes) for sides in self._output_sides])
        if outputs is None:
            return None
        session = self._sessions[slot % len(self._sessions)]
        binding = session.io_binding()
        try:
            for bind, tensors in ((binding.bind_input, feeds), (binding.bind_output, outputs)):
                for name, tensor in tensors.items():
                    bind(name, "cpu", 0, tensor.dtype, tensor.shape, tensor.__array_interface__["data"][0])
        except RuntimeError as error:
            self._prepare_no_more(error)
            return None
        return partial(self._run_prepared, session, binding)

    def _run_prepared(self, session: Any, binding: Any) -> None:
        try:
            session.run_with_iobinding(binding)
        except Exception as error:
            if any(words in str(error) for words in _NOT_AS_BOUND):
                self._prepare_no_more(error)
                raise NotPreparedError(f"onnxruntime: {_first_line(error)}") from error
            raise EngineError(f"onnxruntime: {_first_line(error)}") from error

    def _prepare_no_more(self, error: Exception) -> None:
        if self._output_sides is not None:
            self._output_sides = None
            log.warning("onnxruntime: outputs are copied from now on, they cannot be bound: %s", _first_line(error))

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
        self._rooms.clear()
        self._sessions.clear()


ROOM_BYTES_MAX = 1 << 24
"""Largest batch that gets memory of its own; a larger one is rare, and would stay in memory for ever."""

BINDINGS_MAX = 128
"""Shapes that one slot has memory for; when there are more, all are forgotten."""


class _Rooms:
    """Input memory of one slot: one block for each shape of rows, bound once for each count of rows."""

    def __init__(self, session: Any, inputs: list[TensorInfo], outputs: list[str]) -> None:
        self._session = session
        self._inputs = inputs
        self._outputs = outputs
        self._blocks: dict[tuple[tuple[int, ...], ...], list[Tensor]] = {}
        self._bound: dict[tuple[tuple[int, ...], ...], tuple[dict[str, Tensor], Any]] = {}
        self._last: tuple[dict[str, Tensor], Any] | None = None

    def find(self, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Tensor] | None:
        """See `OnnxRuntimeSession.room`."""
        found = self._bound.get(shapes)
        if found is None:
            found = self._bind(shapes)
        self._last = found
        return None if found is None else found[0]

    def bound(self, feeds: Mapping[str, Tensor]) -> Any | None:
        """The binding of feeds that `find` has given last."""
        return self._last[1] if self._last is not None and self._last[0] is feeds else None

    def _bind(self, shapes: tuple[tuple[int, ...], ...]) -> tuple[dict[str, Tensor], Any] | None:
        sizes = [math.prod(shape) * info.dtype.itemsize for shape, info in zip(shapes, self._inputs, strict=True)]
        if sum(sizes) > ROOM_BYTES_MAX or min(sizes) == 0:
            return None
        if len(self._bound) >= BINDINGS_MAX:
            self._bound.clear()
            self._blocks.clear()
        sides = _sides(shapes)
        blocks = self._blocks.get(sides)
        if blocks is None or any(len(block) < shape[0] for block, shape in zip(blocks, shapes, strict=True)):
            blocks = [np.zeros(shape, info.dtype) for shape, info in zip(shapes, self._inputs, strict=True)]
            self._blocks[sides] = blocks
            # Smaller batches of these sides had the smaller block.
            self._bound = {known: one for known, one in self._bound.items() if _sides(known) != sides}
        feeds = {info.name: block[: shape[0]] for info, block, shape in zip(self._inputs, blocks, shapes, strict=True)}
        check_feeds(self._inputs, feeds)
        binding = self._session.io_binding()
        for name, tensor in feeds.items():
            binding.bind_cpu_input(name, tensor)
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        self._bound[shapes] = feeds, binding
        return self._bound[shapes]


def _known_sides(inputs: list[list[Any]], outputs: list[list[Any]]) -> list[list[int | tuple[int, int]]] | None:
    """Each side of each output: its length, or which side of which input is as long; ``None``: not all are said."""
    where = {
        side: (index, axis)
        for index, sides in enumerate(inputs)
        for axis, side in enumerate(sides)
        if isinstance(side, str)
    }
    known = [[side if isinstance(side, int) else where.get(side) for side in sides] for sides in outputs]
    if not all(known) or any(side is None for sides in known for side in sides):
        return None
    return [[side for side in sides if side is not None] for sides in known]


def _lengths(sides: list[int | tuple[int, int]], shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple([side if isinstance(side, int) else shapes[side[0]][side[1]] for side in sides])


def _sides(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple([shape[1:] for shape in shapes])


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
    if SPINNING not in engine.options:
        options.add_session_config_entry(SPINNING, "0")
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
