"""The process of one language engine: ``python -P -m loadslice.backends.language.worker``, started by its host only.

One thread computes what it is told, in order. It ends when its server does, however that ends, and prints nothing on
standard output.
"""

import argparse
import contextlib
import mmap
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from numpy.typing import NDArray

from loadslice.backends.isolated.witnesses import start_witnesses
from loadslice.backends.isolated.worker import end_with
from loadslice.backends.language import messages as m
from loadslice.backends.language import remote
from loadslice.backends.language.aggregated import WholeEngine
from loadslice.backends.language.base import LanguageSession, NoRoomError, StepRow
from loadslice.backends.language.calibrate import Tell, measured_costs, tell_nobody
from loadslice.backends.language.checks import UNTRUE_STEPS_MAX, fault_of_shape, fault_of_step, untrue_rows
from loadslice.backends.language.load import open_session
from loadslice.backends.language.prefix import PrefixCache, names
from loadslice.backends.language.sampling import draw_all
from loadslice.spec.errors import InputError
from loadslice.spec.language import REMOTE_BACKENDS, WHOLE_BACKENDS

HEADER_BYTES = 64
"""Of a slot: row, number, epoch, tokens, bytes; written last by who exports, read first and last by who imports."""


@dataclass(slots=True)
class Sequence:
    """One sequence as its engine knows it."""

    number: int
    tokens: list[int]
    prompt: int
    sampling: m.Sampling
    chain: list[bytes]
    is_kept: bool = field(default=False)
    """Whether its prompt has been offered to the prefix cache."""


