"""The process of one engine: ``python -P -m loadslice.backends.isolated.worker``, started by `EngineProcess` only.

Rules of this file: it ends when its server does, however that ends; signals meant for the server's group are the
server's to answer; nothing is printed on standard output.
"""

import argparse
import contextlib
import ctypes  # noqa: F401 - loaded before the limit on memory holds
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

# Read by ONNX Runtime's native library when it starts.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import msgspec

from loadslice.backends.base import EngineError, Session, open_backend
from loadslice.backends.isolated.arena import Arena, TooLargeError
from loadslice.backends.isolated.messages import (
    MESSAGE_BYTES_MAX,
    Answer,
    Describe,
    Done,
    Drop,
    Failed,
    Load,
    Loaded,
    Order,
    Ran,
    Refused,
    Said,
    Told,
    encoder,
    order_decoder,
    run_decoder,
)
from loadslice.backends.isolated.ready import Ready
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.twin import TwinEngine
from loadslice.spec.work import StageInputError

F_SETSIG = 10
"""Which signal an end of the file sends; Linux, not in the module `fcntl`."""

SWITCH_INTERVAL_S = 0.0005
"""As in the server: a slot that waits for the interpreter waits this long at most."""

TEXT_MAX = 4096
"""Characters of an error that would not go into a message."""

OOM_SCORE = 500
"""The system, when it must, ends this process before the server."""


@dataclass(frozen=True, slots=True)
class Models:
    """What is loaded."""

    sessions: dict[int, Session] = field(default_factory=dict)
    ready: list[Ready] = field(default_factory=list)
    """By slot."""


def main(arguments: list[str] | None = None) -> None:
    """Serve until the server goes."""
    parser = argparse.ArgumentParser(prog="loadslice-engine", description="One engine of a loadslice server.")
    parser.add_argument("--name", required=True, help="Of the engine; for whoever lists processes.")
    for socket_name in ("control", "pulse", "life"):
        parser.add_argument(f"--{socket_name}", type=int, required=True)
    parser.add_argument("--slots", required=True, help="SOCKET:MEMORY,...")
    parser.add_argument("--section-bytes", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, default=0)
    given = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with(given.life)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    if given.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (given.memory_bytes, given.memory_bytes))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    models = Models()
    pulse = socket.socket(fileno=given.pulse)
    threading.Thread(target=beat, args=(pulse,), daemon=True).start()
    for slot, entry in enumerate(given.slots.split(",")):
        channel, memory = map(int, entry.split(":"))
        arena = Arena(memory, given.section_bytes)
        models.ready.append(Ready(arena, slot))
        line = (socket.socket(fileno=channel), arena, models, slot)
        threading.Thread(target=serve, args=line, name=f"{given.name}.{slot}", daemon=True).start()
    obey(socket.socket(fileno=given.control), models)
    os._exit(0)  # threads may be inside a runtime that never comes back


def end_with(life: int) -> None:
    """Have the kernel end this process when the other end of a pipe closes, be it stopped or stuck."""
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:
        os._exit(0)  # it closed before we could ask


def beat(pulse: socket.socket) -> None:
    """Answer whoever asks whether this process lives, also while batches run."""
    while asked := pulse.recv(64):
        pulse.send(asked)


def obey(control: socket.socket, models: Models) -> None:
    """Load and free models until the server closes its end."""
    while raw := control.recv(MESSAGE_BYTES_MAX):
        control.send(_said(_answer(order_decoder.decode(raw), models)))


def _answer(order: Order, models: Models) -> Answer:
    if isinstance(order, Describe):
        return Said(models.sessions[order.number].describe())
    if isinstance(order, Drop):
        for ready in models.ready:
            ready.drop(order.number)
        if order.number in models.sessions:
            models.sessions.pop(order.number).close()
        return Done()
    try:
        models.sessions[order.number] = session = _load(order)
    except InputError as error:
        return Refused(str(error))
    except MemoryError:
        return Refused(f"{order.model}: more memory than engines.*.memory_limit_mb allows.")
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; it is told, and the process lives
        return Refused(f"{order.model}: {type(error).__name__}: {error}")
    return Loaded([Told.of(info) for info in session.inputs], [Told.of(info) for info in session.outputs])


def _load(order: Load) -> Session:
    engine = msgspec.msgpack.decode(order.engine, type=TwinEngine if order.is_twin else Engine)
    return open_backend(engine.backend).load(Path(order.model), engine)


def serve(channel: socket.socket, arena: Arena, models: Models, slot: int) -> None:
    """Run batches of one slot until the server closes its end."""
    room = bytearray(MESSAGE_BYTES_MAX)
    view = memoryview(room)
    while size := channel.recv_into(room):
        channel.send(_said(_run(bytes(view[:size]), arena, models, slot)))


def _said(answer: Answer | Ran | Failed) -> bytes:
    """An answer as it goes out. One that no message holds would end the thread that gives it, and its slot with it."""
    said = encoder.encode(answer)
    if len(said) <= MESSAGE_BYTES_MAX:
        return said
    if isinstance(answer, Refused):
        return encoder.encode(Refused(answer.text[:TEXT_MAX]))
    if isinstance(answer, Failed):
        return encoder.encode(Failed(answer.kind, answer.text[:TEXT_MAX]))
    why = f"names and shapes of its tensors take {len(said)} bytes, {MESSAGE_BYTES_MAX} is the most."
    return encoder.encode(Failed("engine", why) if isinstance(answer, Ran) else Refused(why))


def _run(message: bytes, arena: Arena, models: Models, slot: int) -> Ran | Failed:
    """Run a batch."""
    try:
        began_ns = time.perf_counter_ns()
        ready = models.ready[slot]
        placed = ready.run(message)
        if placed is None:
            order = run_decoder.decode(message)
            if ready.make(message, order, models.sessions):
                placed = ready.run(message)
        if placed is not None:
            return Ran(placed, time.perf_counter_ns() - began_ns, 0)
        session = models.sessions[order.number]
        outputs = session.run(arena.views(order.feeds), slot)
        compute_ns = time.perf_counter_ns() - began_ns
        return Ran(arena.put(outputs, order.section), compute_ns, getattr(session, "late_runs", 0))
    except StageInputError as fault:
        return Failed("input", str(fault))
    except TooLargeError as fault:
        return Failed("size", str(fault))
    except EngineError as error:
        return Failed("engine", str(error))
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything; the batch fails, the process lives
        return Failed("engine", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
