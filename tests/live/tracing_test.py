"""Spans and log lines of a real server; and that nothing leaves unless a collector is named."""

import asyncio
import json
import logging
import socket
import threading

import pytest
from aiohttp import web

from loadslice.serve import logs
from loadslice.serve.tracing import Tracer

pytestmark = pytest.mark.live

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_request_with_a_callers_span_is_told_to_the_collector(serving, folder, pipeline, infer) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    got: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")

    async def whole() -> None:
        app = web.Application()
        app.router.add_post("/v1/traces", take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        tracer = Tracer(f"http://127.0.0.1:{port}/v1/traces", 0.0)
        async with serving(pipeline("tiny"), folder, witnesses=[tracer]) as (_, client):
            await infer(client, "tiny", {"traceparent": PARENT})
            await infer(client, "tiny")
        await asyncio.to_thread(tracer.close)
        await runner.cleanup()

    asyncio.run(whole())
    sent = ExportTraceServiceRequest()
    for body in got:
        sent.MergeFromString(body)
    spans = [span for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans]
    assert [span.name for span in spans if span.name.startswith("infer")] == ["infer tiny"]
    assert {span.trace_id.hex() for span in spans} == {PARENT.split("-")[1]}
    names = [span.name for span in spans]
    assert {names.count(part) for part in ("queue", "copy", "compute")} == {2}


def test_a_collector_that_is_not_there_costs_no_request(serving, folder, pipeline, infer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        tracer = Tracer(f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces", 1.0)

        async def whole() -> list[int]:
            async with serving(pipeline("tiny"), folder, witnesses=[tracer]) as (_, client):
                return [(await infer(client, "tiny"))[0] for _ in range(20)]

        assert asyncio.run(whole()) == [200] * 20
        threading.Thread(target=tracer.close, daemon=True).start()


def test_what_a_witness_makes_of_a_request_is_nothing_to_its_connection(serving, folder, pipeline, infer) -> None:
    class Fails:
        def ended(self, *_: object) -> None:
            raise ValueError("an answer it does not understand")

    async def whole() -> list[int]:
        async with serving(pipeline("tiny"), folder, witnesses=[Fails()]) as (_, client):
            return [(await infer(client, "tiny"))[0] for _ in range(3)]

    assert asyncio.run(whole()) == [200] * 3


def test_a_refused_request_has_its_story_in_the_log(serving, folder, pipeline, infer, gate, until, caplog) -> None:
    gate("shut")

    async def whole() -> None:
        async with serving(pipeline("gated"), folder, witnesses=[logs.Stories(None)]) as (server, client):
            held = [asyncio.ensure_future(infer(client, "gated")) for _ in range(6)]
            await until(lambda: len(server.generation.shell._inside) == 6)
            status, _ = await infer(client, "gated", {"x-request-id": "one too many"})
            assert status == 429
            gate("open")
            await asyncio.gather(*held)

    with caplog.at_level(logging.WARNING, "loadslice.request"):
        asyncio.run(whole())
    (record,) = [one for one in caplog.records if one.name == "loadslice.request"]
    told = json.loads(logs.JsonLines().format(record))["request"]
    assert (told["id"], told["outcome"], told["reason"]) == ("one too many", "rejected", "queue_full")
    assert told["stages"] == []
