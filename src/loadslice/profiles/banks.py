"""One operator shared by two engines of this machine, measured: each part alone, both at once, waiting and joining.

A plan takes a part's time in proportion to its units. What it leaves out is measured here: parts that are not that much
quicker, two engines that share caches and memory, and the hand-over between them.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx

from loadslice.backends.base import Session, open_backend
from loadslice.graph.shapes import infer
from loadslice.graph.split import By, half_models, split_node
from loadslice.graph.stitch import draw_inputs
from loadslice.spec.pipeline import Engine
from loadslice.spec.slices import BankPoint
from loadslice.spec.work import Tensor

SHARES = (0.25, 0.5, 0.75)
ROUNDS = 9


def shares(units: int, tile: int) -> list[int]:
    """About a quarter, half and three quarters of the units, in whole tiles; those that leave something to both."""
    near = {max(tile, round(share * units / tile) * tile) for share in SHARES}
    return sorted(part for part in near if part < units)


def curve(
    model: onnx.ModelProto,
    node: str,
    by: By,
    units: int,
    parts: Sequence[int],
    engines: tuple[Engine, Engine],
    seed: int = 0,
) -> list[BankPoint]:
    """Measure ways to divide one operator.

    Args:
        model: Of that operator alone, weights included, shapes fixed.
        node: Its name.
        by: Output channels or rows.
        units: There are in all.
        parts: Units of the first engine, one entry for each way to divide it; see `shares`.
        engines: Of this machine.
        seed: Of the inputs.

    Returns:
        Whole on each engine, and divided; by units of the first.

    Raises:
        InputError: A runtime cannot load a part.
    """
    feeds = draw_inputs(model, infer(model, {}), seed)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as pool:
        folder = Path(name)
        ways = [_whole(model, engines[0], units, folder), *(
            _divided(model, node, by, part, engines, folder) for part in parts
        ), _whole(model, engines[1], 0, folder)]  # fmt: skip
        try:
            for _ in range(2):
                for way in ways:
                    way.round(feeds, pool)
            for way in ways:
                way.forget()
            for number in range(ROUNDS):
                for way in ways if number % 2 == 0 else reversed(ways):
                    way.round(feeds, pool)
        finally:
            for way in ways:
                way.close()
    return sorted((way.point() for way in ways), key=lambda point: point.first_units)


class _Way:
    """One way to divide it: a session for each part."""

    def __init__(self, first_units: int, sessions: Sequence[Session | None], axis: int) -> None:
        self._first_units = first_units
        self._sessions = sessions
        self._axis = axis
        self._seen: dict[str, list[int]] = {}

    def round(self, feeds: Mapping[str, Tensor], pool: ThreadPoolExecutor) -> None:
        """Each part alone, then both at once."""
        for name, session in zip(("first", "second"), self._sessions, strict=True):
            if session is not None:
                self._note(name, _timed(session, feeds)[1])
        first, second = self._sessions
        if first is None or second is None:
            return
        began = time.perf_counter_ns()
        later = pool.submit(_timed, second, feeds)
        one, one_ns = _timed(first, feeds)
        other, other_ns = later.result()
        ran = time.perf_counter_ns()
        np.concatenate((one, other), self._axis)
        ended = time.perf_counter_ns()
        self._note("slower", max(one_ns, other_ns))
        self._note("sync", ran - began - max(one_ns, other_ns))
        self._note("join", ended - ran)
        self._note("together", ended - began)

    def point(self) -> BankPoint:
        """Medians."""
        ms = {name: float(np.median(values)) / 1e6 for name, values in self._seen.items()}
        alone = max(ms.get("first", 0.0), ms.get("second", 0.0))
        return BankPoint(
            first_units=self._first_units,
            first_ms=ms.get("first"),
            second_ms=ms.get("second"),
            together_ms=ms.get("together", alone),
            slower_by=ms.get("slower", alone) / alone,
            sync_ms=ms.get("sync", 0.0),
            join_ms=ms.get("join", 0.0),
        )

    def forget(self) -> None:
        """Drop what was seen so far: runtimes prepare a shape when they first meet it."""
        self._seen.clear()

    def close(self) -> None:
        """Free the parts."""
        for session in self._sessions:
            if session is not None:
                session.close()

    def _note(self, name: str, taken_ns: int) -> None:
        self._seen.setdefault(name, []).append(taken_ns)


def _whole(model: onnx.ModelProto, engine: Engine, units: int, folder: Path) -> _Way:
    session = _load(model, engine, folder)
    return _Way(units, [session, None] if units else [None, session], 0)


def _divided(
    model: onnx.ModelProto, node: str, by: By, part: int, engines: tuple[Engine, Engine], folder: Path
) -> _Way:
    split = split_node(model, node, part, by)
    axis = next(
        attribute.i
        for one in split.graph.node
        if one.op_type == "Concat"
        for attribute in one.attribute
        if attribute.name == "axis"
    )
    body = infer(split, {})
    halves = half_models(split, body, body, node)
    return _Way(part, [_load(half, engine, folder) for half, engine in zip(halves, engines, strict=True)], axis)


def _load(model: onnx.ModelProto, engine: Engine, folder: Path) -> Session:
    path = folder / "part.onnx"
    path.write_bytes(model.SerializeToString())
    return open_backend(engine.backend).load(path, engine)


def _timed(session: Session, feeds: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    began = time.perf_counter_ns()
    wanted = {info.name for info in session.inputs}
    (output,) = session.run({name: tensor for name, tensor in feeds.items() if name in wanted}).values()
    return output, time.perf_counter_ns() - began