class Engine:
    """Obeys one owner.

    Args:
        shared: Slots for KV.
        order: What to load.
        tell: As `measured_costs` has it.
    """

    def __init__(self, shared: NDArray[np.uint8], order: m.Load, tell: Tell = tell_nobody) -> None:
        self._session: LanguageSession
        self._session, self._layout = open_session(order)
        self._cache = PrefixCache(self._session, order.cached_blocks)
        self._sequences: dict[int, Sequence] = {}
        self._untrue_steps = 0
        """In a row, of which no row could be true."""
        self._slot_bytes = len(shared) // order.slots if order.slots else 0
        self._shared = shared
        self._model = bytes.fromhex(self._layout.model_sha256)
        costs = measured_costs(self._session, self._layout, order.context, measure=order.measure, tell=tell)
        self.ready = m.Ready(
            self._layout, self._session.vocabulary, *costs, _resident_bytes(), self._session.layout.kv_bytes
        )

    def obey(self, message: m.ToEngine) -> m.FromEngine | None:
        """Do what one message says; ``None``: there is nothing to answer."""
        if isinstance(message, m.Step):
            return self._step(message)
        if isinstance(message, m.Begin):
            self._begin(message)
            return None
        if isinstance(message, m.Export):
            return self._export(message)
        if isinstance(message, m.Import):
            return self._import(message)
        if isinstance(message, m.Release):
            sequence = self._sequences.get(message.row)
            if sequence is not None and sequence.number == message.number:
                self._session.release(message.row)
                del self._sequences[message.row]
            return None
        if isinstance(message, m.Ping):
            return m.Pong(message.number)
        if isinstance(message, m.Load | m.Stop):
            raise SystemExit
        assert_never(message)

    def changes(self) -> m.Cached | None:
        """What the prefix cache has gained and lost; ``None``: nothing."""
        added, dropped = self._cache.take_changes()
        return m.Cached(added, dropped) if added or dropped else None

    def _begin(self, begin: m.Begin) -> None:
        if begin.row in self._sequences:
            self._session.release(begin.row)
        chain = names(begin.tokens[: begin.prompt], self._session.layout.block, self._model)
        self._sequences[begin.row] = Sequence(begin.number, list(begin.tokens), begin.prompt, begin.sampling, chain)
        if begin.hit:
            self._cache.adopt(begin.row, chain, begin.hit)

    def _step(self, step: m.Step) -> m.FromEngine:
        known = {
            row: (self._session.length(row), len(self._sequences[row].tokens))
            for row, _, _ in step.rows
            if row in self._sequences
        }
        fault = fault_of_step(step.rows, known)
        if fault:
            return self._broken_step(step, fault)
        rows: list[StepRow] = []
        members: list[Sequence] = []
        for row, upto, samples in step.rows:
            sequence = self._sequences[row]
            rows.append(StepRow(row, sequence.tokens[known[row][0] : upto], samples))
            if samples:
                members.append(sequence)
        began_ns = time.perf_counter_ns()
        try:
            logits = self._session.step(rows)
        except NoRoomError as error:
            return self._broken_step(step, str(error))
        computed_ns = time.perf_counter_ns()
        fault = fault_of_shape(logits, len(members), self._session.vocabulary)
        if fault:
            return self._broken_step(step, fault)
        likeliest = logits.argmax(axis=1)
        untrue = untrue_rows(logits, likeliest)
        self._untrue_steps = self._untrue_steps + 1 if members and len(untrue) == len(members) else 0
        if self._untrue_steps == UNTRUE_STEPS_MAX:
            return self._broken_step(step, f"{untrue[0]}, {UNTRUE_STEPS_MAX} steps in a row")
        sampling_rows = [row for row, _, samples in step.rows if samples]
        lost = tuple((sampling_rows[place], why) for place, why in untrue.items())
        if untrue:
            true = [place for place in range(len(members)) if place not in untrue]
            logits, likeliest = logits[true], likeliest[true]
            sampling_rows, members = [sampling_rows[place] for place in true], [members[place] for place in true]
        wanted = [(one.sampling, one.tokens[one.prompt :], len(one.tokens) - one.prompt) for one in members]
        choices = draw_all(logits, likeliest.tolist(), wanted)
        drawn = []
        for row, sequence, choice in zip(sampling_rows, members, choices, strict=True):
            sequence.tokens.append(choice.token)
            drawn.append(m.Drawn(row, sequence.number, choice.token, choice.logprob, choice.top))
            if not sequence.is_kept:
                sequence.is_kept = True
                self._cache.keep(row, sequence.chain)
        drawing_ns = time.perf_counter_ns() - computed_ns
        return m.Stepped(step.epoch, tuple(drawn), computed_ns - began_ns, drawing_ns, lost=lost)

    def _broken_step(self, step: m.Step, reason: str) -> m.Broken:
        return m.Broken("step", -1, -1, step.epoch, -1, reason)

    def _export(self, order: m.Export) -> m.FromEngine:
        began_ns = time.perf_counter_ns()
        sequence = self._sequences.get(order.row)
        if sequence is None or sequence.number != order.number:
            return self._broken("export", order, "the sequence is not here")
        tokens = self._session.length(order.row)
        size = self._payload_bytes(tokens, raw=order.raw)
        if size > self._slot_bytes - HEADER_BYTES:
            return self._broken("export", order, f"{size} bytes are more than a slot of {self._slot_bytes} holds")
        slot = self._slot(order.slot)
        header, payload = slot[:HEADER_BYTES].view(np.int64), slot[HEADER_BYTES : HEADER_BYTES + size]
        header[:] = -1
        if order.raw:
            self._session.export_raw(order.row, payload)
        else:
            self._session.export_neutral(order.row, payload.view(np.float32).reshape(self._neutral_shape(tokens)))
        header[:5] = order.row, order.number, order.epoch, tokens, size
        took_ns = time.perf_counter_ns() - began_ns
        return m.Exported(order.row, order.number, order.epoch, order.slot, tokens, size, took_ns)

    def _import(self, order: m.Import) -> m.FromEngine:
        began_ns = time.perf_counter_ns()
        sequence = self._sequences.get(order.row)
        if sequence is None or sequence.number != order.number:
            return self._broken("import", order, "the sequence is not here")
        slot = self._slot(order.slot)
        header = slot[:HEADER_BYTES].view(np.int64)
        row, number, epoch, tokens, size = header[:5].tolist()
        stamp = (order.row, order.number, order.epoch)
        if (row, number, epoch) != stamp or size != self._payload_bytes(tokens, raw=order.raw):
            return self._broken("import", order, "the slot holds another hand-over")
        payload = slot[HEADER_BYTES : HEADER_BYTES + size]
        try:
            if order.raw:
                self._session.import_raw(order.row, tokens, payload)
            else:
                dense = payload.view(np.float32).reshape(self._neutral_shape(tokens))
                self._session.import_neutral(order.row, dense)
        except NoRoomError as error:
            return self._broken("import", order, str(error))
        if tuple(header[:3].tolist()) != stamp:
            # Its lease ran out and somebody else wrote meanwhile: what was read may be a mixture.
            self._session.release(order.row)
            return self._broken("import", order, "the slot was written while it was read")
        return m.Imported(order.row, order.number, order.epoch, order.slot, time.perf_counter_ns() - began_ns)

    def _broken(self, what: str, order: m.Export | m.Import, reason: str) -> m.Broken:
        assert what in ("export", "import")
        return m.Broken(
            "export" if what == "export" else "import", order.row, order.number, order.epoch, order.slot, reason
        )

    def _slot(self, slot: int) -> NDArray[np.uint8]:
        return self._shared[slot * self._slot_bytes : (slot + 1) * self._slot_bytes]

    def _neutral_shape(self, tokens: int) -> tuple[int, int, int, int, int]:
        return self._layout.layers, 2, self._layout.kv_heads, tokens, self._layout.head_dim

    def _payload_bytes(self, tokens: int, *, raw: bool) -> int:
        if raw:
            return -(-tokens // self._session.layout.block) * self._layout.raw_bytes_per_block
        return int(np.prod(self._neutral_shape(tokens))) * 4


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1] if Path("/proc/self/statm").exists() else "0"
    return int(pages) * mmap.PAGESIZE


