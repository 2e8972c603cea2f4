"""Engines elsewhere: any server of the Open Inference Protocol over HTTP (Triton, OVMS, MLServer, KServe, our own).

The server's own metadata says what the model reads and gives. Tensors go in the binary extension where the server lists
it among its extensions, as JSON otherwise, or as ``options.binary`` says.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from loadslice.backends.base import EngineError, TensorInfo, check_feeds
from loadslice.backends.remote_http import NO_REPLY, Known, Remote, Reply, refusal
from loadslice.spec.datatypes import BYTES, NUMPY, little_endian, name_of
from loadslice.spec.errors import InputError
from loadslice.spec.files import NOT_JSON
from loadslice.spec.pipeline import Engine
from loadslice.spec.work import Tensor

KIND = "remote-oip"

BINARY_EXTENSIONS = ("binary_tensor_data", "binary_data", "binary")
OPTIONS: Known = {"binary": bool, "version": str}

HEADER_LENGTH = "Inference-Header-Content-Length"


class RemoteOipBackend:
    """Finds models on servers of the Open Inference Protocol."""

    def load(self, model: Path, engine: Engine) -> "RemoteOipSession":
        """See `loadslice.backends.base.Backend.load`; ``options.model`` is its name there, else the stage's."""
        remote = Remote(engine, KIND, OPTIONS)
        name = str(engine.options.get("model", model.name))
        try:
            return RemoteOipSession(remote, name, engine)
        except BaseException:
            remote.close()
            raise


class RemoteOipSession:
    """One model of one server; a slot is a connection."""

    def __init__(self, remote: Remote, name: str, engine: Engine) -> None:
        self.remote = remote
        self._engine = engine
        self._name = name
        version = engine.options.get("version")
        at = "" if version is None else f"/versions/{quote(str(version), safe='')}"
        self._path = f"/v2/models/{quote(name, safe='')}{at}"
        metadata = self._metadata()
        self.inputs = [_info(entry, name) for entry in metadata.get("inputs", [])]
        self.outputs = [_info(entry, name) for entry in metadata.get("outputs", [])]
        if not self.inputs:
            raise InputError(f"{KIND}: {remote.host}: model '{name}' states no inputs.")
        self._server = self._ask("/v2")
        binary = engine.options.get("binary")
        said = self._server.get("extensions") or []
        self.is_binary = bool(binary) if binary is not None else any(one in BINARY_EXTENSIONS for one in said)

    def run(self, feeds: Mapping[str, Tensor], slot: int = 0) -> dict[str, Tensor]:
        """See `loadslice.backends.base.Session.run`."""
        check_feeds(self.inputs, feeds)
        head, parts = self._request(feeds)
        headers = {"Content-Type": "application/json"}
        if parts:
            headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
        reply = self.remote.post(slot, f"{self._path}/infer", headers, b"".join((head, *parts)))
        try:
            outputs = _outputs(reply)
        except NO_REPLY as error:
            raise EngineError(f"{KIND}: {self.remote.host} gave what is no reply: {type(error).__name__}.") from error
        for info in self.outputs:
            if info.name not in outputs:
                raise EngineError(f"{KIND}: {self.remote.host} left out output '{info.name}'.")
        return {info.name: outputs[info.name] for info in self.outputs} or outputs

    def describe(self) -> dict[str, str | int]:
        """See `loadslice.backends.base.Session.describe`."""
        return {
            "runtime": f"{KIND} {self._server.get('name', 'unnamed')}",
            "version": str(self._server.get("version", "unknown")),
            "device": self.remote.host,
            "threads": self._engine.threads,
            "precision": self._engine.precision,
            "form": "binary" if self.is_binary else "json",
        }

    def close(self) -> None:
        """Close the connections; the model stays where it is."""
        self.remote.close()

    def _request(self, feeds: Mapping[str, Tensor]) -> tuple[bytes, list[bytes | memoryview]]:
        parts: list[bytes | memoryview] = []
        inputs: list[dict[str, Any]] = []
        for info in self.inputs:
            tensor, datatype = feeds[info.name], name_of(info.dtype)
            entry: dict[str, Any] = {"name": info.name, "datatype": datatype, "shape": list(tensor.shape)}
            if not self.is_binary:
                entry["data"] = [_text(one) for one in tensor.ravel()] if datatype == BYTES else tensor.ravel().tolist()
            else:
                part = _packed(tensor) if datatype == BYTES else little_endian(tensor).reshape(-1).view(np.uint8).data
                entry["parameters"] = {"binary_data_size": len(part)}
                parts.append(part)
            inputs.append(entry)
        document: dict[str, Any] = {"inputs": inputs}
        if self.is_binary:
            document["parameters"] = {"binary_data_output": True}
        # NaN and infinity have no JSON form: a server that takes them takes Python's spelling of them.
        return json.dumps(document).encode(), parts

    def _metadata(self) -> dict[str, Any]:
        try:
            reply = self.remote.get(self._path)
        except EngineError as error:
            raise refusal(self.remote, f"model '{self._name}'", error) from error
        if reply.status != 200:
            raise refusal(self.remote, f"model '{self._name}'", reply)
        return self._decoded(reply)

    def _ask(self, path: str) -> dict[str, Any]:
        try:
            reply = self.remote.get(path)
        except EngineError:
            return {}
        return self._decoded(reply) if reply.status == 200 else {}

    def _decoded(self, reply: Reply) -> dict[str, Any]:
        try:
            return msgspec.json.decode(reply.body, type=dict[str, Any])
        except NOT_JSON as error:
            raise InputError(f"{KIND}: {self.remote.host} does not speak the Open Inference Protocol.") from error


