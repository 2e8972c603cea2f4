"""Engine processes: every promise of a backend, and what happens when they die, hang or take too much."""

import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from loadslice.backends import checks
from loadslice.backends.base import EngineError
from loadslice.backends.isolated import host
from loadslice.backends.isolated.arena import OUTPUTS
from loadslice.backends.isolated.host import EngineLostError
from loadslice.backends.isolated.messages import Describe
from loadslice.backends.isolated.session import Hosts, IsolatedSession, isolation
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import StageError

FAST = 20.0
"""Seconds that nothing here takes on a machine that is not stuck."""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    yield made
    made.stop()


def load(hosts: Hosts, folder: Path, **engine: object) -> IsolatedSession:
    model = checks.write_model(folder / "checks.onnx")
    session = hosts.load("npu0", Engine(**({"backend": "onnxruntime", "isolation": "process"} | engine)), model)
    assert isinstance(session, IsolatedSession)
    return session


def stop(pid: int) -> None:
    """Have a process hang; when this returns, all of its threads do."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    while any(" T " not in (task / "stat").read_text().rpartition(")")[2] for task in tasks.iterdir()):
        os.sched_yield()


class Isolated:
    """A backend whose every engine has a process of its own."""

    def __init__(self, hosts: Hosts, runtime: str) -> None:
        self._hosts, self._runtime, self._count = hosts, runtime, 0

    def load(self, model: Path, engine: Engine) -> IsolatedSession:
        self._count += 1
        own = Engine(backend=self._runtime, isolation="process", device=engine.device, max_inflight=engine.max_inflight)
        return self._hosts.load(f"npu{self._count}", own, model)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_process_keeps_every_promise_of_its_runtime(hosts: Hosts, tmp_path: Path, runtime: str) -> None:
    checks.run_all(Isolated(hosts, runtime), tmp_path)


def test_a_process_that_is_killed_fails_the_batch_at_once_and_serves_again_when_started(
    hosts: Hosts, tmp_path: Path
) -> None:
    session = load(hosts, tmp_path)
    x = np.ones((1, 3, 4), np.float32)
    wanted = session.run({"x": x})
    os.kill(session.process.pid, signal.SIGKILL)
    with pytest.raises(EngineLostError):
        session.run({"x": x})
    session.process.start()
    assert session.process.last_end == "SIGKILL"
    session.process.ready.set()
    assert np.array_equal(session.run({"x": x})["y"], wanted["y"])


def test_whoever_waits_for_a_process_that_hangs_is_freed_by_its_end(hosts: Hosts, tmp_path: Path) -> None:
    session = load(hosts, tmp_path)
    stop(session.process.pid)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.run, {"x": np.ones((1, 3, 4), np.float32)})
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        session.process.end()
        assert isinstance(waiting.exception(FAST), EngineLostError)


def test_a_process_that_the_system_does_not_end_frees_whoever_waits_and_is_said_to_be_left(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(hosts, tmp_path)
    process, pid = session.process, session.process.pid
    stop(pid)
    monkeypatch.setattr(host, "END_TIMEOUT_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _process: None)  # as if it were inside a driver
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.run, {"x": np.ones((1, 3, 4), np.float32)})
        while not process._lines[0].lock.locked():
            os.sched_yield()
        assert process.close() == pid
        assert isinstance(waiting.exception(FAST), EngineLostError)
    os.kill(pid, signal.SIGKILL)
    assert process._left[0].wait(FAST) == -signal.SIGKILL


def test_a_model_that_is_being_loaded_for_ever_is_an_error_and_its_process_gone(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(hosts, tmp_path)
    process = session.process
    watched = os.pidfd_open(process.pid)
    stop(process.pid)
    monkeypatch.setattr(host, "ORDER_TIMEOUT_S", 0.1)
    with pytest.raises(EngineLostError, match=r"has not answered for 0\.1 s"):
        process._order(Describe(0), host.ORDER_TIMEOUT_S)
    assert select.select([watched], [], [], FAST)[0]
    os.close(watched)


def test_two_that_end_a_process_at_once_close_what_is_theirs_and_nobody_elses(hosts: Hosts, tmp_path: Path) -> None:
    process = load(hosts, tmp_path).process
    for _ in range(5):
        process.start()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: process.end(), range(8)))
        assert process._life is None


def test_memory_that_there_is_not_for_every_slot_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    made: list[int] = []
    truncate = os.ftruncate

    def thrice(fd: int, size: int) -> None:
        made.append(fd)
        if len(made) == 3:
            raise OSError(errno.ENOSPC, "no more")
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", thrice)
    with pytest.raises(OSError, match="no more"):
        host.EngineProcess("e", Engine(backend="onnxruntime", max_inflight=4))
    assert len(made) == 3
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_process_that_cannot_be_started_leaves_no_descriptor(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = load(hosts, tmp_path).process
    process.end()
    before = sorted(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(OSError, match="No such file"):
        process.start()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_process_answers_its_pulse_until_it_hangs(hosts: Hosts, tmp_path: Path) -> None:
    process = load(hosts, tmp_path).process
    answered = threading.Event()

    def ask() -> bool:
        process.ping()
        answered.wait(0.2)
        return process.has_answered()

    assert ask()
    stop(process.pid)
    assert not ask()


def test_nobody_but_who_started_it_runs_batches_before_it_is_ready(hosts: Hosts, tmp_path: Path) -> None:
    session = load(hosts, tmp_path)
    feeds = {"x": np.ones((1, 3, 4), np.float32)}
    session.process.start()
    session.run(feeds)
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(session.run, feeds).exception(FAST), EngineLostError)
    session.process.ready.set()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(session.run, feeds).result(FAST)["y"].shape == (1, 3, 4)


SERVER = """
import os, sys
from pathlib import Path
from loadslice.backends.isolated.messages import Describe
from loadslice.backends.isolated.session import Hosts
from loadslice.spec.pipeline import Engine

