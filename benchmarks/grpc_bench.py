"""What a gRPC request costs the server, beside the same request over HTTP and beside what ``grpcio`` costs alone.

    python -m benchmarks.grpc_bench [--seconds 5] [--clients 1 8 64]

The server is a process of its own with a tiny model (an addition on four numbers), all policy on; load comes from
another process. Counted is the server's processor time per request, which other load on the machine moves less than
requests per second and latencies. The two ``grpcio`` rows are servers that answer with the bytes they got: no decoding,
no model, no policy.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent import futures
from pathlib import Path

import msgspec
import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

METHOD = "/inference.GRPCInferenceService/ModelInfer"
PIPELINE = """
version: 1
pipeline: tiny
engines: {ort: {backend: onnxruntime, threads: 1, queue: {limit: 256}}}
stages: [{name: add, model: add.onnx, engine: ort, batch: {ort: {size: 64}}}]
"""


class Row(msgspec.Struct):
    """One line of the table."""

    what: str
    clients: int
    cpu_us_per_request: float
    requests_per_s: float
    p50_ms: float


def run() -> dict[str, float]:
    """Processor time per request of every server and way to load it, microseconds."""
    rows = [row for kind in SERVERS for row in measure(kind, [1, 8, 64], 2.0)]
    slug = str.maketrans({",": None, ".": "_", " ": "_", "-": "_"})
    return {f"{row.what.lower().translate(slug)}_{row.clients}_cpu_us": row.cpu_us_per_request for row in rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=["loadslice", "grpcio-aio", "grpcio-threads"])
    given = parser.parse_args()
    if given.serve is not None:
        SERVERS[given.serve]()
        return
    rows = [row for kind in SERVERS for row in measure(kind, given.clients, given.seconds)]
    if given.json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return
    for row in rows:
        sys.stdout.write(
            f"{row.what:<44} {row.clients:>3} clients {row.cpu_us_per_request:8.1f} us of processor time a request "
            f"{row.requests_per_s:9.0f}/s  p50 {row.p50_ms:.2f} ms\n"
        )


# Servers.


def serve_loadslice() -> None:
    """HTTP and gRPC on one core."""
    from loadslice.serve.loop import new_loop
    from loadslice.serve.server import Server
    from loadslice.spec import pipeline

    folder = Path(tempfile.mkdtemp())
    (folder / "p.yaml").write_text(PIPELINE)
    shape = ["n", 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "add.onnx")

    async def run() -> None:
        server = Server(pipeline.load(folder / "p.yaml"), folder, port=0, grpc=0)
        await server.start()
        print(server.url.rpartition(":")[2], server.grpc_port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def serve_grpcio_aio() -> None:
    """Echo on ``grpc.aio``."""
    import grpc

    async def echo(message: bytes, _context: object) -> bytes:
        return message

    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_handlers(echo),))
        print(0, server.add_insecure_port("127.0.0.1:0"), flush=True)
        await server.start()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.stop(0)

    asyncio.run(run())


def serve_grpcio_threads() -> None:
    """Echo on the synchronous server."""
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((_handlers(lambda message, _context: message),))
    print(0, server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(0)


def _handlers(echo: Callable[..., object]) -> object:
    import grpc

    service, _, method = METHOD.strip("/").rpartition("/")
    return grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(echo)})


SERVERS = {
    "loadslice": serve_loadslice,
    "grpcio-aio": serve_grpcio_aio,
    "grpcio-threads": serve_grpcio_threads,
}


# Load.


def measure(kind: str, clients: list[int], seconds: float) -> list[Row]:
    """Start one server and load it in each way it understands."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.grpc_bench", "--serve", kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    http, grpc_port = (int(port) for port in process.stdout.readline().split())
    rows = []
    try:
        for count in clients:
            if http:
                rows.append(_load(process.pid, "loadslice HTTP, binary tensors", count, seconds, http_load(http)))
                name = "loadslice gRPC, connections as in HTTP"
                rows.append(_load(process.pid, name, count, seconds, plain_load(grpc_port)))
                name = "loadslice gRPC, grpc.aio, a connection each"
                rows.append(_load(process.pid, name, count, seconds, grpc_load(grpc_port, apart=True)))
                name = "loadslice gRPC, grpc.aio, one connection"
                rows.append(_load(process.pid, name, count, seconds, grpc_load(grpc_port, apart=False)))
            else:
                rows.append(_load(process.pid, f"{kind}, echo", count, seconds, grpc_load(grpc_port, apart=True)))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
    return rows


