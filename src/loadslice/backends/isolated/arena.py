"""Shared memory of one slot: batches on their way in one half, outputs on their way back in the other.

Pages cost memory once they have been written to. The size is sealed: a process that shrank it would kill whoever
reads it next.
"""

import fcntl
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import numpy as np

from loadslice.backends.base import TensorInfo
from loadslice.backends.isolated.messages import Placed, strings
from loadslice.spec.work import Tensor

ALIGNMENT = 64
"""Bytes; a cache line, and what vector instructions want."""

KEPT_BYTES = 32 * 1024 * 1024
"""Pages beyond this are given back after a large batch, so that one of them does not hold memory for ever."""


class TooLargeError(Exception):
    """Tensors do not fit."""


class Arena:
    """One half for each direction.

    Args:
        fd: Of the memory.
        half_bytes: Size of each half.
    """

    def __init__(self, fd: int, half_bytes: int) -> None:
        self.fd = fd
        self.half_bytes = half_bytes
        self._map = mmap.mmap(fd, 2 * half_bytes)
        self._address: int = np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0]

    @classmethod
    def create(cls, half_bytes: int) -> Self:
        """New memory, without a name and of fixed size."""
        fd = os.memfd_create("loadslice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 2 * half_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return cls(fd, half_bytes)

    def put(self, tensors: Mapping[str, Tensor], half: int) -> list[Placed]:
        """Copy tensors into a half, over whatever was there.

        Raises:
            TooLargeError: They do not fit.
        """
        placed = []
        at, end = half * self.half_bytes, (half + 1) * self.half_bytes
        for name, tensor in tensors.items():
            raw = None
            if tensor.dtype.kind in "OUS":
                raw = msgspec.msgpack.encode(tensor.ravel().tolist())
            nbytes = tensor.nbytes if raw is None else len(raw)
            if at + nbytes > end:
                raise TooLargeError(
                    f"tensor '{name}' makes the batch larger than the {self.half_bytes / 1e6:.0f} MB that go through "
                    "shared memory at once (engines.*.hand_over_mb)."
                )
            if raw is None:
                if not self._is_at(tensor, at):
                    np.ndarray(tensor.shape, tensor.dtype, self._map, at)[...] = tensor
            else:
                self._map[at : at + nbytes] = raw
            placed.append(Placed(name, "|O" if raw is not None else tensor.dtype.str, list(tensor.shape), at, nbytes))
            at += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return placed

    def room(self, infos: Sequence[TensorInfo], shapes: Sequence[tuple[int, ...]]) -> dict[str, Tensor] | None:
        """Where `put` would copy tensors of these shapes to, so that nothing has to be copied.

        Returns:
            By name; ``None``: they do not fit, or are text.
        """
        found, at = {}, 0
        for info, shape in zip(infos, shapes, strict=True):
            nbytes = math.prod(shape) * info.dtype.itemsize
            if at + nbytes > self.half_bytes or info.dtype.kind in "OUS":
                return None
            found[info.name] = np.ndarray(shape, info.dtype, self._map, at)
            at += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return found

    def _is_at(self, tensor: Tensor, offset: int) -> bool:
        address: int = tensor.__array_interface__["data"][0]
        return address == self._address + offset and tensor.flags.c_contiguous

    def is_inside(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in this memory."""
        address: int = tensor.__array_interface__["data"][0]
        return self._address <= address < self._address + 2 * self.half_bytes

    def views(self, placed: Sequence[Placed]) -> dict[str, Tensor]:
        """Tensors where they are; good until the half is written again."""
        return {
            one.name: strings(self._map[one.offset : one.offset + one.nbytes], one.shape)
            if one.dtype == "|O"
            else np.ndarray(one.shape, one.dtype, self._map, one.offset)
            for one in placed
        }

    def release(self, placed: Sequence[Placed]) -> None:
        """Give pages back that an ordinary batch does not need."""
        last = placed[-1] if placed else None
        if last is not None and (last.offset + last.nbytes) % self.half_bytes > KEPT_BYTES:
            half = last.offset // self.half_bytes
            self._map.madvise(mmap.MADV_REMOVE, half * self.half_bytes + KEPT_BYTES, self.half_bytes - KEPT_BYTES)

    def close(self) -> None:
        """Let the memory go; views that are still held keep their pages."""
        os.close(self.fd)
