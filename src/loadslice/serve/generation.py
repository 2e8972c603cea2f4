"""One generation: a pipeline loaded and warm, with a core state, engines and a journal of its own.

A server has one that takes what arrives, and for a while one before it that ends what it began. They share the front,
the clock and nothing else, so that a switch needs nothing of the policy core: every request lives and ends in the
generation it arrived in, and the journal of each replays by itself.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loadslice.policy import columns as c
from loadslice.policy import events
from loadslice.policy.tables import State, Tables, fresh, lower, rule_sources
from loadslice.serve.admission import Admission
from loadslice.serve.clock import Clock
from loadslice.serve.compiled import compile_apart
from loadslice.serve.console.recent import Recent
from loadslice.serve.core import warm_kernels
from loadslice.serve.datatypes import name_of
from loadslice.serve.degraded import DegradedReplies, load_degraded
from loadslice.serve.engines import JOIN_TIMEOUT_S, Engines
from loadslice.serve.faults import Switches, with_switches
from loadslice.serve.health import Health
from loadslice.serve.inline import inline_rows
from loadslice.serve.limits import Limits
from loadslice.serve.logs import Witness
from loadslice.serve.metrics import Metrics
from loadslice.serve.patience import Patience
from loadslice.serve.refusals import NS_PER_S
from loadslice.serve.request import Batch, Request
from loadslice.serve.residents import open_first
from loadslice.serve.service import Service
from loadslice.serve.serving import Serving
from loadslice.serve.serving_metrics import ServingMetrics, Standing
from loadslice.serve.shell import Observer, Shell
from loadslice.serve.stages import LoadedStage, close_stages, load_stages
from loadslice.serve.warm import run_examples, warm_models
from loadslice.serve.watch import EngineWatch
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import dilation
from loadslice.spec.work import Work

if TYPE_CHECKING:
    from loadslice.serve.journal import JournalWriter

log = logging.getLogger(__name__)

CUT_OFF_S = 2.0
"""After the drain: how long replies to what was cut off may take, and how long a hung worker is waited for."""


class Lookout(Standing, Protocol):
    """Looks on where a canary serves."""

    def shell(
        self, pipeline: Pipeline, observer: Observer, record: Callable[[Request], None], **arguments: Any
    ) -> Shell:
        """What decides for a pipeline, under its eyes."""


class Generation:
    """One pipeline, from loading to closing.

    Args:
        number: 1 the first of a server.
        serving: What it serves.
        limits: What clients may ask.
        clock: The server's.
        journal: Folder of its own; ``None``: none is kept.
        rollout: Looks on where a canary serves under its eyes.
        switches: Of faults that a drill may order.
        witnesses: Told of each request that has ended.
        recent: Keeps the last of them for a console; told without looking at the clock, which it needs not.
    """

    def __init__(
        self,
        number: int,
        serving: Serving,
        limits: Limits,
        clock: Clock,
        *,
        journal: Path | None = None,
        rollout: Lookout | None = None,
        switches: Switches | None = None,
        witnesses: Sequence[Witness] = (),
        recent: Recent | None = None,
    ) -> None:
        self.number = number
        self.serving = serving
        self.pipeline = serving.pipeline
        self.tables: Tables = lower(serving.pipeline, serving.latency, rule_sources(serving.pipeline))
        self.state: State = fresh(self.tables, serving.pipeline.max_requests)
        self.metrics = Metrics(serving.pipeline, self.tables, self.state, clock)
        self.metrics.serving = ServingMetrics(number, serving.version, rollout)
        self.shell: Shell | None = None
        self.engines: Engines | None = None
        self.service: Service | None = None
        self._limits = limits
        self._clock = clock
        self._journal_folder = journal
        self._rollout = rollout
        self._switches = switches
        self._witnesses = witnesses
        self._recent = recent
        self._stages: list[LoadedStage] = []
        self._patience = Patience(limits.load_timeout_s)
        self._inline: dict[int, int] = {}
        self._outputs: list[dict[str, Any]] = []
        self._degraded: DegradedReplies | None = None
        self._watch: EngineWatch | None = None
        self._journal: JournalWriter | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._unrecorded: asyncio.Future[None] | None = None
        self._recorded = 0

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Requests by how they ended, so far."""
        return {
            outcome: int(self.state.counters[c.C_OUTCOMES + outcome])
            for outcome in Outcome
            if outcome is not Outcome.NONE
        }

    @property
    def inside(self) -> int:
        """Requests that have not ended."""
        return int(self.state.counters[c.C_IN_SYSTEM])

    @property
    def requests_max(self) -> int:
        """Requests that may be inside at once."""
        return self.pipeline.max_requests

    def check_successor(self, serving: Serving) -> None:
        """Refuse what the front, the clock or a drill could not follow from here.

        Raises:
            InputError: Names the key.
        """
        name = self.pipeline.pipeline
        if serving.pipeline.pipeline != name:
            raise InputError(
                f"pipeline: '{serving.pipeline.pipeline}' is another name than '{name}', which clients call; "
                "start another server for it."
            )
        if dilation(serving.pipeline) != dilation(self.pipeline):
            raise InputError("engines: emulated time runs at another pace; restart the server for that.")
        if self._switches is not None and list(serving.pipeline.engines) != list(self.pipeline.engines):
            raise InputError("engines: a server with --drills keeps its engines; restart it for others.")

    def load(self) -> None:
        """Everything that takes long; blocks, beside the loop.

        Raises:
            InputError: A model does not load or run, or does not answer as it once did.
        """
        compile_apart("pipeline", events.decide)
        warm_kernels(self.tables)
        try:
            self._patience.run(self._load)
        except BaseException:
            self.unload()
            raise

    def _load(self) -> None:
        """What may hang: runtimes, and functions of the user's own."""
        step, folder = self._patience.step, self.serving.folder
        try:
            step("degraded replies")
            self._degraded = load_degraded(self.pipeline, folder, self._limits)
            self._stages = load_stages(self.pipeline, folder, self._clock, step)
            warm_models(self.pipeline, self._stages, step=step)
            # Faults may be ordered where there are switches, and a fault must not stop the loop.
            self._inline = inline_rows(self.pipeline, self._stages) if self._switches is None else {}
            example = run_examples(self.pipeline, folder, self._stages, step)
            if self.serving.probation is not None:
                self.serving.probation(self._stages, step)
            open_first(self.pipeline, self._stages, self.state)
            self._outputs = _outputs(self._stages[-1], example)
            step("opening")
        except BaseException:
            self._free()  # it may be that nobody waits any more; who does is not told to give up, but why it failed
            raise

    def give_up(self) -> None:
        """Have `load` come back though what is being loaded does not."""
        self._patience.give_up()

    def unload(self) -> None:
        """Free every model of a generation that was not opened or has been closed; what is being loaded is given up."""
        self.give_up()
        self._free()

    def _free(self) -> None:
        stages, self._stages = self._stages, []
        close_stages(stages)

    def open(self) -> Service:
        """Start its workers; on the loop, once loaded.

        Raises:
            InputError: The journal's folder cannot be written.
        """
        assert self._degraded is not None
        if self._journal_folder is not None:
            # Here, because polars is a large library that a server without a journal does not need.
            from loadslice.serve.journal import JournalWriter

            self._journal = JournalWriter(self._journal_folder, self.pipeline, self.serving.latency)
            self.metrics.journal = self._journal
        stages = self._stages if self._switches is None else with_switches(self._stages, self._switches)
        engines = Engines(self.pipeline, stages, self._clock, self._on_batch, self._inline)
        parts: dict[str, Any] = {
            "tables": self.tables,
            "state": self.state,
            "clock": self._clock,
            "dispatch": engines.dispatch,
            "keep_events": self._journal is not None,
        }
        if self._rollout is None:
            self.shell = Shell(observer=self.metrics, **parts)
        else:
            self.shell = self._rollout.shell(self.pipeline, self.metrics, self._record, **parts)
        self.engines = engines
        engines.start()
        if self._journal is not None:
            self._schedule_flush()
        self._watch = EngineWatch(self.tables, engines, self.shell, self._clock, self._limits)
        self._watch.start()
        self._degraded.start()
        self.metrics.degraded = self._degraded
        self.metrics.twins.watch(self._stages)
        self.service = Service.of(
            self.pipeline,
            self._limits,
            shell=self.shell,
            admission=Admission(self._stages[0]),
            metrics=self.metrics,
            health=Health(engines, self._clock, self._limits.round_trip_timeout_s),
            degraded=self._degraded,
            outputs=self._outputs,
            record=self._record,
        )
        return self.service

    async def settle(self, timeout_s: float, hurry: asyncio.Event) -> int:
        """Let what is inside end and be replied to; cut off what is left after a while.

        Args:
            timeout_s: How long what is inside may run on.
            hurry: Ends the waiting.

        Returns:
            Requests that were cut off.
        """
        assert self.shell is not None
        began_ns = self._clock.now_ns()
        await _either(self._idle(), hurry, timeout_s)
        cut = self.shell.cancel_all()
        if cut:
            waited_s = (self._clock.now_ns() - began_ns) / NS_PER_S
            log.warning("%d requests were still inside after %.1f s and were cancelled", cut, waited_s)
        await _either(self._idle(), hurry, CUT_OFF_S)
        return cut

    async def _idle(self) -> None:
        """Wait until nothing is inside and everybody has been replied to."""
        assert self.shell is not None
        await self.shell.idle()
        while self._recorded < sum(self.outcomes.values()):
            self._unrecorded = asyncio.get_running_loop().create_future()
            await self._unrecorded

    async def close(self, *, wait: bool) -> None:
        """End the workers, free the models, close the journal.

        Args:
            wait: Whether workers that are still busy are waited for.

        Raises:
            InputError: The journal could not be written.
        """
        shell, engines = self.shell, self.engines
        assert shell is not None
        assert engines is not None
        shell.close()
        if self._watch is not None:
            self._watch.stop()
        if self._degraded is not None:
            self._degraded.stop()
        hung = await asyncio.to_thread(engines.stop, JOIN_TIMEOUT_S if wait else 0.0)
        if hung:
            log.warning("workers that did not come back: %s", ", ".join(hung))
        else:
            self.unload()
        if self._flush is not None:
            self._flush.cancel()
        try:
            if self._journal is not None:
                await asyncio.to_thread(
                    self._journal.close,
                    shell.take_events(),
                    outcomes=self.outcomes,
                    span_ns=self._clock.now_ns(),
                    effects_sha256=shell.effects_sha256,
                )
        finally:
            engines.forget()
            self.service = self._watch = None

    def _on_batch(self, batch: Batch) -> None:
        assert self.shell is not None
        self.shell.batch_done(batch)

    def _record(self, request: Request) -> None:
        self._recorded += 1
        recent = self._recent
        if recent is not None and (recent.room or request.outcome is not Outcome.COMPLETED or request.id is not None):
            recent.ended(self.pipeline, request)
        for witness in self._witnesses:
            try:
                witness.ended(self.pipeline, request, self._clock.now_ns())
            except Exception:
                # It looks on: what it makes of an answer is nothing to the connection that the answer went out on.
                log.exception("a request was not witnessed")
        if self._unrecorded is not None and not self._unrecorded.done():
            self._unrecorded.set_result(None)
        if self._journal is not None:
            self._journal.add(request)
            if self._journal.is_full:
                self._flush_journal()

    def _flush_journal(self) -> None:
        if self._journal is not None and self.shell is not None:
            self._journal.flush(self.shell.take_events())

    def _schedule_flush(self) -> None:
        from loadslice.serve.journal import FLUSH_S

        self._flush_journal()
        self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self._schedule_flush)


async def _either(waiting_for: Any, hurry: asyncio.Event, timeout_s: float) -> None:
    """Wait for something, but not longer than a time, and not once there is a hurry."""
    waiting = [asyncio.ensure_future(waiting_for), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)


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
