"""Reads signals out of an answer. Pure; used by the server on what it has just computed."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from loadslice.spec.watch import Signal
from loadslice.spec.work import Tensor

ELEMENTS_MAX = 16_384
"""Numbers looked at in one output; of a larger one, evenly spaced rows (some 30 us for all of them)."""
PROBABLE = 1e-3
"""How far a row of probabilities may be from a sum of one."""

Floats = npt.NDArray[np.float64]


def read(signals: Sequence[Signal], outputs: Mapping[str, Tensor]) -> list[float | None]:
    """One value per signal; ``None`` where the answer has none: no such output, no rows, not a number."""
    return [_value(signal, outputs.get(signal.output)) for signal in signals]


def _value(signal: Signal, tensor: Tensor | None) -> float | None:
    if tensor is None:
        return None
    if signal.take == "rows":
        return float(tensor.shape[0])
    if tensor.size == 0:
        return None
    tensor = _thinned(tensor)
    if signal.take == "characters":
        return float(
            np.mean([len(value) for value in tensor.reshape(-1).tolist() if isinstance(value, str | bytes)] or [0])
        )
    if tensor.dtype.kind not in "fiub":
        return None
    found = _taken(signal.take, tensor.astype(np.float64))
    return found if np.isfinite(found) else None


def _taken(take: str, values: Floats) -> float:
    if take == "mean":
        return float(values.mean())
    if take == "min":
        return float(values.min())
    if take == "max":
        return float(values.max())
    rows = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[None]
    if take == "class":
        classes, counts = np.unique(rows.argmax(axis=1), return_counts=True)
        return float(classes[counts.argmax()]) if np.isfinite(rows).all() else float("nan")
    probable = probabilities(rows)
    if take == "max_probability":
        return float(probable.max(axis=1).mean())
    assert take == "entropy", "every way to take a value is above"
    return float(-(probable * np.log(np.maximum(probable, 1e-300))).sum(axis=1).mean())


def probabilities(rows: Floats) -> Floats:
    """Rows as probabilities: as they are where they hold such, else their softmax."""
    if rows.min() >= 0 and np.abs(rows.sum(axis=1) - 1).max() <= PROBABLE:
        return rows
    raised: Floats = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: Floats = raised / raised.sum(axis=1, keepdims=True)
    return shares


def _thinned(tensor: Tensor) -> Tensor:
    if tensor.size <= ELEMENTS_MAX:
        return tensor
    rows = tensor.reshape(-1, tensor.shape[-1])
    step = -(-tensor.size // ELEMENTS_MAX)
    return rows[::step] if step < len(rows) else rows[:1]