session = Hosts().load("npu0", Engine(backend="onnxruntime", isolation="process"), Path(sys.argv[1]))
print(session.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_a_process_ends_with_its_server_however_that_dies(tmp_path: Path, stopped: bool) -> None:
    model = checks.write_model(tmp_path / "checks.onnx")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        pid = int(server.stdout.readline())
        watched = os.pidfd_open(pid)
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        server.kill()
    poll = select.poll()
    poll.register(watched)
    assert poll.poll(FAST * 1000), "the engine outlived its server"
    os.close(watched)


def test_nothing_of_a_process_has_a_name_that_could_be_left_behind(hosts: Hosts, tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    session = load(hosts, tmp_path)
    session.run({"x": np.ones((1, 3, 4), np.float32)})
    assert set(Path("/dev/shm").iterdir()) <= before


def write_blow_up(path: Path) -> Path:
    """A model n [1] -> y [n]: as much memory as the input says."""
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["n"], ["y"])],
        "blow",
        [helper.make_tensor_value_info("n", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_memory_beyond_the_limit_fails_the_batch_and_not_the_server(hosts: Hosts, tmp_path: Path) -> None:
    engine = Engine(backend="onnxruntime", isolation="process", memory_limit_mb=1500, hand_over_mb=1)
    session = hosts.load("npu0", engine, write_blow_up(tmp_path / "blow.onnx"))
    assert session.run({"n": np.array([10])})["y"].shape == (10,)
    with pytest.raises(EngineError):
        session.run({"n": np.array([2_000_000_000])})
    assert isinstance(session, IsolatedSession)
    session.process.start()
    assert session.run({"n": np.array([10])})["y"].shape == (10,)


def test_a_batch_larger_than_the_shared_memory_is_refused_in_either_direction(hosts: Hosts, tmp_path: Path) -> None:
    engine = Engine(backend="onnxruntime", isolation="process", hand_over_mb=1)
    session = hosts.load("npu0", engine, write_blow_up(tmp_path / "blow.onnx"))
    with pytest.raises(StageError, match="hand_over_mb"):
        session.run({"n": np.array([500_000])})
    wide = hosts.load("npu0", engine, checks.write_model(tmp_path / "checks.onnx"))
    with pytest.raises(StageError, match="hand_over_mb"):
        wide.run({"x": np.zeros((1, 3, 100_000), np.float32)})
    assert wide.run({"x": np.zeros((1, 3, 10), np.float32)})["y"].shape == (1, 3, 10)


def test_text_goes_both_ways(hosts: Hosts, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "text",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
    )
    path = tmp_path / "text.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    session = hosts.load("npu0", Engine(backend="onnxruntime", isolation="process"), path)
    assert session.run({"x": np.array(["", "größer", "a" * 1000], object)})["y"].tolist() == ["", "größer", "a" * 1000]


def test_a_large_batch_does_not_keep_its_memory(hosts: Hosts, tmp_path: Path) -> None:
    session = load(hosts, tmp_path)
    session.run({"x": np.ones((1, 3, 15_000_000), np.float32)})
    (line,) = session.process._lines
    kept_bytes = os.fstat(line.arena.fd).st_blocks * 512
    assert kept_bytes < 2 * 33 * 1024 * 1024


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        (Engine(backend="onnxruntime"), "thread"),
        (Engine(backend="onnxruntime", device="cpu"), "thread"),
        (Engine(backend="onnxruntime", device="CUDAExecutionProvider"), "process"),
        (Engine(backend="openvino", device="GPU"), "process"),
        (Engine(backend="openvino", device="CPU"), "thread"),
        (Engine(backend="twin", device="rk3588-npu"), "thread"),
        (Engine(backend="twin", device="rk3588-npu", isolation="process"), "process"),
        (Engine(backend="python"), "thread"),
        (Engine(backend="remote-oip"), "thread"),
    ],
)
def test_accelerators_have_a_process_of_their_own_unless_asked_otherwise(engine: Engine, where: str) -> None:
    assert isolation(engine) == where


