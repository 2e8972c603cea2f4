"""What runs one batch of one stage on one engine: a Python function or a model's session.

A `Runner` is called by its engine's worker threads and by nobody else.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from loadslice.backends.base import REMOTE, EngineError, HasRoom, Session
from loadslice.backends.gather import bucket_shape, gather, no_rows, scatter
from loadslice.backends.isolated.arena import LENT_BYTES_MAX
from loadslice.backends.isolated.session import IsolatedSession
from loadslice.backends.python_stage import StageFunction
from loadslice.backends.remote_http import Call
from loadslice.backends.remote_oip import RemoteOipSession
from loadslice.backends.remote_openai import RemoteOpenAiSession
from loadslice.backends.split import SplitSession
from loadslice.serve.clock import Clock
from loadslice.serve.request import Batch
from loadslice.serve.tracing import passed_on
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Engine, Stage
from loadslice.spec.twin import TWIN
from loadslice.spec.work import StageError, StageInputError, Tensor, Work

_MOVING = (IsolatedSession, SplitSession)
"""Sessions that know what of their time was not computing."""

DIRECT_BYTES_MAX = 1 << 19
"""Largest batch, with its padding, that the loop's thread puts into an engine process's memory itself: copying it takes
50 us, which is what handing it to another thread would."""

REMOTE_PROBE_S = 2.0
"""Longest time another server may take over a probe: a worker that waits for one takes up no batch."""


class Runner(Protocol):
    """One stage on one engine."""

    def run(self, batch: Batch, slot: int) -> None:
        """Fill in results and times; blocks.

        Raises:
            EngineError: The runtime failed; the batch has no results.
        """

    def probe(self, slot: int) -> None:
        """Do the smallest piece of real work.

        Raises:
            EngineError: The runtime failed.
        """

    @property
    def is_open(self) -> bool:
        """Whether it can run now."""

    def open(self) -> None:
        """Load it again after `close`; does nothing where it is loaded.

        Raises:
            InputError: It cannot be loaded any more.
        """

    def close(self) -> None:
        """Free what was loaded."""


class DirectRunner(Runner, Protocol):
    """One stage on one engine that has a process of its own."""

    def begin(self, batch: Batch, slot: int) -> int | None:
        """Hand a batch to the process without waiting for it.

        Args:
            batch: Has been started.
            slot: As in `run`.

        Returns:
            A file descriptor that is readable when `end` may be called, which must be; ``None``: only `run` runs it.

        Raises:
            StageError: It does not fit, or a request in it does not, or padding has made it too large.
            EngineLostError: The process has ended.
        """

    def end(self, batch: Batch, slot: int) -> None:
        """Fill in what came of a batch that `begin` has handed over.

        Raises:
            StageError: A request in it does not fit.
            EngineError: The runtime failed, or the process has ended.
        """


class PythonRunner:
    """Runs a function request by request, so that one bad request fails alone."""

    def __init__(self, function: StageFunction, clock: Clock) -> None:
        self._function = function
        self._clock = clock

    def run(self, batch: Batch, slot: int) -> None:
        """See `Runner.run`."""
        began_ns = self._clock.now_ns()
        for work in batch.works:
            try:
                batch.results.append(self._function(work))
            except StageError as fault:
                batch.results.append(fault)
        self._clock.stretch(began_ns)
        batch.compute_ns = self._clock.now_ns() - batch.started_ns

    def probe(self, slot: int) -> None:
        """Reaching the worker is the whole round trip: a function has no state to ask."""

    @property
    def is_open(self) -> bool:
        """Always: there is nothing to load."""
        return True

    def open(self) -> None:
        """There is nothing to load."""

    def close(self) -> None:
        """Nothing was loaded."""


class ModelRunner:
    """Runs a model on a batch: gather, run, scatter. Rows that pad a batch are computed and thrown away.

    Args:
        stage: The stage.
        name: Of the engine.
        engine: The engine.
        load: Loads its model there.
        clock: Stamps copy and compute times.
        first: Whether its tensors come from the client.
    """

    def __init__(
        self, stage: Stage, name: str, engine: Engine, load: Callable[[], Session], clock: Clock, *, first: bool
    ) -> None:
        self.session = load()
        self._load = load
        self._is_open = True
        self._stage = stage
        self._keeps_time = engine.backend == TWIN
        self._is_remote = engine.backend in REMOTE
        self._carry = stage.carry
        accept = stage.accept.get(name)
        batch = stage.batch.get(name)
        self._pads = [] if batch is None else batch.pad_to
        self._static = None if accept is None or accept.shape is None else accept.shape[1:]
        self._first = first
        self._clock = clock
        self.probe_feeds: dict[str, Tensor] | None = None
        """Set once warm: the smallest feeds that this model has run on."""
        self._row_bytes: dict[int, int] = {}
        """Most that one row's outputs have taken so far, by bucket."""

    def padded_shape(self, bucket: int) -> list[int] | None:
        """What rows of a bucket are padded to here: an engine of one static shape takes every bucket at that shape."""
        return self._static if self._static is not None else bucket_shape(self._stage, bucket)

    def run(self, batch: Batch, slot: int) -> None:
        """See `Runner.run`."""
        shape = self.padded_shape(batch.bucket)
        try:
            results = self._run(batch, batch.works, shape, slot)
        except StageInputError:
            # Only the request whose tensors do not fit may fail: find it by running each alone.
            for work in batch.works:
                try:
                    batch.results.extend(self._run(batch, [work], shape, slot))
                except StageInputError as fault:
                    # Tensors made by the stage before are not the client's fault.
                    batch.results.append(fault if self._first else StageError(str(fault)))
        else:
            batch.results.extend(results)

    def _run(self, batch: Batch, works: Sequence[Work], shape: list[int] | None, slot: int) -> list[Work]:
        began_ns = self._clock.now_ns()
        rows = [work.items for work in works]
        moved_ns = 0
        if sum(rows) == 0:
            outputs = no_rows(self.session.outputs)
            ran_ns = done_ns = self._clock.now_ns()
        else:
            feeds = self._gathered(batch, works, shape, slot)
            ran_ns = self._clock.now_ns()
            outputs = self._call(feeds, batch, slot)
            if self._clock.is_dilated and not self._keeps_time:
                self._clock.stretch(ran_ns)
            done_ns = self._clock.now_ns()
            if isinstance(self.session, _MOVING):
                moved_ns = self.session.hand_over_ns(slot)
        results = self._shared(batch, outputs, works, rows)
        batch.compute_ns += done_ns - ran_ns - moved_ns
        batch.copy_ns += (ran_ns - began_ns) + (self._clock.now_ns() - done_ns) + moved_ns
        return results

    def _gathered(self, batch: Batch, works: Sequence[Work], shape: list[int] | None, slot: int) -> dict[str, Tensor]:
        # Asked by name: whether an object fits a protocol takes microseconds to find out.
        room_of = getattr(self.session, HasRoom.room.__name__, None)
        room = None if room_of is None else partial(room_of, slot)
        return gather(works, shape, self.session.inputs, self._padded(batch), room)

    def _shared(self, batch: Batch, outputs: dict[str, Tensor], works: Sequence[Work], rows: list[int]) -> list[Work]:
        """Each request its own rows, without those that padded the batch."""
        if isinstance(self.session, IsolatedSession):
            row_bytes = sum([tensor.nbytes for tensor in outputs.values()]) // max(1, sum(rows), self._padded(batch))
            self._row_bytes[batch.bucket] = max(row_bytes, self._row_bytes.get(batch.bucket, 0))
        if self._pads and sum(rows) > 0:
            outputs = _real_rows(outputs, sum(rows), max(sum(rows), self._padded(batch)))
        return [
            Work(tensors if not self._carry else self._carried(work) | tensors, work.context)
            for tensors, work in zip(scatter(outputs, rows), works, strict=True)
        ]

    def begin(self, batch: Batch, slot: int) -> int | None:
        """See `DirectRunner.begin`."""
        session = self.session
        if (
            not isinstance(session, IsolatedSession)
            or batch.rows == 0
            or self._clock.is_dilated
            or not session.is_numeric
            or sum([tensor.nbytes for work in batch.works for tensor in work.tensors.values()]) > DIRECT_BYTES_MAX
            or self._copies_out(batch, session, slot)
            or not session.reserve(slot)
        ):
            return None
        try:
            room = partial(_direct_room, session, slot)
            shape = self.padded_shape(batch.bucket)
            feeds = gather(batch.works, shape, session.inputs, self._padded(batch), room)
            batch.copy_ns = self._clock.now_ns() - batch.started_ns
            return session.send(feeds, slot)
        except BaseException:
            session.free(slot)
            raise

    def _copies_out(self, batch: Batch, session: IsolatedSession, slot: int) -> bool:
        """Whether outputs will be copied that are so large that the loop must not wait for it."""
        outputs_bytes = max(batch.rows, self._padded(batch)) * self._row_bytes.get(batch.bucket, 0)
        return outputs_bytes > LENT_BYTES_MAX or (outputs_bytes > DIRECT_BYTES_MAX and not session.lends(slot))

    def end(self, batch: Batch, slot: int) -> None:
        """See `DirectRunner.end`."""
        session = self.session
        assert isinstance(session, IsolatedSession)
        try:
            outputs = session.receive(slot)
            moved_ns = session.hand_over_ns(slot)
        finally:
            session.free(slot)
        done_ns = self._clock.now_ns()
        batch.results.extend(self._shared(batch, outputs, batch.works, [work.items for work in batch.works]))
        batch.compute_ns = done_ns - batch.started_ns - batch.copy_ns - moved_ns
        batch.copy_ns += moved_ns + self._clock.now_ns() - done_ns

    def _carried(self, work: Work) -> dict[str, Tensor]:
        """Tensors of a request that pass this stage by; one that is missing is missed by whoever reads it."""
        return {name: work.tensors[name] for name in self._carry if name in work.tensors}

    def _call(self, feeds: dict[str, Tensor], batch: Batch, slot: int) -> dict[str, Tensor]:
        """Run; another server is told how long the batch's requests may still take, and is left when nobody waits."""
        if not self._is_remote:
            return self.session.run(feeds, slot)
        assert isinstance(self.session, RemoteOipSession | RemoteOpenAiSession)
        calls = self.session.remote.calls
        calls[slot] = Call(
            self._until_s(batch),
            is_wanted=lambda: any(one.outcome is Outcome.NONE for one in batch.requests),
            traceparent=passed_on(request.traceparent for request in batch.requests),
        )
        try:
            return self.session.run(feeds, slot)
        finally:
            calls[slot] = Call()  # whoever warms or probes next waits as long as the engine's options say

    def _until_s(self, batch: Batch) -> float | None:
        """When the last of a batch's requests is late, on the monotonic clock; ``None``: it may take any time."""
        if not batch.requests:
            return None  # an example while warming up
        until_ns = max(request.deadline_ns for request in batch.requests)
        if self._stage.timeout_ms is not None:
            timeout_ns = round(self._stage.timeout_ms * 1e6)
            until_ns = min(until_ns, max(passage.enqueued_ns for passage in batch.passages) + timeout_ns)
        return self._clock.loop_time(until_ns)

    def _padded(self, batch: Batch) -> int:
        if not self._pads:
            return 0
        return batch.padded or self._pads[-1]

    def probe(self, slot: int) -> None:
        """See `Runner.probe`."""
        if self.probe_feeds is None:
            return
        if isinstance(self.session, RemoteOipSession | RemoteOpenAiSession):
            self.session.remote.calls[slot] = Call(time.monotonic() + REMOTE_PROBE_S)
        self.session.run(self.probe_feeds, slot)

    @property
    def is_open(self) -> bool:
        """See `Runner.is_open`."""
        return self._is_open

    def open(self) -> None:
        """See `Runner.open`."""
        if not self._is_open:
            self.session = self._load()
            self._is_open = True

    def close(self) -> None:
        """See `Runner.close`."""
        self._is_open = False
        self.session.close()


