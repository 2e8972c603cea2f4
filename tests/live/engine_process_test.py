"""Engines in processes of their own that are killed, stopped or poisoned under load, with the figures promised."""

import asyncio
import json
import logging
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import psutil
import pytest

from loadslice.backends.isolated.arena import OUTPUTS
from loadslice.policy import columns as c
from loadslice.policy import invariants
from loadslice.serve.limits import Limits
from loadslice.serve.server import Server
from loadslice.sim.check import check as check_journal
from loadslice.spec import journal
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Engine, Pipeline, check

pytestmark = pytest.mark.live

NPU, CPU = 0, 1

TWO = """
version: 1
pipeline: two
engines:
  npu0: {backend: onnxruntime, isolation: process, queue: {limit: 256}}
  cpu0: {backend: onnxruntime, queue: {limit: 256}}
stages:
  - {name: double, model: double.onnx, engines: [npu0, cpu0], batch: {npu0: {size: 8, window_ms: 2}}, timeout_ms: 30000}
retry: {budget: 0.5, reserve: 100}
"""

DRIVER = """
# Stands for a driver with faults: loaded into the engine's process with its runtime.
import os
import select
import types
import numpy
import onnxruntime

LOST = {lost!r}


class InferenceSession(onnxruntime.InferenceSession):
    def __init__(self, *given, **named):
        if os.path.exists(LOST):
            raise RuntimeError("device 0 is not there")
        super().__init__(*given, **named)

    def get_outputs(self):
        # Of unknown length, so that all runs are `run`.
        return [types.SimpleNamespace(name=o.name, type=o.type, shape=["?"]) for o in super().get_outputs()]

    def run(self, names, feeds, *more):
        if os.path.exists(LOST):
            raise RuntimeError("device 0 has been lost")
        if any((feed == 666).any() for feed in feeds.values()):
            os.abort()
        return super().run(names, feeds, *more)


onnxruntime.InferenceSession = InferenceSession
"""


@pytest.fixture
def two() -> Pipeline:
    return check(msgspec.yaml.decode(TWO, type=Pipeline), "two")


