"""One live server: opens the port, serves generation after generation, drains, closes the journals."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from loadslice.policy.tables import State, Tables
from loadslice.serve import openapi
from loadslice.serve.access import Access
from loadslice.serve.administration import Administration, Guard
from loadslice.serve.clock import Clock
from loadslice.serve.console.desk import PAGE as CONSOLE
from loadslice.serve.console.pipeline_console import PipelineConsole
from loadslice.serve.drift import DriftSampler
from loadslice.serve.engines import SWITCH_INTERVAL_S
from loadslice.serve.faults import Switches
from loadslice.serve.front import Front
from loadslice.serve.generation import Generation
from loadslice.serve.limits import Limits
from loadslice.serve.logs import Witness
from loadslice.serve.ports import Ports
from loadslice.serve.rollout import Rollout
from loadslice.serve.rollout_record import Versions
from loadslice.serve.serving import Probation, Serving
from loadslice.serve.state_file import StateFile
from loadslice.serve.usage import UsageKeeper
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason
from loadslice.spec.latency import LatencyTable
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import dilation

if TYPE_CHECKING:
    from loadslice.serve.grpc_front import GrpcFront

log = logging.getLogger(__name__)

ADMIN_HOST = "127.0.0.1"
"""Where a port of its own for administration listens."""

GENERATION_FOLDER = "generation-{}"
"""Inside ``--journal``: journals of the second and later generations; the first one's stands in the folder itself."""


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
        drain_s: How long `stop`, and a generation that has been replaced, let requests inside run on.
        source: Gives anew what to serve, from the same file; ``None``: `reload` is refused.
        guard: Who may reach it, and how; by default whoever reaches its address may infer, and nobody administer it.
        grpc: Port for gRPC, 0: any free one; ``None``: none.
        witnesses: Told of each request that has ended.
        version: Of a repository; as `Serving`.
        probation: As `Serving`.
        state: SQLite file that remembers rollouts and quotas; ``None``: there are no rollouts, and quotas begin anew.
        versions: The repository that is served; ``None``: a pipeline file.
        console: Whether it has a console, where administration is reached.

    Raises:
        InputError: The state file cannot be read.
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
        source: Callable[[], Serving] | None = None,
        guard: Guard | None = None,
        grpc: int | None = None,
        witnesses: Sequence[Witness] = (),
        version: str | None = None,
        probation: Probation | None = None,
        state: Path | None = None,
        versions: Versions | None = None,
        console: bool = False,
    ) -> None:
        self.drain_s = drain_s
        self._guard = guard or Guard(Access(None))
        self._host = host
        self._port = port
        self._journal_folder = journal
        self._limits = limits or Limits()
        self._witnesses = witnesses
        self._clock = Clock(dilation(pipeline))
        self._front = Front(pipeline.pipeline, self._limits, self._clock, self._guard.access)
        self._switches = Switches(list(pipeline.engines)) if self._guard.drills else None
        openapi.add(self._front, self._limits)
        self._grpc = None if grpc is None else _grpc_front(pipeline.pipeline, self._front, self._limits, self._clock)
        self.grpc_port = grpc
        """Where gRPC listens, once it does."""
        self._state_file = None if state is None else StateFile(state)
        self._rollout: Rollout | None = None
        if self._state_file is not None:
            self._rollout = Rollout(self._state_file, self._switch, lambda: self._generation, versions=versions)
            self._guard.access.remember(self._state_file.usage())
        self._administration = Administration(self, self._guard, self._switches, self._rollout)
        self._admin_front = self._front
        if self._guard.admin_port is not None:
            self._admin_front = Front(pipeline.pipeline, self._limits, self._clock, self._guard.access)
            self._admin_front.routes = {}
        for witness in witnesses:
            if isinstance(witness, DriftSampler):
                witness.administer(self._administration.admin)
        self._administration.route(self._admin_front)
        self._console = PipelineConsole(self._admin_front, self._guard.access) if console else None
        self._stable = Serving(pipeline, folder, latency, version, probation)
        self._generation = self._next(1, self._stable if self._rollout is None else self._rollout.first(self._stable))
        self._source = source
        self._replacing = asyncio.Lock()
        self._retiring: asyncio.Task[None] | None = None
        self._coming: Generation | None = None
        """What is being loaded, to serve instead."""
        self._past: Counter[Outcome] = Counter()
        self._ports = Ports(self._limits, self._guard.tls)
        self._admin_port = self._guard.admin_port
        self._usage: UsageKeeper | None = None
        if self._state_file is not None and self._guard.tokens_file is not None:
            self._usage = UsageKeeper(self._state_file, self._guard.access)
        self._hurry = asyncio.Event()
        self._switch_interval_s = sys.getswitchinterval()

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    @property
    def admin_url(self) -> str:
        """Where its operator reaches it."""
        return self.url if self._admin_port is None else f"{self._scheme}://{ADMIN_HOST}:{self._admin_port}"

    @property
    def console_url(self) -> str | None:
        """Where a browser sees it; ``None``: it has no console."""
        return None if self._console is None else f"{self.admin_url}{CONSOLE}"

    @property
    def _scheme(self) -> str:
        return "http" if self._guard.tls is None else "https"

    @property
    def rollout(self) -> Rollout | None:
        """``None``: without a state file there is none."""
        return self._rollout

    @property
    def is_retiring(self) -> bool:
        """Whether a generation that has been replaced is still there."""
        return self._retiring is not None and not self._retiring.done()

    @property
    def generation(self) -> Generation:
        """The one that takes what arrives."""
        return self._generation

    @property
    def tables(self) -> Tables:
        """Of the generation that takes what arrives."""
        return self._generation.tables

    @property
    def state(self) -> State:
        """Of the generation that takes what arrives."""
        return self._generation.state

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Requests by how they ended, over all generations that have been closed and the one that serves."""
        return {outcome: count + self._past[outcome] for outcome, count in self._generation.outcomes.items()}

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
        generation = self._generation
        try:
            await asyncio.to_thread(generation.load)
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            self._front.service = generation.open()
            if self._rollout is not None:
                self._rollout.begin(self._stable)
            if self._usage is not None:
                self._usage.start()
            if self._console is not None:
                self._console.start(self, self._clock)
        except BaseException:
            await self._ports.close()
            generation.unload()
            raise

    async def refresh(self) -> dict[str, str | None]:
        """Read everything again: tokens, certificates, and what is served.

        Returns:
            Of each, why it stays as it was; ``None``: it is in force.
        """
        report = await self._guard.reload()
        try:
            await self.reload()
            report["what is served"] = None
        except InputError as error:
            report["what is served"] = str(error)
        return report

    async def reload(self) -> Generation:
        """Read the source again and serve what it says now; what is inside ends as it began.

        Raises:
            InputError: There is no source, or what it gives cannot be served; the old goes on serving.
        """
        if self._source is None:
            raise InputError("this server has no file to read again.")
        stable = await asyncio.to_thread(self._source)
        rollout = self._rollout
        generation = await self.replace(stable if rollout is None else await asyncio.to_thread(rollout.apply, stable))
        self._stable = stable
        if rollout is not None:
            rollout.begin(stable)
        return generation

    async def _switch(self, serving: Serving | None) -> None:
        """Serve something else, or what the source says now."""
        if serving is None:
            await self.reload()
        else:
            await self.replace(serving)

    async def replace(self, serving: Serving) -> Generation:
        """Load and warm another generation beside the one that serves, then let it take what arrives.

        Returns:
            The new one. The old one drains behind it and closes when nothing is inside, `drain_s` later at the latest.

        Raises:
            InputError: It cannot be served; the old goes on serving.
        """
        async with self._replacing:
            await self.retired()  # at most two are loaded at a time
            old = self._generation
            if old.shell is None or old.shell.draining:
                raise InputError("the server is starting or stopping.")
            old.check_successor(serving)
            new = self._coming = self._next(old.number + 1, serving)
            try:
                await asyncio.to_thread(new.load)
                if old.shell.draining:
                    raise InputError("the server is stopping.")
                service = new.open()
            except BaseException as error:
                new.unload()
                if isinstance(error, InputError) and old.shell.draining:
                    raise InputError("the server is stopping.") from error
                if isinstance(error, OSError):
                    raise InputError(f"the system does not let it be served: {reason(error)}.") from error
                raise
            finally:
                self._coming = None
            self._front.service = service
            self._generation = new
            self._retiring = asyncio.ensure_future(self._retire(old))
            return new

    def _next(self, number: int, serving: Serving) -> Generation:
        folder = self._journal_folder
        if folder is not None and number > 1:
            folder = folder / GENERATION_FOLDER.format(number)
        return Generation(
            number,
            serving,
            self._limits,
            self._clock,
            journal=folder,
            switches=self._switches,
            rollout=self._rollout,
            witnesses=self._witnesses,
            recent=None if self._console is None else self._console.recent,
        )

    async def _retire(self, old: Generation) -> None:
        """End a generation that takes nothing more."""
        try:
            await old.settle(self.drain_s, self._hurry)
            await old.close(wait=not self._hurry.is_set())
        except InputError as error:
            log.error("generation %d: %s", old.number, error)
        except Exception:
            log.exception("generation %d was not ended in order", old.number)
        self._past.update(old.outcomes)

    async def retired(self) -> None:
        """Wait until no generation but the serving one is there; who is cancelled while waiting here ends only that."""
        if self._retiring is not None:
            await asyncio.wait((self._retiring,))

    async def stop(self) -> None:
        """Admit nothing more, let what is inside end, cut off the rest, close everything.

        Raises:
            InputError: The journal could not be written.
        """
        generation = self._generation
        if generation.shell is None:
            await self._ports.close()
            return
        if self._rollout is not None:
            self._rollout.stop()
        if self._console is not None:
            self._console.stop()
        generation.shell.drain()
        if self._coming is not None:
            self._coming.give_up()  # or the thread that loads it would be waited for, as long as it takes
        await generation.settle(self.drain_s, self._hurry)
        await self.retired()
        await self._ports.close()
        try:
            await generation.close(wait=not self._hurry.is_set())
        finally:
            sys.setswitchinterval(self._switch_interval_s)
            if self._usage is not None:
                self._usage.stop()
            if self._state_file is not None:
                await asyncio.to_thread(self._state_file.close)

    def hurry(self) -> None:
        """Have `stop` wait for nothing: what is inside is cut off with an outcome, and the journal closed."""
        self._hurry.set()

    async def drained(self, timeout_s: float = 30.0) -> None:
        """Wait until nothing is inside; for tests and for whoever stops a load before stopping the server."""
        assert self._generation.shell is not None
        async with asyncio.timeout(timeout_s):
            await self._generation.shell.idle()

    async def _listen(self) -> None:
        ports = self._ports
        try:
            self._port = await ports.open(self._front, self._host, self._port)
            if self._grpc is not None and self.grpc_port is not None:
                self.grpc_port = await ports.open_grpc(self._grpc, self._host, self.grpc_port)
            if self._admin_port is not None:
                self._admin_port = await ports.open(self._admin_front, ADMIN_HOST, self._admin_port)
        except BaseException:
            await ports.close()
            raise


def _grpc_front(name: str, front: Front, limits: Limits, clock: Clock) -> "GrpcFront":
    # Here, because protobuf is an extra.
    from loadslice.serve.grpc_front import GrpcFront

    return GrpcFront(name, front, limits, clock)