def _direct_room(session: IsolatedSession, slot: int, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Tensor] | None:
    """Where the loop's thread writes a batch.

    Raises:
        StageError: Padding has made it too large for that: requests of different shapes, a large bucket, many rows.
    """
    sizes = [math.prod(shape) * info.dtype.itemsize for info, shape in zip(session.inputs, shapes, strict=True)]
    if sum(sizes) > DIRECT_BYTES_MAX:
        raise StageError(f"{sum(sizes)} bytes with padding are more than the loop may wait for.")
    return session.room(slot, shapes)


def _real_rows(outputs: dict[str, Tensor], rows: int, padded: int) -> dict[str, Tensor]:
    """The outputs without the rows that padded the batch.

    Raises:
        EngineError: An output's dimension 0 does not count the rows that went in.
    """
    for name, tensor in outputs.items():
        if tensor.ndim == 0 or tensor.shape[0] != padded:
            raise EngineError(
                f"output '{name}' has shape {tensor.shape} for {padded} rows; dimension 0 must count rows."
            )
    return {name: tensor[:rows] for name, tensor in outputs.items()}


@contextmanager
def opened(runner: Runner) -> Iterator[None]:
    """Have a model loaded for a while; where it was not before, it is dropped again.

    Raises:
        InputError: It cannot be loaded.
    """
    was_open = runner.is_open
    runner.open()
    try:
        yield
    finally:
        if not was_open:
            runner.close()