def main(arguments: list[str] | None = None) -> None:
    """Serve until the server goes."""
    parser = argparse.ArgumentParser(prog="loadslice-language-engine", description="One engine of a language model.")
    parser.add_argument("--name", required=True, help="Of the engine; for whoever lists processes.")
    for number in ("channel", "life", "memory", "memory-bytes"):
        parser.add_argument(f"--{number}", type=int, required=True)
    given = parser.parse_args(arguments)
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    end_with(given.life)
    channel = socket.socket(fileno=given.channel)
    shared = np.zeros(0, np.uint8)
    if given.memory_bytes:
        shared = np.frombuffer(mmap.mmap(given.memory, given.memory_bytes), np.uint8)
    order = m.to_engine.decode(channel.recv(m.MESSAGE_BYTES_MAX))
    assert isinstance(order, m.Load)
    channel.send(m.encoder.encode(m.Started(start_witnesses())))

    def tell(done: int, of: int) -> None:
        channel.send(m.encoder.encode(m.Measuring(done, of)))

    try:
        if order.backend in REMOTE_BACKENDS:
            remote.serve(order, channel)
        engine = WholeEngine(order, tell) if order.backend in WHOLE_BACKENDS else Engine(shared, order, tell)
    except InputError as error:
        channel.send(m.encoder.encode(m.Failed(str(error))))
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the server has gone: nothing is to be said
        channel.send(m.encoder.encode(engine.ready))
        while raw := channel.recv(m.MESSAGE_BYTES_MAX):
            answer = engine.obey(m.to_engine.decode(raw))
            if answer is not None:
                channel.send(m.encoder.encode(answer))
            changes = engine.changes()
            if changes is not None:
                channel.send(m.encoder.encode(changes))
    os._exit(0)


if __name__ == "__main__":
    main()
