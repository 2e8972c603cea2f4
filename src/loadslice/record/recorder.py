"""The recorder: a bounded list that requests append to, and the thread that writes it away."""

import atexit

# Registers its exit handler now: Polars, which the writer thread imports, brings it in, and a process that ends right
# after its first request would refuse that ("can't register atexit after shutdown").
import concurrent.futures.thread  # noqa: F401
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadslice.record.asgi import AsgiApp, AsgiMiddleware
from loadslice.record.body import Body
from loadslice.record.request import Request, note, stage
from loadslice.record.wsgi import WsgiApp, WsgiMiddleware
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason

PAYLOADS_PENDING_MAX = 16
PAYLOADS_MAX = 1000
PAYLOAD_EVERY = 100
HISTOGRAM_BITS = 40

_log = logging.getLogger("loadslice.record")


class Recorder:
    """Records requests of one service into a folder.

    Args:
        path: Folder for the parts; made if absent. Several worker processes may share it.
        sample_payloads: Keep request bodies: one in 100 (``True``) or one in N, at most 1,000 a process, none over
            1 MiB. Bodies may be personal data, so the default keeps none.
        part_rows: A part is written when so many requests wait, or after ``flush_s``. Making one takes the interpreter
            about 2 us a row, in a thread.
        pending_max: Requests that may wait for the writer; more are dropped and counted.
        flush_s: Longest time a request stays in memory only.
        utilisation_s: Sampling period of processor, memory, disk and NVIDIA GPUs, from the first request on;
            ``None``: none.
        max_bytes: Size of all parts; beyond it the oldest go.

    Raises:
        InputError: The folder cannot be made or written to.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        sample_payloads: bool | int = False,
        part_rows: int = 20_000,
        pending_max: int = 200_000,
        flush_s: float = 60.0,
        utilisation_s: float | None = 5.0,
        max_bytes: int = 1 << 30,
    ) -> None:
        self.path = Path(path)
        self._payload_every = PAYLOAD_EVERY if sample_payloads is True else int(sample_payloads)
        self._part_rows = part_rows
        self._pending_max = pending_max
        self._flush_s = flush_s
        self._utilisation_s = utilisation_s
        self._max_bytes = max_bytes
        # Rows carry wall-clock times that only move forward: a wall clock set back would reorder them.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self.last_error: str | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be recorded to, {reason(error)}.") from error
        self._reset()
        if hasattr(os, "register_at_fork"):
            this = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _reset_after_fork(this))
        atexit.register(self._close_at_exit)

    def _reset(self) -> None:
        """State of one process; a forked worker starts anew, without its parent's rows and thread."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pending: list[Request] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._begun = self._dropped = self._failed = self._written = 0
        self._parts = self._parts_removed = self._payloads = self._payloads_pending = 0
        self._histogram = [0] * HISTOGRAM_BITS

    def begin(self) -> Request:
        """Open a request, to be given to `end` whatever happens to it."""
        return Request(time.perf_counter_ns())

    def end(self, request: Request) -> None:
        """Close a request and hand it to the writer, or drop it when the writer is too far behind."""
        request.end_ns = time.perf_counter_ns()
        bucket = min(HISTOGRAM_BITS - 1, ((request.end_ns - request.begin_ns) // 1000).bit_length())
        with self._lock:
            self._begun += 1
            self._histogram[bucket] += 1
            if request.status is not None and request.status >= 500:
                self._failed += 1
            if self._closing or len(self._pending) >= self._pending_max:
                self._dropped += 1
                self._payloads_pending -= request.payload is not None
                return
            self._pending.append(request)
            if self._thread is None:
                self._start()
            elif len(self._pending) == self._part_rows:
                self._wake.set()

    def counters(self) -> dict[str, Any]:
        """Counts since the start of this process; ``latency_us_histogram`` maps an upper bound to its requests."""
        with self._lock:
            return {
                "requests": self._begun,
                "failed": self._failed,
                "dropped": self._dropped,
                "waiting": len(self._pending),
                "written": self._written,
                "parts": self._parts,
                "parts_removed": self._parts_removed,
                "payloads": self._payloads,
                "latency_us_histogram": {1 << bit: count for bit, count in enumerate(self._histogram) if count},
            }

    def asgi(self, app: AsgiApp) -> AsgiMiddleware:
        """Wrap an ASGI application (FastAPI, Starlette, Django)."""
        return AsgiMiddleware(app, self)

    def wsgi(self, app: WsgiApp) -> WsgiMiddleware:
        """Wrap a WSGI application (Flask, Django)."""
        return WsgiMiddleware(app, self)

    stage = staticmethod(stage)
    note = staticmethod(note)

    def close(self, *, join: bool = True) -> Path | None:
        """Write what waits and stop; later requests count as dropped. Closing twice does nothing more.

        Args:
            join: Join the parts (of all processes) into ``trace.parquet``; the parts stay.

        Returns:
            The trace, or ``None`` when nothing was recorded or ``join`` is off.

        Raises:
            InputError: The last rows or the trace could not be written.
        """
        with self._lock:
            self._closing = True
            thread = self._thread
        atexit.unregister(self._close_at_exit)
        if thread is not None:
            self._wake.set()
            thread.join()
        if self.last_error is not None:
            raise InputError(f"{self.path}: rows were lost, {self.last_error}")
        if not join or not any(self.path.glob("part-*.parquet")):
            return None
        from loadslice.workload import recording, trace

        target = self.path / "trace.parquet"
        trace.write(recording.read(self.path), target)
        return target

    def wants_payload(self) -> bool:
        """Whether the body of a request that begins now should be kept."""
        return (
            self._payload_every > 0
            and self._begun % self._payload_every == 0
            and self._payloads < PAYLOADS_MAX
            and self._payloads_pending < PAYLOADS_PENDING_MAX
        )

    def keep_payload(self, request: Request, body: Body) -> None:
        """Attach what was read of a body to its request; call it before `end`."""
        request.payload = body.whole()
        if request.payload is not None:
            with self._lock:
                self._payloads_pending += 1

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._write_until_closed, name="loadslice-record", daemon=True)
        self._thread.start()

    def _close_at_exit(self) -> None:
        try:
            self.close(join=False)
        except InputError as error:
            _log.error("%s", error)

    def _write_until_closed(self) -> None:
        from loadslice.workload import machine, recording

        folder = recording.Folder(self.path, self._max_bytes, self._epoch_ns, time.time_ns())
        sampler = machine.Sampler(time.time_ns()) if self._utilisation_s else None
        now = time.monotonic()
        flush_at, sample_at = now + self._flush_s, now + (self._utilisation_s or float("inf"))
        while True:
            self._wake.wait(max(0.0, min(flush_at, sample_at) - time.monotonic()))
            self._wake.clear()
            now, closing = time.monotonic(), self._closing
            if sampler is not None and now >= sample_at:
                sample_at = now + (self._utilisation_s or 0.0)
                with self._noting_errors():
                    folder.append_utilisation(sampler.sample(time.time_ns()))
            if closing or now >= flush_at or len(self._pending) >= self._part_rows:
                flush_at = now + self._flush_s
                self._flush(folder)
            if closing:
                return

    @contextlib.contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Keep what went wrong for `close` to raise; the service must not notice, so it is logged once."""
        try:
            yield
        except InputError as error:
            if self.last_error is None:
                _log.error("%s", error)
            self.last_error = str(error)

    def _flush(self, folder: Any) -> None:
        """Write what waits; rows of a part that fails are dropped and counted."""
        with self._lock:
            # Only swapped under the lock: requests wait for it.
            rows, self._pending = self._pending, []
        for first in range(0, len(rows), self._part_rows):
            part = rows[first : first + self._part_rows]
            written = removed = kept = 0
            with self._noting_errors():
                kept = folder.write_payloads(part, PAYLOADS_MAX - self._payloads)
                removed = folder.write_part(part)
                written = len(part)
            with self._lock:
                self._written += written
                self._dropped += len(part) - written
                self._parts += bool(written)
                self._parts_removed += removed
                self._payloads += kept
                self._payloads_pending -= sum(row.payload is not None for row in part) if self._payload_every else 0


def _reset_after_fork(recorder: "weakref.ref[Recorder]") -> None:
    alive = recorder()
    if alive is not None:
        alive._reset()  # noqa: SLF001
