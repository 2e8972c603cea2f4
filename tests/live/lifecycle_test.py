"""From the first request to the last: overload, clients that leave, stopping under load, and a journal that adds up."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import Counter

import aiohttp
import msgspec
import polars as pl
import pytest

from loadslice.policy import invariants
from loadslice.serve.limits import Limits
from loadslice.serve.server import Server
from loadslice.spec import journal
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Accept, Pipeline, check

pytestmark = pytest.mark.live


REPLAY = """
import hashlib, sys
from pathlib import Path
import msgspec, numpy as np
from loadslice.policy import columns as c
from loadslice.policy.events import decide
from loadslice.policy.tables import fresh, lower, rule_sources
from loadslice.spec import journal, pipeline
kept = journal.load(Path(sys.argv[1]))
served = pipeline.check(msgspec.yaml.decode(kept.head.pipeline_yaml, type=pipeline.Pipeline), "journal")
tables = lower(served, None, rule_sources(served))
state = fresh(tables, served.max_requests)
events = np.ascontiguousarray(kept.events.to_numpy(), np.int64)
effects = np.zeros((8 * len(events) + 64, c.EFFECT_COLUMNS), np.int64)
results = np.zeros((state.members.shape[1], 2), np.int64)
count = decide(events, tables, state, results, effects)
print(hashlib.sha256(effects[:count].data).hexdigest())
"""


def running(server: Server) -> int:
    return int(server.state.batches[:, 0].sum())


@pytest.fixture
def gated(pipeline) -> Pipeline:
    return pipeline("gated")


def test_stopping_under_load_answers_everybody_and_the_journal_adds_up(
    pipeline, folder, tmp_path, infer, until
) -> None:
    seen: Counter[str] = Counter()

    async def keep_sending(client: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                status, headers = await infer(client, "tiny")
                seen[str(status)] += 1
                if status == 503:
                    assert headers["Connection"] == "close"
                    assert int(headers["Retry-After"]) >= 1
                    return
            except aiohttp.ClientConnectorError:
                seen["refused"] += 1
                return

    async def run() -> Server:
        stop = asyncio.Event()
        server = Server(pipeline("tiny"), folder, port=0, journal=tmp_path / "journal")
        await server.start()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(server.url, connector=connector) as client:
            senders = [asyncio.ensure_future(keep_sending(client, stop)) for _ in range(8)]
            await until(lambda: seen["200"] >= 200)
            await server.stop()
            stop.set()
            await asyncio.gather(*senders)
        return server

    server = asyncio.run(run())
    invariants.check(server.tables, server.state)
    invariants.check_idle(server.state)
    kept = journal.load(tmp_path / "journal")
    assert kept.head.clean
    assert set(seen) <= {"200", "503", "refused"}, "no connection was reset without a reply"
    assert kept.head.outcomes["completed"] == seen["200"]
    assert kept.head.outcomes["rejected"] == seen["503"]
    assert kept.head.requests == len(kept.requests) == sum(kept.head.outcomes.values())
    assert kept.requests["tag"].n_unique() == len(kept.requests)
    assert not (tmp_path / "journal" / "parts").exists()

    done = kept.stages.filter(pl.col("done_ns").is_not_null())
    assert len(done) == 2 * seen["200"]
    assert (done["enqueued_ns"] <= done["dispatched_ns"]).all()
    assert (done["dispatched_ns"] <= done["started_ns"]).all()
    assert (done["started_ns"] + done["copy_ns"] + done["compute_ns"] <= done["done_ns"]).all()
    completed = kept.requests.filter(pl.col("outcome") == "completed")
    assert (completed["arrival_ns"] <= completed["end_ns"]).all()
    assert completed["reply_ns"].null_count() == 0

    for jit in ("0", "1"):
        replayed = subprocess.run(
            [sys.executable, "-c", REPLAY, str(tmp_path / "journal")],
            env=os.environ | {"NUMBA_DISABLE_JIT": jit},
            capture_output=True,
            text=True,
            check=True,
        )
        assert replayed.stdout.strip() == kept.head.effects_sha256, "the same core decides the same again"


def test_what_outlasts_the_drain_is_cut_off_with_an_outcome(gated, folder, gate, tmp_path, infer, until) -> None:
    async def run() -> None:
        gate("shut")
        server = Server(gated, folder, port=0, journal=tmp_path / "journal", drain_s=0.1)
        await server.start()
        async with aiohttp.ClientSession(server.url) as client:
            waiting = [asyncio.ensure_future(infer(client, "gated")) for _ in range(3)]
            await until(lambda: server.generation.inside == 3)
            stopping = asyncio.ensure_future(server.stop())
            replies = await asyncio.gather(*waiting)
            gate("open")
            await stopping
        assert {status for status, _ in replies} == {503}

    asyncio.run(run())
    kept = journal.load(tmp_path / "journal")
    assert kept.head.outcomes["cancelled"] == 3
    assert kept.head.clean


def test_a_client_that_leaves_is_cancelled_and_its_place_is_free_again(
    gated, folder, gate, tmp_path, serving, infer, until
) -> None:
    async def run() -> None:
        gate("shut")
        async with serving(gated, folder, journal=tmp_path / "journal") as (server, client):
            waiting = [asyncio.ensure_future(infer(client, "gated")) for _ in range(6)]
            await until(lambda: int(server.state.engines[0, 1]) == 4)
            for task in waiting:
                task.cancel()
            await until(lambda: server.outcomes[Outcome.CANCELLED] == 6)
            gate("open")
            await server.drained()
            assert (await infer(client, "gated"))[0] == 200

    asyncio.run(run())
    kept = journal.load(tmp_path / "journal")
    assert Counter(kept.requests["reason"].to_list()) == {"client_gone": 6, "none": 1}
    assert kept.requests.filter(pl.col("outcome") == "cancelled")["reply_ns"].null_count() == 6


def test_overload_is_refused_with_a_hint_and_a_deadline_ends_in_time(
    gated, folder, gate, serving, infer, until
) -> None:
    async def run() -> None:
        gate("shut")
        async with serving(gated, folder) as (server, client):
            inside = [asyncio.ensure_future(infer(client, "gated")) for _ in range(5)]
            late = asyncio.ensure_future(infer(client, "gated", {"x-loadslice-deadline-ms": "2000"}))
            await until(lambda: int(server.state.engines[0, 1]) == 4)
            status, headers = await infer(client, "gated")
            assert status == 429
            assert int(headers["Retry-After"]) >= 1
            assert int(headers["x-loadslice-retry-after-ms"]) >= 50
            assert (await late)[0] == 504
            higher = [
                asyncio.ensure_future(infer(client, "gated", {"x-loadslice-priority": "critical_plus"}))
                for _ in range(2)
            ]
            displaced, _ = await asyncio.wait(inside, return_when=asyncio.FIRST_COMPLETED)
            assert displaced.pop().result()[0] == 503
            gate("open")
            assert {status for status, _ in await asyncio.gather(*higher)} == {200}
            assert Counter(status for status, _ in await asyncio.gather(*inside)) == {200: 4, 503: 1}

    asyncio.run(run())


def test_a_hung_worker_makes_the_server_not_ready_but_alive(gated, folder, gate, serving, infer, until) -> None:
    async def run() -> None:
        gate("shut")
        async with serving(gated, folder, limits=Limits(round_trip_timeout_s=1.0)) as (server, client):
            hung = asyncio.ensure_future(infer(client, "gated"))
            await until(lambda: running(server) == 1)
            async with client.get("/v2/health/ready") as reply:
                assert reply.status == 503
                assert (await reply.json())["error"] == "no answer from host"
            async with client.get("/v2/health/live") as reply:
                assert reply.status == 200
            gate("open")
            assert (await hung)[0] == 200

    asyncio.run(run())


def test_a_runtime_that_fails_on_one_request_is_counted_and_serves_the_next(pipeline, folder, serving) -> None:
    async def run() -> None:
        async with serving(pipeline("lookup"), folder) as (server, client):

            async def look_up(index: int) -> tuple[int, dict]:
                body = {"inputs": [{"name": "i", "datatype": "INT64", "shape": [1], "data": [index]}]}
                async with client.post("/v2/models/lookup/infer", json=body) as reply:
                    return reply.status, await reply.json()

            assert await look_up(99) == (502, {"error": "the engine failed on this request"})
            status, document = await look_up(3)
            assert (status, document["outputs"][0]["data"]) == (200, [13])
            assert server.outcomes[Outcome.FAILED] == 1
            async with client.get("/metrics") as reply:
                (line,) = [
                    line
                    for line in (await reply.text()).splitlines()
                    if line.startswith("loadslice_engine_failures_total")
                ]
            assert float(line.split()[-1]) >= 1

    asyncio.run(run())


def test_a_request_that_no_engine_takes_is_said_to_be_ineligible(pipeline, folder, serving) -> None:
    tiny = pipeline("tiny")
    first = msgspec.structs.replace(tiny.stages[0], accept={"ort": Accept(max_items=2)})
    narrow = check(msgspec.structs.replace(tiny, stages=[first, tiny.stages[1]]), "narrow")

    async def run() -> None:
        rows = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 4], "data": [0] * 12}]})
        async with serving(narrow, folder) as (_, client), client.post("/v2/models/tiny/infer", data=rows) as reply:
            assert reply.status == 422

    asyncio.run(run())


def test_requests_share_batches_and_each_gets_its_own_rows(pipeline, folder, tmp_path, serving) -> None:
    async def run() -> None:
        async with serving(pipeline("tiny"), folder, journal=tmp_path / "journal") as (_, client):

            async def one(number: int) -> None:
                data = [number, 0, 0, 0]
                body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": data}]}
                async with client.post("/v2/models/tiny/infer", json=body) as reply:
                    assert (await reply.json())["outputs"][0]["data"][0] == -2 * number

            await asyncio.gather(*(one(number) for number in range(60)))

    asyncio.run(run())
    assert journal.load(tmp_path / "journal").stages["batch_rows"].max() > 1


async def _raw_exchange(server: Server, *parts: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
    await writer.drain()
    reply = await reader.read()
    writer.close()
    await writer.wait_closed()
    return reply


def test_slow_bodies_are_refused(pipeline, folder, serving) -> None:
    limits = Limits(body_timeout_s=0.1, held_bytes_max=1000, body_bytes_max=900)
    head = b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: h\r\n"

    async def run() -> None:
        async with serving(pipeline("tiny"), folder, limits=limits) as (server, _):
            slow = await _raw_exchange(server, head + b"Content-Length: 500\r\n\r\n", b"{")
            assert slow.startswith(b"HTTP/1.1 408 ")

    asyncio.run(run())


def test_the_connection_that_was_idle_longest_makes_room_for_the_next(pipeline, folder, serving, until) -> None:
    async def run() -> None:
        async with serving(pipeline("tiny"), folder, limits=Limits(connections_max=2, idle_s=0)) as (server, _):
            host, port = server.url.removeprefix("http://").split(":")
            idle = []
            for count in (1, 2):
                idle.append(await asyncio.open_connection(host, int(port)))
                await until(lambda count=count: len(server._ports._http[0][0].connections) == count)
            await asyncio.sleep(0.01)  # the loop's clock counts whole milliseconds
            idle[0][1].write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            assert await idle[0][0].readline() == b"HTTP/1.1 200 OK\r\n"
            reply = await _raw_exchange(server, b"GET /v2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 200 ")
            # Closed at once, not when nobody has been heard of for long; the one opened before it was heard of later.
            assert await asyncio.wait_for(idle[1][0].read(), 10) == b""
            for _, writer in idle:
                writer.close()
                await writer.wait_closed()

    asyncio.run(run())


def test_with_every_connection_busy_health_is_still_reached_and_others_are_refused(
    gated, folder, gate, serving, infer, until
) -> None:
    limits = Limits(connections_max=2, connections_reserved=2)
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"

    async def run() -> None:
        gate("shut")
        async with serving(gated, folder, limits=limits) as (server, client):
            busy = [asyncio.ensure_future(infer(client, "gated")) for _ in range(2)]
            await until(lambda: running(server) == 2)
            reply = await _raw_exchange(server, live)
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert b"Connection: close" in reply
            reply = await _raw_exchange(server, b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert reply.endswith(b'{"error":"too many connections"}')
            waiting = [asyncio.ensure_future(_raw_exchange(server, live.replace(b"live", b"ready"))) for _ in range(2)]
            await until(lambda: server._front.active == 4)
            assert (await _raw_exchange(server)).startswith(b"HTTP/1.1 503 "), "reserved ones have a limit too"
            gate("open")
            assert {status for status, _ in await asyncio.gather(*busy)} == {200}
            await asyncio.gather(*waiting)

    asyncio.run(run())


def test_bodies_of_all_requests_together_are_bounded(gated, folder, gate, serving, infer, until) -> None:
    limits = Limits(held_bytes_max=96, body_bytes_max=86)  # a body of `infer` has 86

    async def run() -> None:
        gate("shut")
        async with serving(gated, folder, limits=limits) as (server, client):
            first = asyncio.ensure_future(infer(client, "gated"))
            await until(lambda: running(server) == 1)
            status, headers = await infer(client, "gated")
            assert status == 503
            assert "Retry-After" in headers
            gate("open")
            assert (await first)[0] == 200
            assert (await infer(client, "gated"))[0] == 200

    asyncio.run(run())


def test_a_client_that_does_not_read_its_reply_is_cut_off_and_nobody_calls_it_a_fault(
    pipeline, folder, caplog, serving, infer, until
) -> None:
    rows = 900_000
    given = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": 16 * rows}}
    document = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(document) + 16 * rows}\r\n"
        f"Inference-Header-Content-Length: {len(document)}\r\n\r\n"
    )

    async def run() -> None:
        async with serving(pipeline("tiny"), folder, limits=Limits(reply_timeout_s=1.0)) as (server, client):
            host, port = server.url.removeprefix("http://").split(":")
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(deaf, (host, int(port)))
                await loop.sock_sendall(deaf, head.encode() + document + bytes(16 * rows))
                await until(lambda: server.outcomes[Outcome.COMPLETED] == 1)
                assert server._front.bodies.held_bytes > 16 * rows, "body and reply are held"
                await until(lambda: not server._ports._http[0][0].connections)
            assert server._front.bodies.held_bytes == 0
            assert (await infer(client, "tiny"))[0] == 200

    asyncio.run(run())
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_a_second_server_on_the_port_says_so_in_one_line(pipeline, folder, serving) -> None:
    async def run() -> None:
        async with serving(pipeline("tiny"), folder) as (server, _):
            port = int(server.url.rsplit(":", 1)[1])
            with pytest.raises(InputError, match=f"--http {port}: the port is in use"):
                await Server(pipeline("tiny"), folder, port=port).start()

    asyncio.run(run())


def test_a_journal_is_never_written_over(pipeline, folder, tmp_path) -> None:
    (tmp_path / "journal.json").write_text("{}")

    async def run() -> None:
        server = Server(pipeline("tiny"), folder, port=0, journal=tmp_path)
        with pytest.raises(InputError, match="holds a journal already"):
            await server.start()

    asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["journal.json"]
