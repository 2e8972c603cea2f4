"""Shared memory of one slot: batches on their way in one section, outputs on their way back in the others.

Outputs are not copied out: whoever has them has a view of the section they came in, and that section is written to
again when nobody has one any more. Pages cost memory once they have been written to. The size is sealed: a process that
shrank it would kill whoever reads it next.
"""

import fcntl
import math
import mmap
import os
import sys
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

LENT_BYTES_MAX = 8 * 1024 * 1024
"""Outputs larger than this are copied out, so that what is lent holds little memory."""

INPUTS = 0
"""The section of batches."""

OUTPUTS = range(1, 5)
"""Sections of outputs: one to write to, the others lent."""


class TooLargeError(Exception):
    """Tensors do not fit."""


class Arena:
    """All sections of one slot.

    Args:
        fd: Of the memory.
        section_bytes: Size of each.
    """

    def __init__(self, fd: int, section_bytes: int) -> None:
        self.fd = fd
        self.section_bytes = section_bytes
        self._map = mmap.mmap(fd, section_bytes * (1 + len(OUTPUTS)))
        self._address: int = np.frombuffer(self._map, np.uint8, 1).__array_interface__["data"][0]
        # Every view of a section refers to its one array here, which is how it is known that there is a view.
        self._sections = [
            np.frombuffer(self._map, np.uint8, section_bytes, section * section_bytes) for section in (INPUTS, *OUTPUTS)
        ]
        self._references = sys.getrefcount(self._sections[INPUTS])

    @classmethod
    def create(cls, section_bytes: int) -> Self:
        """New memory, without a name and of fixed size."""
        fd = os.memfd_create("loadslice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, section_bytes * (1 + len(OUTPUTS)))
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            return cls(fd, section_bytes)
        except BaseException:
            os.close(fd)
            raise

    def free(self) -> list[int]:
        """Sections of outputs that nobody has a view of, the first of them the one to use."""
        return [one for one in OUTPUTS if sys.getrefcount(self._sections[one]) == self._references]

    def put(self, tensors: Mapping[str, Tensor], section: int) -> list[Placed]:
        """Copy tensors into a section, over whatever was there.

        Raises:
            TooLargeError: They do not fit.
        """
        placed = []
        at, end = section * self.section_bytes, (section + 1) * self.section_bytes
        for name, tensor in tensors.items():
            raw = None
            if tensor.dtype.kind in "OUS":
                raw = msgspec.msgpack.encode(tensor.ravel().tolist())
            nbytes = tensor.nbytes if raw is None else len(raw)
            if at + nbytes > end:
                raise TooLargeError(
                    f"tensor '{name}' makes the batch larger than the {self.section_bytes / 1e6:.0f} MB that go "
                    "through shared memory at once (engines.*.hand_over_mb)."
                )
            if raw is None:
                if not self._is_at(tensor, at):
                    np.ndarray(tensor.shape, tensor.dtype, self._map, at)[...] = tensor
            else:
                self._map[at : at + nbytes] = raw
            placed.append(Placed(name, "|O" if raw is not None else tensor.dtype.str, list(tensor.shape), at, nbytes))
            at += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return placed

    def room(
        self, infos: Sequence[TensorInfo], shapes: Sequence[tuple[int, ...]], section: int = INPUTS
    ) -> dict[str, Tensor] | None:
        """Where `put` would copy tensors of these shapes to, so that nothing has to be copied.

        Returns:
            By name; ``None``: they do not fit, or are text.
        """
        found, at, end = {}, section * self.section_bytes, (section + 1) * self.section_bytes
        for info, shape in zip(infos, shapes, strict=True):
            nbytes = math.prod(shape) * info.dtype.itemsize
            if at + nbytes > end or info.dtype.kind in "OUS":
                return None
            found[info.name] = np.ndarray(shape, info.dtype, self._map, at)
            at += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return found

    def _is_at(self, tensor: Tensor, offset: int) -> bool:
        address: int = tensor.__array_interface__["data"][0]
        return address == self._address + offset and tensor.flags.c_contiguous

    def is_input(self, tensor: Tensor) -> bool:
        """Whether a tensor lies where batches do."""
        address: int = tensor.__array_interface__["data"][0]
        return self._address <= address < self._address + self.section_bytes

    def views(self, placed: Sequence[Placed]) -> dict[str, Tensor]:
        """Tensors where they are; good until the section is written again."""
        return {
            one.name: strings(self._map[one.offset : one.offset + one.nbytes], one.shape)
            if one.dtype == "|O"
            else self._view(one)
            for one in placed
        }

    def _view(self, one: Placed) -> Tensor:
        if not one.nbytes:
            return np.empty(one.shape, one.dtype)
        section, start = divmod(one.offset, self.section_bytes)
        return np.ndarray(one.shape, one.dtype, self._sections[section], start)

    def taken(self, placed: Sequence[Placed]) -> dict[str, Tensor]:
        """Outputs for whoever waits for them: views where they are small and another section is free, else copies."""
        tensors = self.views(placed)
        if sum([one.nbytes for one in placed]) > LENT_BYTES_MAX or not self.free():
            tensors = {name: tensor.copy() for name, tensor in tensors.items()}
        return tensors

    def release(self, placed: Sequence[Placed]) -> None:
        """Give pages back that an ordinary batch does not need."""
        last = placed[-1] if placed else None
        if last is not None and (last.offset + last.nbytes) % self.section_bytes > KEPT_BYTES:
            start = last.offset // self.section_bytes * self.section_bytes
            self._map.madvise(mmap.MADV_REMOVE, start + KEPT_BYTES, self.section_bytes - KEPT_BYTES)

    def close(self) -> None:
        """Let the memory go; views that are still held keep their pages."""
        os.close(self.fd)