@pytest.mark.parametrize("backend", ["python", "remote-oip", "remote-openai"])
def test_a_backend_that_cannot_run_in_a_process_is_refused(hosts: Hosts, tmp_path: Path, backend: str) -> None:
    with pytest.raises(InputError, match=r"engines\.a\.isolation"):
        hosts.load("a", Engine(backend=backend, isolation="process"), tmp_path / "none.onnx")


def test_what_was_written_in_place_is_not_copied_and_never_read_after_another_process_has_come(
    hosts: Hosts, tmp_path: Path
) -> None:
    session = load(hosts, tmp_path)
    room = session.room(0, ((2, 3, 4),))
    assert room is not None
    room["x"][...] = 3
    assert np.array_equal(session.run(room)["y"], np.full((2, 3, 4), 7, np.float32))
    room = session.room(0, ((2, 3, 4),))
    assert room is not None
    room["x"][...] = 3
    session.process.start()
    session.run({"x": np.zeros((2, 3, 4), np.float32)})
    session.process.ready.set()
    with pytest.raises(EngineLostError):
        session.run(room)


def test_there_is_no_room_for_what_does_not_fit_and_none_while_a_process_starts(hosts: Hosts, tmp_path: Path) -> None:
    session = load(hosts, tmp_path, hand_over_mb=1)
    assert session.room(0, ((1, 3, 1_000_000),)) is None
    session.process.ready.clear()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(session.room, 0, ((1, 3, 4),)).result(FAST) is None


def test_outputs_are_lent_as_long_as_anybody_has_them_and_copied_when_too_many_are(
    hosts: Hosts, tmp_path: Path
) -> None:
    session = load(hosts, tmp_path)
    (line,) = session.process._lines
    kept, wanted = [], []
    for value in range(2 * len(OUTPUTS)):
        x = np.full((1, 3, 4), value, np.float32)
        kept.append(session.run({"x": x})["y"][:, 1:])
        wanted.append(2 * x[:, 1:] + 1)
    assert all(np.array_equal(one, other) for one, other in zip(kept, wanted, strict=True))
    assert len(line.arena.free()) == 1
    kept.clear()
    assert line.arena.free() == list(OUTPUTS)


def test_a_slot_that_somebody_has_alone_is_given_to_nobody_else_and_says_when_its_batch_has_ended(
    hosts: Hosts, tmp_path: Path
) -> None:
    session = load(hosts, tmp_path)
    x = np.ones((1, 3, 4), np.float32)
    assert session.reserve(0)
    assert not session.reserve(0)
    answered = session.send({"x": x}, 0)
    assert select.select([answered], [], [], FAST)[0]
    assert np.array_equal(session.receive(0)["y"], 2 * x + 1)
    session.free(0)
    assert session.reserve(0)
    answered = session.send({"x": x}, 0)
    os.kill(session.process.pid, signal.SIGKILL)
    assert select.select([answered], [], [], FAST)[0]
    session.free(0)


def test_a_thread_waits_for_a_line_that_a_loop_has_watched_as_for_any_other(hosts: Hosts, tmp_path: Path) -> None:
    session = load(hosts, tmp_path)
    x = np.ones((1, 3, 4), np.float32)
    assert session.reserve(0)
    os.set_blocking(session.send({"x": x}, 0), False)  # as libuv does to what it watches, and leaves it
    assert np.array_equal(session.receive(0)["y"], 2 * x + 1)
    session.free(0)
    for _ in range(20):
        assert np.array_equal(session.run({"x": x}, 0)["y"], 2 * x + 1)
