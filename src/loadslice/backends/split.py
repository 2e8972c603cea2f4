"""Two engines as one: both work on each batch at the same time, and their outputs are joined.

By batch each computes half of the rows; by channel each computes half of the output channels, from a model of its own.
What joining and waiting for each other takes is told apart from computing: `SplitSession.hand_over_ns`.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from loadslice.backends.base import EngineError, Session, TensorInfo, check_feeds, open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, SplitEngine
from loadslice.spec.work import Tensor


class SplitBackend:
    """Loads a model on two engines."""

    def load(self, model: Path, engine: Engine) -> "SplitSession":
        """See `loadslice.backends.base.Backend.load`."""
        if not isinstance(engine, SplitEngine):
            raise InputError(
                "backend 'split' is not for a file to name; write `engines: [{split: batch, on: [A, B]}]`."
            )
        models, axis = [model, model], 0
        if engine.by == "channel":
            *halves, axis = engine.halves[str(model)]
            models = [Path(half) for half in halves]
        sessions: list[Session] = []
        try:
            for part, path in zip(engine.parts.values(), models, strict=True):
                sessions.append(open_backend(part.backend).load(path, part))
            return SplitSession(sessions, engine, axis)
        except BaseException:
            for session in sessions:
                session.close()
            raise


class SplitSession:
    """One model on two engines.

    Args:
        sessions: Of the two.
        engine: Says how they share.
        axis: Along which outputs are joined; 0 by batch.

    Raises:
        InputError: Rows cannot be divided: the model is built for one count of them.
    """

    def __init__(self, sessions: list[Session], engine: SplitEngine, axis: int) -> None:
        self._sessions = sessions
        self._engine = engine
        self._axis = axis
        self._pool = ThreadPoolExecutor(engine.max_inflight, "second")
        self._hand_over_ns = [0] * engine.max_inflight
        self.inputs = sessions[0].inputs
        self.outputs = sessions[0].outputs
        if engine.by == "channel":
            self.outputs = [_wider(*both, axis) for both in zip(self.outputs, sessions[1].outputs, strict=True)]
        elif any(not info.shape or info.shape[0] is not None for info in self.inputs):
            raise InputError(
                f"split: batch on {', '.join(engine.parts)}: the model is built for one count of rows, which cannot be "
                "divided. Leave its first dimension open."
            )

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`."""
        began_ns = time.perf_counter_ns()
        check_feeds(self.inputs, feeds)
        rows = next(iter(feeds.values())).shape[0]
        if self._engine.by == "batch" and rows < 2:
            self._hand_over_ns[slot] = 0
            return self._sessions[0].run(feeds, slot)
        shares = [dict(feeds), dict(feeds)]
        if self._engine.by == "batch":
            half = -(-rows // 2)
            shares = [{name: rows_of[part] for name, rows_of in feeds.items()} for part in (np.s_[:half], np.s_[half:])]
        second = self._pool.submit(self._timed, 1, shares[1], slot)
        try:
            first, first_ns = self._timed(0, shares[0], slot)
        finally:
            # Whatever became of the first: the second reads memory that the caller will use again.
            error = second.exception()
        if error is not None:
            raise error
        other, other_ns = second.result()
        joined = {name: np.concatenate((tensor, other[name]), self._axis) for name, tensor in first.items()}
        self._hand_over_ns[slot] = time.perf_counter_ns() - began_ns - max(first_ns, other_ns)
        return joined

    def hand_over_ns(self, slot: int) -> int:
        """Of a slot's last run: dividing, waking the second, and joining."""
        return self._hand_over_ns[slot]

    def describe(self) -> dict[str, str | int]:
        """See `loadslice.backends.base.Session.describe`."""
        said = [session.describe() for session in self._sessions]

        def both(key: str) -> str:
            return " + ".join(str(one.get(key, "unknown")) for one in said)

        return {
            "runtime": both("runtime"),
            "version": both("version"),
            "device": both("device"),
            "threads": self._engine.threads,
            "precision": str(said[0].get("precision")),
            "by": self._engine.by,
        }

    def close(self) -> None:
        """Free both."""
        self._pool.shutdown()
        for session in self._sessions:
            session.close()

    def _timed(self, part: int, feeds: dict[str, Tensor], slot: int) -> tuple[dict[str, Tensor], int]:
        began_ns = time.perf_counter_ns()
        outputs = self._sessions[part].run(feeds, slot)
        for name, tensor in outputs.items():
            if tensor.ndim == 0:
                raise EngineError(f"output '{name}' is a single number, which cannot be joined.")
        return outputs, time.perf_counter_ns() - began_ns


def _wider(first: TensorInfo, second: TensorInfo, axis: int) -> TensorInfo:
    """Two halves of one output as the whole."""
    sides = list(first.shape)
    one, other = first.shape[axis], second.shape[axis]
    sides[axis] = None if one is None or other is None else one + other
    return TensorInfo(first.name, first.dtype, tuple(sides))


BACKEND = SplitBackend()
