"""One live language server: opens the port, starts the engines, serves, starts lost engines anew, drains."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from loadslice.backends.language import messages as m
from loadslice.backends.language.gguf import converted, tokenizer_folder
from loadslice.backends.language.host import SLOT_BYTES_PER_TOKEN, SharedSlots
from loadslice.backends.language.room import check_room
from loadslice.backends.language.words import Words
from loadslice.backends.language.worker import HEADER_BYTES
from loadslice.policy.tokens import desk
from loadslice.policy.tokens.desk import LATE_NS
from loadslice.policy.tokens.layout import State, Tables
from loadslice.policy.tokens.tables import Company, fresh, lower
from loadslice.serve.access import Access
from loadslice.serve.clock import Clock
from loadslice.serve.compiled import compile_apart
from loadslice.serve.console.desk import PAGE
from loadslice.serve.console.language_console import LanguageConsole
from loadslice.serve.http_server import HttpServer
from loadslice.serve.language.completions import Completions
from loadslice.serve.language.engines import LanguageEngines
from loadslice.serve.language.front import LanguageFront, LanguageService
from loadslice.serve.language.journal import FLUSH_S, LanguageJournalWriter, refuse_used
from loadslice.serve.language.layouts import check_layouts, check_slots, check_vocabularies
from loadslice.serve.language.metrics import LanguageMetrics
from loadslice.serve.language.shell import LanguageShell
from loadslice.serve.language.starting import Starting
from loadslice.serve.limits import Limits
from loadslice.serve.listener import Listener, close_listener, open_listener
from loadslice.spec.errors import InputError
from loadslice.spec.language import REMOTE_BACKENDS, Language, LanguageEngine, StepCost, crowding

log = logging.getLogger(__name__)

WATCH_S = 0.5
DRAIN_S = 20.0
LAST_CALL_S = 0.2
CLOSE_S = 2.0


class LanguageServer:
    """One language model on one port.

    Args:
        language: Checked.
        model: Resolved path.
        host: Address to listen on.
        port: 0: any free one.
        costs: Step costs by engine that are known already; the others are measured when engines start.
        beside: What company costs, as a profile has it; default: what threads that share processors say.
        limits: What clients may ask.
        access: Who may ask.
        journal: Folder to keep one in.
        console: Whether it has a console.
        tell: Is told what is being done while it starts.
    """

    def __init__(
        self,
        language: Language,
        model: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        costs: Mapping[str, StepCost] | None = None,
        beside: Company | None = None,
        limits: Limits | None = None,
        access: Access | None = None,
        journal: Path | None = None,
        console: bool = False,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        self.language = language
        self.ready: dict[str, m.Ready] = {}
        """What engines said when they had loaded, by name."""
        self._model = model
        self._host, self._port = host, port
        self._costs = dict(costs or {})
        company = crowding(language, len(os.sched_getaffinity(0))) if beside is None else beside
        self._beside = {name: dict(others) for name, others in company.items()}
        self._limits = limits or Limits()
        self._clock = Clock()
        self._front = LanguageFront(language, self._limits, access, lambda: self._starting.text)
        self._console = LanguageConsole(self._front) if console else None
        self._journal_folder = journal
        self._journal: LanguageJournalWriter | None = None
        self._names = list(language.engines)
        self._starting = Starting(self._names, tell)
        self._slots = SharedSlots(*self._slot_sizes())
        self._engines = LanguageEngines(
            {name: self._load(name, engine) for name, engine in language.engines.items()},
            self._slots,
            self._starting,
            self._started,
        )
        self._shell: LanguageShell | None = None
        self._metrics: LanguageMetrics | None = None
        self._http: HttpServer | None = None
        self._listener: Listener | None = None
        self._watch: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def _slot_sizes(self) -> tuple[int, int]:
        # Twice as many as the links have: one whose lease ran out may still be written when the next is begun.
        slots = 2 * sum(link.slots for link in self.language.links)
        prompts = [engine.prompt_max or self.language.context for engine in self.language.engines.values()]
        tokens = max(prompts) + self.language.block
        return slots, tokens * SLOT_BYTES_PER_TOKEN + HEADER_BYTES

    def _load(self, name: str, engine: LanguageEngine) -> m.Load:
        return m.Load(
            model=str(self._model),
            backend=engine.backend,
            device=engine.device or "CPU",
            threads=engine.threads,
            kv_blocks=engine.kv_tokens // self.language.block,
            cached_blocks=engine.prefix_tokens // self.language.block,
            options=engine.options,
            slots=self._slots.slots,
            context=self.language.context,
            measure=engine.cost is None and self._costs.get(name) is None,
            seats=engine.seats,
            block=self.language.block,
            buckets=engine.buckets,
            prompt_max=engine.prompt_max or 0,
            decodes="decode" in engine.roles,
        )

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def pids(self) -> dict[str, int | None]:
        """Processes of the engines."""
        return {name: process.pid for name, process in zip(self._names, self._engines.processes, strict=True)}

    @property
    def starts(self) -> dict[str, int]:
        """How often each engine's process was started."""
        return {name: process.starts for name, process in zip(self._names, self._engines.processes, strict=True)}

    @property
    def console_url(self) -> str | None:
        """Where a browser sees it; ``None``: it has no console."""
        return None if self._console is None else f"{self.url}{PAGE}"

    @property
    def costs(self) -> dict[str, StepCost]:
        """What engines' steps cost, as served with."""
        return self._costs

    @property
    def tables(self) -> Tables:
        """Of the token desk."""
        assert self._shell is not None
        return self._shell.tables

    @property
    def state(self) -> State:
        """Of the token desk; read only."""
        assert self._shell is not None
        return self._shell.state

    async def start(self) -> None:
        """Open the port, start and measure the engines; when this returns, the server is ready.

        Raises:
            InputError: The port is taken, or the model does not load on an engine.
        """
        if self.language.context > m.CONTEXT_MAX:
            raise InputError(f"context: {self.language.context} is more than the {m.CONTEXT_MAX} that can be served.")
        if self._journal_folder is not None:
            refuse_used(self._journal_folder)
        self._http = HttpServer(self._front, self._limits)
        self._listener = await open_listener(self._http, self._host, self._port)
        self._port = self._listener.sockets[0].getsockname()[1]
        try:
            is_elsewhere = all(engine.backend in REMOTE_BACKENDS for engine in self.language.engines.values())
            self._starting.say("reading the model's words, converting its file if need be")
            folder = await asyncio.to_thread(tokenizer_folder if is_elsewhere else converted, self._model)
            words = await asyncio.to_thread(Words, folder)
            self.ready = await self._engines.start()
            for name, ready in self.ready.items():
                self._costs.setdefault(name, self.language.engines[name].cost or _cost(ready))
            layouts = [self.ready[name].layout for name in self._names]
            check_layouts(self.language, layouts)
            check_slots(self.language, layouts, self._slot_sizes()[1] - HEADER_BYTES)
            need = sum(one.kv_bytes for one in self.ready.values())
            check_room(need, f"KV of all engines ({', '.join(self._names)})", "Lower `kv_tokens` or `prefix_tokens`.")
            check_vocabularies(self.ready, words)
            tables = lower(self.language, self._costs, self._beside)
            state = fresh(tables, self.language.max_sequences)
            self._starting.say("compiling the token desk's decisions, or loading them")
            await asyncio.to_thread(compile_apart, "language", desk.on_step_done)
            await asyncio.to_thread(warm_desk, tables)
            if self._journal_folder is not None:
                folder = self._journal_folder
                self._journal = LanguageJournalWriter(folder, self.language, self._costs, self._beside, tables, state)
        except BaseException:
            await self._close()
            raise
        self._metrics = LanguageMetrics(state, self._names, self._journal)
        for index, starts in enumerate(self.starts.values()):
            self._metrics.started(index, starts)
        observer = self._metrics if self._console is None else self._console.observed(self._metrics)
        self._shell = LanguageShell(
            tables, state, self._engines.processes, layouts, len(words.pieces), self._slots, self._clock, observer
        )
        self._engines.serve(self._shell)
        completions = Completions(self.language, self._shell, words, self._clock)
        self._front.service = LanguageService(self._shell, completions, self._metrics, self._is_ready)
        self._watch = asyncio.get_running_loop().create_task(self._look_after())
        if self._console is not None:
            self._console.start(self, self._clock)

    async def stop(self) -> None:
        """Admit nothing more, let what is inside end, cut off the rest, close everything.

        Raises:
            InputError: The journal could not be written; everything else is closed.
        """
        if self._console is not None:
            self._console.stop()
        if self._shell is not None:
            self._shell.drain()
            waits = [asyncio.ensure_future(self._shell.idle()), asyncio.ensure_future(self._hurry.wait())]
            await asyncio.wait(waits, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            cut = self._shell.cancel_all()
            if cut:
                log.warning("%d requests were still inside and were cancelled", cut)
        await self._close()

    def hurry(self) -> None:
        """Have `stop` wait for nothing."""
        self._hurry.set()

    def _started(self, index: int, starts: int) -> None:
        if self._metrics is not None:
            self._metrics.started(index, starts)

    async def _look_after(self) -> None:
        """End engines that hang: everything else follows from their end."""
        loop = asyncio.get_running_loop()
        flushed_s = loop.time()
        while True:
            await asyncio.wait((loop.create_future(),), timeout=WATCH_S)
            assert self._shell is not None
            if self._journal is not None and loop.time() - flushed_s > FLUSH_S:
                flushed_s = loop.time()
                self._journal.flush()
            for index, is_up in enumerate(self._engines.is_up):
                if is_up and self._shell.is_late(index, LATE_NS):
                    self._engines.end(index, "hangs")

    def _is_ready(self) -> bool:
        """Whether somebody can decode, and somebody can compute prompts for it."""
        roles = self.language.engines
        up = [name for name, is_up in zip(self._names, self._engines.is_up, strict=True) if is_up]
        decoding = [name for name in up if "decode" in roles[name].roles]
        fed = {link.to for link in self.language.links if link.from_ in up}
        return any("prefill" in roles[name].roles or name in fed for name in decoding)

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self._http is not None:
            if self._listener is not None:
                await close_listener(self._listener, self._http, LAST_CALL_S)
            await self._http.shutdown(CLOSE_S)
        if self._shell is not None:
            self._shell.close()
        self._engines.close()
        self._slots.close()
        journal, self._journal = self._journal, None
        if journal is not None:
            await asyncio.to_thread(journal.close)


def _cost(ready: m.Ready) -> StepCost:
    return StepCost(
        step_ms=ready.step_ms,
        token_us=ready.token_us,
        row_us=ready.row_us,
        attend_ns=ready.attend_ns,
        prompt_attend_ns=ready.prompt_attend_ns,
        relative_sd=ready.relative_sd,
    )


def warm_desk(tables: Tables) -> None:
    """Compile every decision (or load it from the cache) on a scratch state."""
    import numpy as np

    state = fresh(tables, 1)
    none = np.zeros(tables.engines.shape[0], np.int64)
    ends = np.zeros(state.rows.shape[1], np.int64)
    desk.on_step_done(0, tables, state, -1, 0, ends)
    desk.on_handover(0, tables, state, -1, 0, desk.BROKEN)
    desk.on_cancel(0, tables, state, -1, 0)
    desk.on_engine_down(0, tables, state, -1)
    desk.on_engine_up(0, tables, state, -1)
    desk.on_timer(0, tables, state)
    desk.next_timer_ns(state)
    desk.late_at_ns(state, 0, LATE_NS)
    desk.on_arrival(0, tables, state, 0, 1, 1, 1, 0, 0, none)
    desk.on_drain(0, tables, state)
