"""A gRPC peer that speaks frames, as no client library would."""

import socket
import struct
from typing import Self

import numpy as np
from tests.live.conftest import LiveServer

from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_messages import SERVICE, messages

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
INFER, STREAM = f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"


def request(model: str = "tiny", values: np.ndarray = ROWS, **fields) -> bytes:
    made = messages().classes["ModelInferRequest"](model_name=model, **fields)
    made.inputs.add(name="x", datatype="FP32", shape=values.shape)
    made.raw_input_contents.append(values.tobytes())
    return made.SerializeToString()


class Peer:
    """Raw frames to the server."""

    def __init__(self, live: LiveServer, *, window: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", live.server.grpc_port), timeout=10)
        self.send(h2.PREFACE + h2.settings([] if window is None else [(h2.S_WINDOW, window)]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> tuple[int, int, int, bytes]:
        head = self.read(9)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        return kind, flags, int.from_bytes(head[5:], "big"), self.read(length)

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def goaway(self) -> int:
        """The error with which the server leaves."""
        while True:
            kind, _, _, payload = self.frame()
            if kind == h2.GOAWAY:
                return struct.unpack(">II", payload[:8])[1]


def head(path: str = INFER, **more: str) -> bytes:
    fields = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc"} | more
    return b"".join(h2.field(name.encode(), value.encode()) for name, value in fields.items())


def call(stream: int = 1, message: bytes | None = None) -> bytes:
    message = request() if message is None else message
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    return h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head()) + h2.frame(h2.DATA, h2.END_STREAM, stream, framed)


def framed(message: bytes) -> bytes:
    """A message as it stands in DATA frames."""
    return b"\0" + len(message).to_bytes(4, "big") + message
