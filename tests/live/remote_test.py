"""One server as an engine of another, beside an engine of its own: same answers, failover, deadlines."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadslice.policy import columns as c
from loadslice.serve.grpc_messages import SERVICE, messages
from loadslice.serve.limits import Limits
from loadslice.serve.request import Request
from loadslice.serve.server import Server
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Pipeline, check

pytestmark = pytest.mark.live

FRONT = """
version: 1
pipeline: front
engines:
  there: {{backend: remote-oip, options: {{url: "{url}", model: {model}}}}}
  here: {{backend: onnxruntime}}
stages:
  - {{name: double, model: double.onnx, engines: [there, here], timeout_ms: 5000}}
"""

SLOW = """
version: 1
pipeline: slow
engines: {ort: {backend: onnxruntime}, host: {backend: python}}
stages:
  - {name: double, model: double.onnx, engine: ort}
  - {name: wait, python: "stages:wait", engine: host}
"""


def front(url: str, model: str) -> Pipeline:
    return check(msgspec.yaml.decode(FRONT.format(url=url, model=model), type=Pipeline), "front")


TRACED = [f"00-{number:032x}-b7ad6b7169203331-{flags}" for number, flags in ((1, "01"), (2, "00"), (3, "01"))]


class Seen:
    """A witness that keeps the trace contexts of requests that end."""

    def __init__(self) -> None:
        self.traceparents: list[str | None] = []

    def ended(self, _pipeline: Pipeline, request: Request, _now_ns: int) -> None:
        """See `loadslice.serve.logs.Witness.ended`."""
        self.traceparents.append(request.traceparent)


async def send(client: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, str]:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    async with client.post("/v2/models/front/infer", json=body, headers=headers) as reply:
        return reply.status, json.loads(await reply.read()), reply.headers.get("x-loadslice-engine", "")


def test_another_server_serves_a_stage_and_the_processor_takes_over_when_it_is_gone(
    pipeline: Any, folder: Path, serving: Any, until: Any
) -> None:
    async def run() -> None:
        behind = Server(pipeline("runtimes"), folder, port=0)
        await behind.start()
        url, port = behind.url, int(behind.url.rpartition(":")[2])
        limits = Limits(probe_interval_s=0.05)
        async with serving(front(url, "runtimes"), folder, limits=limits) as (server, client):
            first = await send(client)
            assert (first[0], first[2]) == (200, "there")
            await behind.stop()
            statuses = {(await send(client))[0] for _ in range(8)}
            assert statuses == {200}
            await until(lambda: server.state.engines[0, c.N_UP] == 0)
            assert (await send(client))[2] == "here"
            behind = Server(pipeline("runtimes"), folder, port=port)
            await behind.start()
            await until(lambda: server.state.engines[0, c.N_UP] == 1)
            assert await send(client) == first
        await behind.stop()

    asyncio.run(run())


def test_a_deadline_reaches_the_other_server(folder: Path, serving: Any, gate: Any, until: Any) -> None:
    async def run() -> None:
        async with serving(check(msgspec.yaml.decode(SLOW, type=Pipeline), "slow"), folder) as (behind, _):
            served = front(behind.url, "slow")
            only = msgspec.structs.replace(served.stages[0], engines=["there"])
            alone = msgspec.structs.replace(served, stages=[only], engines={"there": served.engines["there"]})
            async with serving(alone, folder) as (_, client):
                await behind.drained()
                gate("shut")
                assert (await send(client, {"x-loadslice-deadline-ms": "300"}))[0] == 504
                # By the deadline that it was told, or because the connection was closed: it does not go on for nobody.
                await until(lambda: behind.outcomes[Outcome.EXPIRED] + behind.outcomes[Outcome.CANCELLED] >= 1)
                gate("open")
                assert (await send(client))[0] == 200

    asyncio.run(run())


def test_the_other_server_sees_the_trace_that_came_over_either_front(pipeline: Any, folder: Path, serving: Any) -> None:
    import grpc

    async def run() -> None:
        seen = Seen()
        async with serving(pipeline("runtimes"), folder, witnesses=[seen]) as (behind, _):
            served = front(behind.url, "runtimes")
            async with serving(served, folder, grpc=0) as (server, client):
                await behind.drained()
                seen.traceparents.clear()
                assert (await send(client, {"traceparent": TRACED[0]}))[2] == "there"
                assert (await send(client))[2] == "there"
                assert (await send(client, {"traceparent": "00-nothing"}))[2] == "there"
                made = messages().classes["ModelInferRequest"](model_name="front")
                made.inputs.add(name="x", datatype="FP32", shape=[1, 4])
                made.raw_input_contents.append(bytes(16))
                async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
                    infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
                    await infer(made.SerializeToString(), metadata=[("traceparent", TRACED[1])])
                    await infer(made.SerializeToString(), metadata=[("traceparent", TRACED[2] + "-later")])
        assert seen.traceparents == [TRACED[0], None, None, TRACED[1], TRACED[2]]

    asyncio.run(run())


def test_a_model_there_that_reads_something_else_is_refused_with_both(
    pipeline: Any, folder: Path, serving: Any
) -> None:
    async def run() -> None:
        async with serving(pipeline("lookup"), folder) as (behind, _):
            server = Server(front(behind.url, "lookup"), folder, port=0)
            with pytest.raises(InputError, match=r"'here'.*reads 'x' float32.*'i' int64"):
                await server.start()

    asyncio.run(run())


def test_a_stage_that_only_another_server_runs_needs_no_file(pipeline: Any, folder: Path, serving: Any) -> None:
    async def run() -> None:
        async with serving(pipeline("runtimes"), folder) as (behind, _):
            served = front(behind.url, "runtimes")
            stage = msgspec.structs.replace(served.stages[0], engines=["there"], model=None, variant="runtimes")
            engine = msgspec.structs.replace(served.engines["there"], options={"url": behind.url})
            alone = msgspec.structs.replace(served, stages=[stage], engines={"there": engine})
            async with serving(alone, folder) as (_, client):
                assert (await send(client))[0] == 200

    asyncio.run(run())
