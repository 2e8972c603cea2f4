"""Fault switches for drills: an engine is made slow, hung, failing, wrong or mortal on purpose, for a limited time.

They exist only in a server that was started with ``--drills``, and each ends by itself.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import msgspec
import numpy as np

from loadslice.backends.base import EngineError
from loadslice.backends.isolated.session import IsolatedSession
from loadslice.serve.request import Batch
from loadslice.serve.runners import DirectRunner, Runner
from loadslice.serve.stages import LoadedStage
from loadslice.spec.errors import InputError
from loadslice.spec.work import StageError, Work

FOR_S_MAX = 600.0
FACTOR_MAX = 1000.0
WRONG_BY = 1.02
"""Outputs of an engine that is wrong are scaled by this."""

POISON_S = 0.2
"""A process that is about to be ended holds its batch for so long, so that it surely has it."""

Kind = Literal["slow", "down", "hang", "crash", "wrong", "poison"]
"""``poison``: the engine's process ends whenever it has been given a certain request."""


class FaultOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is asked for."""

    engine: str
    kind: Kind
    for_s: float
    factor: float = 4.0
    """Of slow."""
    id: str | None = None
    """Of poison: the request's."""


@dataclass(slots=True)
class _Fault:
    kind: Kind
    factor: float
    id: str | None
    over: threading.Event
    timer: threading.Timer


class Switches:
    """Which engine has which fault now. Thread-safe: workers look, the loop switches.

    Args:
        engines: Their names.
    """

    def __init__(self, engines: list[str]) -> None:
        self._faults: dict[int, _Fault] = {}
        self._engines = engines

    def set(self, order: FaultOrder) -> None:
        """Begin a fault; one that the engine has already ends.

        Raises:
            InputError: No such engine, or numbers out of range.
        """
        if order.engine not in self._engines:
            raise InputError(f"engine: '{order.engine:.64}' is not an engine here ({', '.join(self._engines)}).")
        if not 0 < order.for_s <= FOR_S_MAX or not 1 <= order.factor <= FACTOR_MAX:
            raise InputError(f"for_s must be up to {FOR_S_MAX:g} and factor 1 to {FACTOR_MAX:g}.")
        if (order.kind == "poison") != (order.id is not None):
            raise InputError("id: of the request that is poison; of no other fault.")
        engine = self._engines.index(order.engine)
        self.clear(engine)
        over = threading.Event()
        timer = threading.Timer(order.for_s, self._end, (engine, over))
        timer.daemon = True
        self._faults[engine] = _Fault(order.kind, order.factor, order.id, over, timer)
        timer.start()

    def clear(self, engine: int | None = None) -> None:
        """End one engine's fault, or all."""
        for one in list(self._faults) if engine is None else [engine]:
            fault = self._faults.pop(one, None)
            if fault is not None:
                fault.timer.cancel()
                fault.over.set()

    def _end(self, engine: int, over: threading.Event) -> None:
        fault = self._faults.get(engine)
        if fault is not None and fault.over is over:
            self.clear(engine)

    def now(self, engine: int) -> _Fault | None:
        """The fault of an engine, if it has one."""
        return self._faults.get(engine)

    def describe(self) -> list[dict[str, Any]]:
        """All faults there are."""
        return [
            {"engine": self._engines[engine], "kind": fault.kind, "factor": fault.factor}
            for engine, fault in sorted(self._faults.items())
        ]


class FaultyRunner:
    """A runner that does what its engine's switch says."""

    def __init__(self, runner: Runner, engine: int, switches: Switches) -> None:
        self._runner = runner
        self._engine = engine
        self._switches = switches

    def __getattr__(self, name: str) -> Any:
        """Everything else is the runner's own."""
        return getattr(self._runner, name)

    def run(self, batch: Batch, slot: int) -> None:
        """See `Runner.run`.

        Raises:
            EngineError: The engine is down by order.
        """
        fault = self._begin()
        if fault is not None and fault.kind == "poison" and any(one.id == fault.id for one in batch.requests):
            self._doom()
        began_s = time.monotonic()
        self._runner.run(batch, slot)
        if fault is None:
            return
        if fault.kind == "slow":
            fault.over.wait((time.monotonic() - began_s) * (fault.factor - 1))
            batch.compute_ns += round((time.monotonic() - began_s) * 1e9) - batch.compute_ns - batch.copy_ns
        elif fault.kind == "wrong":
            batch.results[:] = [_wrong(result) for result in batch.results]

    def begin(self, batch: Batch, slot: int) -> int | None:
        """See `DirectRunner.begin`: an engine that has a fault has it on its worker's thread."""
        return cast(DirectRunner, self._runner).begin(batch, slot) if self._switches.now(self._engine) is None else None

    def probe(self, slot: int) -> None:
        """See `Runner.probe`.

        Raises:
            EngineError: The engine is down by order.
        """
        self._begin()
        self._runner.probe(slot)

    def _doom(self) -> None:
        """Have the engine's process end with the batch that it is about to be given.

        Raises:
            EngineError: It has none, or its process is not there.
        """
        session = self.session  # of a runner that runs a model; there is none where there is no process
        pid = session.process.pid if isinstance(session, IsolatedSession) else None
        if pid is None:
            raise EngineError("poison by order of a drill, and no process that could end of it.")
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(POISON_S, _end, (pid,))
        timer.daemon = True
        timer.start()

    def _begin(self) -> _Fault | None:
        fault = self._switches.now(self._engine)
        if fault is not None and fault.kind == "hang":
            fault.over.wait(FOR_S_MAX)
        elif fault is not None and fault.kind in ("down", "crash"):
            raise EngineError("down by order of a drill.")
        return fault


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wrong(result: Work | StageError) -> Work | StageError:
    if isinstance(result, StageError):
        return result
    tensors = {
        name: (tensor * np.asarray(WRONG_BY, tensor.dtype) if tensor.dtype.kind == "f" else tensor)
        for name, tensor in result.tensors.items()
    }
    return Work(tensors, result.context)


def with_switches(stages: list[LoadedStage], switches: Switches) -> list[LoadedStage]:
    """The same stages with runners that heed the switches."""

    def faulty(runners: Mapping[int, Runner]) -> dict[int, Runner]:
        return {engine: FaultyRunner(runner, engine, switches) for engine, runner in runners.items()}

    return [
        replace(loaded, versions=tuple(replace(one, runners=faulty(one.runners)) for one in loaded.versions))
        for loaded in stages
    ]
