"""A line to one language engine in its own process: what its server would tell it, and how long that takes."""

import asyncio
import mmap
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from loadslice.backends.language import messages as m
from loadslice.backends.language.host import SLOT_BYTES_PER_TOKEN, LanguageProcess, SharedSlots
from loadslice.backends.language.worker import HEADER_BYTES
from loadslice.profiles.language_fit import Kind, Taken
from loadslice.spec.errors import InputError
from loadslice.spec.language import SHARING_BACKENDS, Language

LOAD_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 120.0
FILLING, NEW = 0, 1
"""Rows that are not sequences of a step: one whose KV is given to others, and one that is computed in a step."""
FIRST = 2


def slots_for(language: Language) -> SharedSlots:
    """Shared memory for one hand-over at a time."""
    return SharedSlots(1, (language.context + language.block) * SLOT_BYTES_PER_TOKEN + HEADER_BYTES)


class EngineLine:
    """One engine while it is measured.

    Args:
        name: Of the engine.
        language: Checked.
        model: Resolved path.
        slots: From `slots_for`, one for all lines.
    """

    def __init__(self, name: str, language: Language, model: Path, slots: SharedSlots) -> None:
        self.name, self.engine, self.language = name, language.engines[name], language
        self.shares = self.engine.backend in SHARING_BACKENDS
        """Whether it can have a prefix cache."""
        self._slots = slots
        self._answers: asyncio.Queue[m.FromEngine | None] = asyncio.Queue()
        """``None``: its process has ended."""
        self._number = 0
        self._numbers: dict[int, int] = {}
        self._vocabulary = 1
        self.ready: m.Ready
        self._process = LanguageProcess(
            name,
            m.Load(
                model=str(model),
                backend=self.engine.backend,
                device=self.engine.device or "CPU",
                threads=self.engine.threads,
                kv_blocks=self.engine.kv_tokens // language.block,
                cached_blocks=language.context // language.block if self.shares else 0,
                options=self.engine.options,
                slots=slots.slots,
                context=language.context,
                measure=False,
                seats=self.engine.seats + FIRST,
                block=language.block,
                buckets=self.engine.buckets,
                prompt_max=self.engine.prompt_max or 0,
                decodes="decode" in self.engine.roles,
            ),
            slots,
            self._hear,
            lambda: self._answers.put_nowait(None),
        )

    async def __aenter__(self) -> Self:
        self._process.start()
        ready = await self._answer(LOAD_TIMEOUT_S)
        if isinstance(ready, m.Failed):
            self._process.close()
            raise InputError(f"engine '{self.name}': {ready.reason}")
        assert isinstance(ready, m.Ready)
        self.ready = ready
        self._vocabulary = ready.vocabulary
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close()

    def _hear(self, message: m.FromEngine) -> None:
        if not isinstance(message, m.Cached | m.Measuring):
            self._answers.put_nowait(message)

    async def _answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> m.FromEngine:
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._answers.get()
        except TimeoutError:
            raise InputError(f"engine '{self.name}': said nothing for {timeout_s:.0f} s.") from None
        if answer is None:
            how = await self._process.gone()
            raise InputError(f"engine '{self.name}': its process ended ({how}).")
        if isinstance(answer, m.Broken):
            raise InputError(f"engine '{self.name}': {answer.what} failed: {answer.reason}.")
        return answer

    def begin(self, row: int, tokens: int, *, hit: int = 0, seed: int = 1) -> None:
        """A sequence whose prompt has so many tokens; equal seeds have equal tokens."""
        self.release(row)
        self._number += 1
        self._numbers[row] = self._number
        prompt = tuple((7 * at * seed + 11 + 3 * seed) % self._vocabulary for at in range(tokens))
        self._process.send(m.Begin(row, self._number, prompt, tokens, m.Sampling(), hit))

    def release(self, row: int) -> None:
        """Forget a sequence, if there is one."""
        number = self._numbers.pop(row, None)
        if number is not None:
            self._process.send(m.Release(row, number))

    async def step(self, *rows: tuple[int, int, bool]) -> Taken:
        """Compute one step; each row: sequence, its tokens with KV afterwards, whether one is sampled."""
        began = time.perf_counter()
        self._number += 1
        self._process.send(m.Step(self._number, rows))
        stepped = await self._answer()
        taken_ms = (time.perf_counter() - began) * 1e3
        assert isinstance(stepped, m.Stepped)
        return Taken(taken_ms, stepped.compute_ns / 1e6)

    async def fill(self, row: int, tokens: int) -> None:
        """Compute KV of a sequence that has begun, in steps that the engine takes."""
        chunk = min(self.engine.chunk or tokens, self.engine.step_tokens)
        for upto in [*range(chunk, tokens, chunk), tokens]:
            await self.step((row, upto, False))

    async def export(self, row: int, *, raw: bool = True) -> float:
        """Write a sequence's KV into the slot; milliseconds from the order to the answer."""
        began = time.perf_counter()
        self._process.send(m.Export(row, self._numbers[row], 1, 0, raw=raw))
        exported = await self._answer()
        assert isinstance(exported, m.Exported)
        return (time.perf_counter() - began) * 1e3

    async def take(self, row: int, *, raw: bool = True) -> float:
        """Read the slot as the KV of a sequence that has begun; milliseconds from the order to the answer."""
        with mmap.mmap(self._slots.fd, self._slots.total_bytes) as memory:
            header = np.frombuffer(memory, np.int64, 3)
            header[:] = row, self._numbers[row], 1
            del header
        began = time.perf_counter()
        self._process.send(m.Import(row, self._numbers[row], 1, 0, raw=raw))
        imported = await self._answer()
        assert isinstance(imported, m.Imported)
        return (time.perf_counter() - began) * 1e3

    async def ping(self) -> None:
        """Wait until everything told is done."""
        self._process.send(m.Ping(0))
        await self._answer()

    async def prepare(self, before: int, rows: int) -> "Group":
        """So many sequences with so many tokens of KV each, all of their own blocks."""
        self.begin(FILLING, before)
        await self.fill(FILLING, before)
        await self.export(FILLING)
        self.release(FILLING)
        for row in range(FIRST, FIRST + rows):
            self.begin(row, before + 1)
            await self.take(row)
        return Group(self, before, rows)


class Group:
    """Sequences of one length on one engine, and steps of them."""

    def __init__(self, line: EngineLine, before: int, rows: int) -> None:
        self._line, self._rows = line, rows
        self._lengths = dict.fromkeys(range(FIRST, FIRST + rows), before)

    async def step(self, kind: Kind) -> tuple[Kind, Taken]:
        """One step of a kind, with the sequences' lengths as they are: they grow by a token each time."""
        rows = list(self._lengths)[: kind.rows]
        before = sum(self._lengths[row] for row in rows) // max(1, len(rows))
        plan = []
        for row in rows:
            self._lengths[row] += 1
            plan.append((row, self._lengths[row], True))
        if kind.prompt_tokens:
            has = 0 if rows else kind.before
            self._line.begin(NEW, has + kind.prompt_tokens, seed=3)
            if has:
                await self._line.take(NEW)  # the slot still holds what the group was made from
            await self._line.ping()
            plan.append((NEW, has + kind.prompt_tokens, True))
        taken = await self._line.step(*plan)
        self._line.release(NEW)
        return kind._replace(before=before if rows else kind.before), taken

    def release(self) -> None:
        """Forget them."""
        for row in self._lengths:
            self._line.release(row)