Load = Callable[[int, float, list[float]], Awaitable[None]]


def _load(pid: int, what: str, clients: int, seconds: float, load: Load) -> Row:
    asyncio.run(load(clients, 1.0, []))
    server = psutil.Process(pid)
    before, began = server.cpu_times(), time.perf_counter()
    latencies: list[float] = []
    asyncio.run(load(clients, seconds, latencies))
    wall_s, after = time.perf_counter() - began, server.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return Row(
        what, clients, 1e6 * used_s / len(latencies), len(latencies) / wall_s, 1000 * float(np.median(latencies))
    )


def request() -> bytes:
    """One row of four numbers as a `ModelInferRequest`."""
    from loadslice.serve.grpc_messages import messages

    made = messages().classes["ModelInferRequest"](model_name="tiny")
    made.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    made.raw_input_contents.append(np.arange(4, dtype="<f4").tobytes())
    return bytes(made.SerializeToString())


def grpc_load(port: int, *, apart: bool) -> Load:
    """Closed loop over ``grpc.aio``."""
    import grpc

    async def load(clients: int, seconds: float, latencies: list[float]) -> None:
        message = request()
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(clients if apart else 1)
        ]
        end = time.perf_counter() + seconds

        async def client(channel: grpc.aio.Channel) -> None:
            call = channel.unary_unary(METHOD)
            while (sent := time.perf_counter()) < end:
                await call(message)
                latencies.append(time.perf_counter() - sent)

        await asyncio.gather(*(client(channels[number % len(channels)]) for number in range(clients)))
        for channel in channels:
            await channel.close()

    return load


def plain_load(port: int) -> Load:
    """Closed loop like `http_load`: the bytes that the C core would send, without the C core's costs."""
    from hpack import Encoder

    from loadslice.serve import grpc_frames as h2

    headers = [
        (":scheme", "http"), (":method", "POST"), (":path", METHOD), (":authority", "127.0.0.1"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "bench"),
        ("grpc-accept-encoding", "identity, deflate, gzip"),
    ]  # fmt: skip
    encoder = Encoder()
    first, later = encoder.encode(headers), encoder.encode(headers)
    message = request()
    framed = b"\0" + len(message).to_bytes(4, "big") + message

    async def load(clients: int, seconds: float, latencies: list[float]) -> None:
        end = time.perf_counter() + seconds

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(h2.PREFACE + h2.settings(()))
            stream, block = 1, first
            while (sent := time.perf_counter()) < end:
                writer.write(
                    h2.frame(h2.HEADERS, h2.END_HEADERS, stream, block)
                    + h2.frame(h2.DATA, h2.END_STREAM, stream, framed)
                )
                while True:
                    head = await reader.readexactly(9)
                    await reader.readexactly(int.from_bytes(head[:3], "big"))
                    if head[3] == h2.HEADERS and head[4] & h2.END_STREAM:
                        break
                latencies.append(time.perf_counter() - sent)
                if stream == 1:
                    writer.write(h2.frame(h2.SETTINGS, h2.ACK, 0) + h2.window_update(0, 1 << 30))
                stream, block = stream + 2, later
            writer.close()

        await asyncio.gather(*(client() for _ in range(clients)))

    return load


def http_load(port: int) -> Load:
    """Closed loop over keep-alive connections, as little client as possible."""
    head = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}],'
        b'"parameters":{"binary_data_output":true}}'
    )
    body = head + np.arange(4, dtype="<f4").tobytes()
    whole = (
        b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b" % (len(head), len(body), body)
    )

    async def load(clients: int, seconds: float, latencies: list[float]) -> None:
        end = time.perf_counter() + seconds

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while (sent := time.perf_counter()) < end:
                writer.write(whole)
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200"), answer
                length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                latencies.append(time.perf_counter() - sent)
            writer.close()

        await asyncio.gather(*(client() for _ in range(clients)))

    return load


if __name__ == "__main__":
    main()