BACKEND = RemoteOipBackend()


def _info(entry: Any, model: str) -> TensorInfo:
    try:
        datatype, shape = NUMPY[entry["datatype"]], entry["shape"]
        sides = tuple(None if side is None or int(side) < 0 else int(side) for side in shape)
        return TensorInfo(str(entry["name"]), datatype, sides)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{KIND}: model '{model}': a tensor's metadata is not usable: {str(entry)[:120]}.") from error


def _outputs(reply: Reply) -> dict[str, Tensor]:
    """Tensors of a reply; its header's length says where binary data begins."""
    length = int(reply.headers.get(HEADER_LENGTH, len(reply.body)))
    document = json.loads(reply.body[:length])
    at = length
    outputs = {}
    for entry in document["outputs"]:
        dtype, shape = NUMPY[entry["datatype"]], [int(side) for side in entry["shape"]]
        size = (entry.get("parameters") or {}).get("binary_data_size")
        if size is None:
            outputs[entry["name"]] = _from_json(entry["data"], dtype).reshape(shape)
            continue
        raw = reply.body[at : at + size]
        if len(raw) != size or size < 0:
            raise ValueError("binary data is missing")
        at += size
        values = _unpacked(raw) if entry["datatype"] == BYTES else np.frombuffer(bytearray(raw), dtype)
        outputs[entry["name"]] = values.reshape(shape)
    return outputs


def _from_json(data: Any, dtype: np.dtype[Any]) -> Tensor:
    """Flat or nested; servers write both."""
    if dtype == np.object_:
        flat = np.asarray(data, np.object_).ravel()
        return flat.copy()
    return np.array(data, dtype).ravel()


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _packed(tensor: Tensor) -> bytes:
    packed = bytearray()
    for value in tensor.ravel().tolist():
        raw = value if isinstance(value, bytes) else str(value).encode()
        packed += struct.pack("<I", len(raw)) + raw
    return bytes(packed)


def _unpacked(raw: bytes) -> Tensor:
    values, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        value = raw[at + 4 : at + 4 + length]
        if len(value) != length:
            raise ValueError("text is cut short")
        values.append(value)
        at += 4 + length
    tensor = np.empty(len(values), np.object_)
    tensor[:] = values
    return tensor
