"""One live server: opens the port, loads, warms, serves, drains, closes the journal."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadslice.policy import columns as c
from loadslice.policy.tables import State, Tables, fresh, lower, rule_sources
from loadslice.serve.admission import Admission
from loadslice.serve.clock import Clock
from loadslice.serve.connection import HttpServer
from loadslice.serve.datatypes import name_of
from loadslice.serve.degraded import DegradedReplies, load_degraded
from loadslice.serve.engines import JOIN_TIMEOUT_S, SWITCH_INTERVAL_S, Engines
from loadslice.serve.front import Front, Service
from loadslice.serve.health import Health
from loadslice.serve.limits import Limits
from loadslice.serve.listener import close_listener, open_listener
from loadslice.serve.metrics import Metrics
from loadslice.serve.refusals import NS_PER_S
from loadslice.serve.request import Batch, Request
from loadslice.serve.residents import open_first
from loadslice.serve.shell import Shell, warm_kernels
from loadslice.serve.stages import LoadedStage, close_stages, load_stages
from loadslice.serve.warm import run_examples, warm_models
from loadslice.serve.watch import EngineWatch
from loadslice.spec.errors import InputError
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import dilation
from loadslice.spec.work import Work

if TYPE_CHECKING:
    from loadslice.serve.journal import JournalWriter

log = logging.getLogger(__name__)

CUT_OFF_S = 2.0
"""After the drain: how long replies to what was cut off may take, and how long a hung worker is waited for."""

LAST_CALL_S = 0.2
"""How long connections that were taken in the last moment may take to bring the request that will be refused."""


class Server:
    """One pipeline on one port.

    Args:
        pipeline: Checked.
        folder: Where the pipeline file stands.
        host: Address to listen on.
        port: 0: any free one.
        latency: Expected service times; without it the core learns them.
        journal: Folder for the journal; ``None``: none is kept.
        limits: What clients may ask.
        drain_s: How long `stop` lets requests inside run on.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        latency: LatencyTable | None = None,
        journal: Path | None = None,
        limits: Limits | None = None,
        drain_s: float = 20.0,
    ) -> None:
        self.tables: Tables = lower(pipeline, latency, rule_sources(pipeline))
        self.state: State = fresh(self.tables, pipeline.max_requests)
        self.drain_s = drain_s
        self._pipeline = pipeline
        self._folder = folder
        self._host = host
        self._port = port
        self._latency = latency
        self._journal_folder = journal
        self._limits = limits or Limits()
        self._clock = Clock(dilation(pipeline))
        self._front = Front(pipeline, self._limits, self._clock)
        self._metrics = Metrics(pipeline, self.tables, self.state, self._clock)
        self._stages: list[LoadedStage] = []
        self._degraded: DegradedReplies | None = None
        self._engines: Engines | None = None
        self._shell: Shell | None = None
        self._watch: EngineWatch | None = None
        self._journal: JournalWriter | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._http: HttpServer | None = None
        self._listener: asyncio.Server | None = None
        self._hurry = asyncio.Event()
        self._switch_interval_s = sys.getswitchinterval()

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Requests by how they ended, so far."""
        return {
            outcome: int(self.state.counters[c.C_OUTCOMES + outcome])
            for outcome in Outcome
            if outcome is not Outcome.NONE
        }

    async def start(self) -> None:
        """Open the port, then load and warm; when this returns, the server is ready.

        Raises:
            InputError: The port is taken, a model does not load, the journal's folder cannot be used.
        """
        if self._journal_folder is not None and (self._journal_folder / "journal.json").exists():
            raise InputError(
                f"--journal {self._journal_folder}: holds a journal already. Choose another folder or remove it; "
                f"`loadslice check {self._journal_folder}` shows what is in it."
            )
        await self._listen()
        try:
            outputs = await asyncio.to_thread(self._load)
            self._serve(outputs)
        except BaseException:
            await self._close_front()
            close_stages(self._stages)
            raise

    async def stop(self) -> None:
        """Admit nothing more, let what is inside end, cut off the rest, close everything.

        Raises:
            InputError: The journal could not be written.
        """
        shell, engines = self._shell, self._engines
        if shell is None or engines is None:
            await self._close_front()
            return
        shell.drain()
        began_ns = self._clock.now_ns()
        await self._idle(shell, self.drain_s)
        cut = shell.cancel_all()
        if cut:
            waited_s = (self._clock.now_ns() - began_ns) / NS_PER_S
            log.warning("%d requests were still inside after %.1f s and were cancelled", cut, waited_s)
        await self._idle(shell, CUT_OFF_S)
        await self._close_front()
        shell.close()
        if self._watch is not None:
            self._watch.stop()
        if self._degraded is not None:
            self._degraded.stop()
        hung = await asyncio.to_thread(engines.stop, 0.0 if self._hurry.is_set() else JOIN_TIMEOUT_S)
        if hung:
            log.warning("workers that did not come back: %s", ", ".join(hung))
        else:
            close_stages(self._stages)
        sys.setswitchinterval(self._switch_interval_s)
        await self._close_journal(shell)

    def hurry(self) -> None:
        """Have `stop` wait for nothing: what is inside is cut off with an outcome, and the journal closed."""
        self._hurry.set()

    async def _idle(self, shell: Shell, timeout_s: float) -> None:
        """Wait until nothing is inside, the time is over, or there is a hurry."""
        waiting = [asyncio.ensure_future(shell.idle()), asyncio.ensure_future(self._hurry.wait())]
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)

    async def drained(self, timeout_s: float = 30.0) -> None:
        """Wait until nothing is inside; for tests and for whoever stops a load before stopping the server."""
        assert self._shell is not None
        async with asyncio.timeout(timeout_s):
            await self._shell.idle()

    async def _listen(self) -> None:
        self._http = HttpServer(self._front.handle, self._limits)
        self._listener = await open_listener(self._http, self._host, self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    def _load(self) -> list[dict[str, Any]]:
        """Everything that takes long; runs beside the loop, so that the port answers meanwhile."""
        warm_kernels(self.tables)
        self._degraded = load_degraded(self._pipeline, self._folder, self._limits)
        self._stages = load_stages(self._pipeline, self._folder, self._clock)
        warm_models(self._pipeline, self._stages)
        example = run_examples(self._pipeline, self._folder, self._stages)
        open_first(self._pipeline, self._stages, self.state)
        return _outputs(self._stages[-1], example)

    def _serve(self, outputs: list[dict[str, Any]]) -> None:
        if self._journal_folder is not None:
            # Here, because polars is a large library that a server without a journal does not need.
            from loadslice.serve.journal import JournalWriter

            self._journal = JournalWriter(self._journal_folder, self._pipeline, self._latency)
            self._metrics.journal = self._journal
            self._schedule_flush()
        engines = Engines(self._pipeline, self._stages, self._clock, self._on_batch)
        self._shell = Shell(
            self.tables,
            self.state,
            self._clock,
            engines.dispatch,
            self._metrics,
            keep_events=self._journal is not None,
        )
        self._engines = engines
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        engines.start()
        self._watch = EngineWatch(self.tables, engines, self._shell, self._clock, self._limits)
        self._watch.start()
        assert self._degraded is not None
        self._degraded.start()
        self._metrics.degraded = self._degraded
        self._metrics.twins.watch(self._stages)
        self._front.service = Service(
            shell=self._shell,
            admission=Admission(self._stages[0]),
            metrics=self._metrics,
            health=Health(engines, self._clock, self._limits.round_trip_timeout_s),
            degraded=self._degraded,
            outputs=outputs,
            record=self._record,
        )

    def _on_batch(self, batch: Batch) -> None:
        assert self._shell is not None
        self._shell.batch_done(batch)

    def _record(self, request: Request) -> None:
        if self._journal is not None:
            self._journal.add(request)
            if self._journal.is_full:
                self._flush_journal()

    def _flush_journal(self) -> None:
        if self._journal is not None and self._shell is not None:
            self._journal.flush(self._shell.take_events())

    def _schedule_flush(self) -> None:
        from loadslice.serve.journal import FLUSH_S

        self._flush_journal()
        self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self._schedule_flush)

    async def _close_front(self) -> None:
        if self._http is not None:
            if self._listener is not None:
                await close_listener(self._listener, self._http, LAST_CALL_S)
            # Idle connections close now; handlers that still write get this long.
            await self._http.shutdown(CUT_OFF_S)

    async def _close_journal(self, shell: Shell) -> None:
        if self._flush is not None:
            self._flush.cancel()
        if self._journal is not None:
            await asyncio.to_thread(
                self._journal.close,
                shell.take_events(),
                outcomes=self.outcomes,
                span_ns=self._clock.now_ns(),
                effects_sha256=shell.decisions.hexdigest(),
            )


def _outputs(last: LoadedStage, example: Work | None) -> list[dict[str, Any]]:
    """What the pipeline gives, in the protocol's words: from its model, or from what its example gave."""
    if last.stable.outputs is not None:
        return [
            {
                "name": info.name,
                "datatype": name_of(info.dtype),
                "shape": [-1 if side is None else side for side in info.shape],
            }
            for info in last.stable.outputs
        ]
    if example is None:
        return []
    return [
        {"name": name, "datatype": name_of(tensor.dtype), "shape": [-1, *tensor.shape[1:]]}
        for name, tensor in example.tensors.items()
    ]