@pytest.fixture
def alone(two: Pipeline) -> Pipeline:
    """The same without another engine."""
    stage = msgspec.structs.replace(two.stages[0], engines=["npu0"])
    return msgspec.structs.replace(two, stages=[stage], engines={"npu0": two.engines["npu0"]})


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file is there, so is no device; in processes that start from now on."""
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "sitecustomize.py").write_text(DRIVER.format(lost=str(tmp_path / "lost")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "driver"))
    return tmp_path / "lost"


@pytest.fixture(autouse=True)
def _keep_quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def is_up(server: Server, engine: int = NPU) -> bool:
    return bool(server.state.engines[engine, c.N_UP] == 1)


def npu(server: Server) -> dict[str, Any]:
    return server.generation.engines.describe()[NPU]


async def send(client: Any, value: float, name: str = "two") -> tuple[int, Any, str]:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}]}
    async with client.post(f"/v2/models/{name}/infer", json=body) as reply:
        document = json.loads(await reply.read())
        return reply.status, document, reply.headers.get("x-loadslice-engine", "")


def is_right(value: float, document: Any) -> bool:
    return bool(document["outputs"][0]["data"] == [2 * value] * 4)


class Load:
    """Clients that send one request after the other until told to stop; every answer is kept."""

    def __init__(self, client: Any, clients: int = 24) -> None:
        self.answers: list[tuple[int, bool, str]] = []
        self.sent = 0
        self._stop = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._run(client, number)) for number in range(clients)]

    async def _run(self, client: Any, number: int) -> None:
        while not self._stop.is_set():
            self.sent += 1
            status, document, engine = await send(client, float(number))
            self.answers.append((status, status == 200 and is_right(number, document), engine))

    async def more(self, count: int) -> None:
        """Let so many answers more come."""
        there = len(self.answers) + count
        async with asyncio.timeout(60):
            while len(self.answers) < there:
                await asyncio.get_running_loop().run_in_executor(None, bool)

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


def test_an_engine_process_that_is_killed_under_load_loses_nothing_and_is_noticed_within_a_second(
    two: Pipeline, folder: Path, tmp_path: Path, serving: Any, until: Any, stalls: Any
) -> None:
    detected_s: list[float] = []

    async def run() -> None:
        async with serving(two, folder, journal=tmp_path / "kept") as (server, client):
            load = Load(client)
            for _ in range(3):
                await load.more(300)
                os.kill(npu(server)["pid"], signal.SIGKILL)
                killed = time.monotonic()
                async with stalls() as stalled_s:
                    await until(lambda: not is_up(server))
                    detected_s.append(time.monotonic() - killed - stalled_s())
                await until(lambda: is_up(server))
            await load.more(300)
            await load.stop()
            assert len(load.answers) == load.sent
            assert {(status, right) for status, right, _ in load.answers} == {(200, True)}
            assert npu(server)["restarts"] == 3
            assert npu(server)["last_end"] == "SIGKILL"

    asyncio.run(run())
    assert max(detected_s) <= 1.0
    kept = journal.load(tmp_path / "kept")
    assert [finding for finding in check_journal(kept, tmp_path / "kept") if not finding.held] == []


def test_requests_for_the_only_engine_wait_for_its_process_to_be_back(
    alone: Pipeline, folder: Path, serving: Any, until: Any
) -> None:
    async def run() -> None:
        async with serving(alone, folder) as (server, client):
            load = Load(client)
            await load.more(100)
            os.kill(npu(server)["pid"], signal.SIGKILL)
            await until(lambda: npu(server)["restarts"] == 1 and npu(server)["state"] == "up")
            await load.more(100)
            await load.stop()
            assert {(status, right) for status, right, _ in load.answers} == {(200, True)}

    asyncio.run(run())


def test_an_engine_process_that_is_stopped_is_ejected_within_two_ping_timeouts_and_readiness_tells(
    two: Pipeline, folder: Path, serving: Any, until: Any, stalls: Any
) -> None:
    limits = Limits(probe_interval_s=0.1, round_trip_timeout_s=0.5)
    ejected_s: list[float] = []

    async def run() -> None:
        async with serving(two, folder, limits=limits) as (server, client):
            async with client.get("/v2/health/ready") as reply:
                assert reply.status == 200
            load = Load(client, clients=4)
            await load.more(50)
            os.kill(npu(server)["pid"], signal.SIGSTOP)
            stopped = time.monotonic()
            async with stalls() as stalled_s:
                await until(lambda: not is_up(server))
                ejected_s.append(time.monotonic() - stopped - stalled_s())
            statuses = set()
            while not is_up(server):
                async with client.get("/v2/health/ready") as reply:
                    statuses.add(reply.status)
            assert statuses & {503}, "the front answered for an engine that did not"
            assert npu(server)["restarts"] == 1, "what hangs for two timeouts is replaced"
            await load.stop()
            assert {(status, right) for status, right, _ in load.answers} == {(200, True)}

    asyncio.run(run())
    assert max(ejected_s) <= 2 * limits.round_trip_timeout_s


def test_a_lost_device_fails_over_to_the_processor_without_a_wrong_answer_and_is_taken_back(
    two: Pipeline, folder: Path, tmp_path: Path, serving: Any, until: Any, lost: Path
) -> None:
    (tmp_path / "there").touch()

    async def run() -> None:
        limits = Limits(probe_interval_s=0.1, round_trip_timeout_s=0.5)
        async with serving(two, folder, limits=limits) as (server, client):
            load = Load(client)
            await load.more(200)
            (tmp_path / "there").rename(lost)
            await until(lambda: npu(server)["restarts"] > 1)
            assert (await send(client, 3.0))[2] == "cpu0"
            lost.rename(tmp_path / "there")  # noqa: ASYNC240 - a name in a folder, nothing that waits
            await until(lambda: is_up(server))
            await load.more(100)
            await load.stop()
            assert {(status, right) for status, right, _ in load.answers} == {(200, True)}
            assert load.answers[-1][2] == "npu0"

    asyncio.run(run())


@pytest.mark.parametrize("others", [True, False])
def test_a_request_that_ends_its_engine_twice_is_never_sent_again_and_those_with_it_are_served(
    two: Pipeline, alone: Pipeline, folder: Path, serving: Any, until: Any, lost: Path, others: bool
) -> None:
    backstop = Engine(backend="onnxruntime", isolation="process", queue=two.engines["npu0"].queue)
    safe = msgspec.structs.replace(two, engines=two.engines | {"cpu0": backstop})

    async def run() -> None:
        async with serving(safe if others else alone, folder) as (server, client):
            load = Load(client, clients=12)
            await load.more(50)
            status, document, _ = await send(client, 666.0)
            assert status == 500, document
            crashes = sum(engine["restarts"] for engine in server.generation.engines.describe())
            await until(lambda: all(engine["state"] == "up" for engine in server.generation.engines.describe()))
            crashes = sum(engine["restarts"] for engine in server.generation.engines.describe())
            assert crashes == 2
            await load.more(50)
            await load.stop()
            assert {(status, right) for status, right, _ in load.answers} == {(200, True)}
            assert sum(engine["restarts"] for engine in server.generation.engines.describe()) == crashes

    asyncio.run(run())


def test_copies_through_shared_memory_count_as_copying_and_not_as_computing(
    alone: Pipeline, folder: Path, serving: Any
) -> None:
    async def run() -> None:
        async with serving(alone, folder) as (_, client):
            body = {
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [20000, 4], "data": np.ones(80_000).tolist()}]
            }
            async with client.post("/v2/models/two/infer", json=body) as reply:
                assert reply.status == 200
                timing = reply.headers["x-loadslice-timing"]
            assert "copy" in timing

    asyncio.run(run())


def test_a_client_that_reads_slowly_holds_no_memory_of_the_engine_process_and_gets_its_whole_reply(
    alone: Pipeline, folder: Path, serving: Any, until: Any
) -> None:
    rows = 490_000  # as much as is lent, and more than the system takes from a client that does not read
    body = np.arange(4 * rows, dtype=np.float32).tobytes()
    given = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": len(body)}}
    document = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/two/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(document) + len(body)}\r\n"
        f"Inference-Header-Content-Length: {len(document)}\r\nConnection: close\r\n\r\n"
    )

    async def run() -> None:
        async with serving(alone, folder) as (server, _):
            arenas = [line.arena for line in server.generation.engines.processes[NPU]._lines]
            address = server.url.removeprefix("http://").split(":")
            loop = asyncio.get_running_loop()
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.setblocking(False)
                await loop.sock_connect(slow, (address[0], int(address[1])))
                await loop.sock_sendall(slow, head.encode() + document + body)
                await until(lambda: server.outcomes[Outcome.COMPLETED] == 1)
                await until(lambda: all(len(arena.free()) == len(OUTPUTS) for arena in arenas))
                assert server._front.bodies.held_bytes > len(body), "the reply is not with the client yet"
                got = bytearray()
                while part := await loop.sock_recv(slow, 1 << 20):
                    got += part
            assert bytes(got[-len(body) :]) == (2 * np.frombuffer(body, np.float32)).tobytes()

    asyncio.run(run())


def test_a_server_that_stops_ends_a_process_that_hangs_with_a_batch_inside_and_leaves_nothing(
    alone: Pipeline, folder: Path, until: Any
) -> None:
    before = psutil.Process().children(recursive=True)

    async def run() -> None:
        server = Server(alone, folder, port=0, drain_s=0.0, limits=Limits(round_trip_timeout_s=3600))
        await server.start()
        pid = npu(server)["pid"]
        watched = os.pidfd_open(pid)
        os.kill(pid, signal.SIGSTOP)
        async with aiohttp.ClientSession(server.url) as client:
            waiting = asyncio.ensure_future(send(client, 1.0))
            await until(lambda: npu(server)["running"] == 1)
            stopping = asyncio.ensure_future(server.stop())
            assert (await waiting)[0] == 503
            await stopping
        assert select.select([watched], [], [], 20)[0]
        os.close(watched)
        invariants.check_idle(server.state)
        assert not server._ports._http

    asyncio.run(run())
    assert set(psutil.Process().children(recursive=True)) <= set(before)
