"""What server and engine process say to each other: short messages, one per datagram; tensors are never in them."""

from typing import Any

import msgspec
import numpy as np

from loadslice.backends.base import TensorInfo

MESSAGE_BYTES_MAX = 128 * 1024
"""More than the names and places of the most tensors a model may have."""


class Told(msgspec.Struct, array_like=True):
    """A `TensorInfo` on its way."""

    name: str
    dtype: str
    shape: list[int | None]

    @classmethod
    def of(cls, info: TensorInfo) -> "Told":
        """To be sent."""
        return cls(info.name, info.dtype.str, list(info.shape))

    def info(self) -> TensorInfo:
        """As it was."""
        return TensorInfo(self.name, np.dtype(self.dtype), tuple(self.shape))


class Placed(msgspec.Struct, array_like=True):
    """One tensor in shared memory."""

    name: str
    dtype: str
    """NumPy's; ``|O``: text and bytes, packed."""
    shape: list[int]
    offset: int
    nbytes: int


class Load(msgspec.Struct, tag=True):
    """Load a model. The answer: `Loaded` or `Refused`."""

    number: int
    model: str
    engine: bytes
    """An `Engine` or a `TwinEngine`, as MessagePack."""
    is_twin: bool


class Drop(msgspec.Struct, tag=True):
    """Free a model. The answer: `Done`."""

    number: int


class Describe(msgspec.Struct, tag=True):
    """What runs a model? The answer: `Said`."""

    number: int


class Loaded(msgspec.Struct, tag=True):
    """A model is there."""

    inputs: list[Told]
    outputs: list[Told]


class Refused(msgspec.Struct, tag=True):
    """Bad input: one line."""

    text: str


class Done(msgspec.Struct, tag=True):
    """It is done."""


class Said(msgspec.Struct, tag=True):
    """Of `Session.describe`."""

    words: dict[str, str | int]


class Run(msgspec.Struct, array_like=True):
    """Run one batch of one model. The answer: `Ran` or `Failed`."""

    number: int
    feeds: list[Placed]
    section: int
    """Of the shared memory, where outputs go."""


class Ran(msgspec.Struct, tag=True, array_like=True):
    """What came of it."""

    outputs: list[Placed]
    compute_ns: int
    """Inside the runtime."""
    late_runs: int
    """Of an emulated device, so far."""


class Failed(msgspec.Struct, tag=True, array_like=True):
    """Why there is nothing."""

    kind: str
    """``input``: the request's fault; ``size``: the outputs are too large; ``engine``: the runtime's fault."""
    text: str


Order = Load | Drop | Describe
Answer = Loaded | Refused | Done | Said

encoder = msgspec.msgpack.Encoder()
order_decoder = msgspec.msgpack.Decoder(Order)
answer_decoder = msgspec.msgpack.Decoder(Answer)
run_decoder = msgspec.msgpack.Decoder(Run)
ran_decoder = msgspec.msgpack.Decoder(Ran | Failed)


def strings(raw: bytes, shape: list[int]) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Text and bytes as they were packed."""
    values: list[Any] = msgspec.msgpack.decode(raw, type=list)
    tensor = np.empty(len(values), np.object_)
    tensor[:] = values
    return tensor.reshape(shape)
