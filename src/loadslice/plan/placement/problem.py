"""An assignment problem and what an assignment costs; every algorithm of this package is judged by `loads_ns`.

The machine is a star: the host's memory in the middle, a link to each device. A tensor that another device reads goes
down from its maker's device once and up to each reading device once, however many operators read it there. The model's
inputs come from the host, its outputs go back to it. A device that is the host has a link that costs nothing.

One request at a time takes the sum of all devices' loads (nothing overlaps); requests in a pipeline are paced by the
largest load. Times are integer nanoseconds, so that equal means equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

HOST = -1
"""Maker of the model's inputs, reader of its outputs."""

FOREVER_NS = 2**44
"""Where a device cannot run an operator, or a tensor cannot travel: five hours, far above any real run."""


@dataclass(frozen=True, slots=True)
class Link:
    """Between one device and the host's memory."""

    sync_ns: int = 0
    """Paid for every transfer, whatever its size."""
    bytes_per_s: float = float("inf")

    @property
    def free(self) -> bool:
        """It is the host's own: nothing moves."""
        return self.sync_ns == 0 and self.bytes_per_s == float("inf")

    def transfer_ns(self, nbytes: int | None) -> int:
        """Time of one transfer; a tensor of unknown size (``None``) cannot be planned to travel.

        Returns:
            Nanoseconds; `FOREVER_NS` for ``None`` where anything moves.
        """
        if self.free:
            return 0
        return FOREVER_NS if nbytes is None else self.sync_ns + round(nbytes / self.bytes_per_s * 1e9)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value that operators hand on."""

    maker: int
    """Operator, or `HOST`."""
    readers: tuple[int, ...]
    """Operators after the maker, and `HOST` for an output of the model; no repeats."""
    nbytes: int | None
    """``None``: unknown, or not a tensor; it must stay on its maker's device."""


@dataclass(frozen=True)
class Problem:
    """Operators in an order they can run in, and the tensors between them."""

    op_ns: Int64
    """``[operators, devices]``; `FOREVER_NS` where the device cannot."""
    tensors: tuple[Tensor, ...]
    links: tuple[Link, ...]
    """One per device."""

    def __post_init__(self) -> None:
        assert self.op_ns.ndim == 2
        assert self.op_ns.shape[1] == len(self.links)
        assert (self.op_ns >= 0).all()
        assert (self.op_ns <= FOREVER_NS).all()
        for tensor in self.tensors:
            assert all(reader == HOST or reader > tensor.maker for reader in tensor.readers)

    @property
    def ops(self) -> int:
        """Number of operators."""
        return int(self.op_ns.shape[0])

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.links)

    @cached_property
    def makers(self) -> Int64:
        """Maker of every tensor."""
        return np.array([tensor.maker for tensor in self.tensors], np.int64)

    @cached_property
    def edges(self) -> tuple[Int64, Int64]:
        """Tensor and reading operator of every edge between operators, and from the host to an operator."""
        pairs = [(t, r) for t, tensor in enumerate(self.tensors) for r in tensor.readers if r != HOST]
        flat = np.array(pairs, np.int64).reshape(-1, 2)
        return flat[:, 0].copy(), flat[:, 1].copy()

    @cached_property
    def to_host(self) -> npt.NDArray[np.bool_]:
        """Tensors that the host reads."""
        return np.array([HOST in tensor.readers for tensor in self.tensors], np.bool_)

    @cached_property
    def move_ns(self) -> Int64:
        """``[tensors, devices]``: one transfer of the tensor over the device's link, either way."""
        sizes = np.array([-1 if tensor.nbytes is None else tensor.nbytes for tensor in self.tensors], np.float64)
        columns = [link.sync_ns + np.rint(sizes / link.bytes_per_s * 1e9) for link in self.links]
        moves = np.where(sizes[:, None] < 0, FOREVER_NS, np.stack(columns, axis=1))
        moves[:, [link.free for link in self.links]] = 0
        found: Int64 = moves.astype(np.int64)
        return found


@dataclass(frozen=True, slots=True)
class Placement:
    """An answer: a device for every operator, and how good it is known to be."""

    device: Int64
    """``[operators]``."""
    value_ns: int
    """The objective at this assignment."""
    bound_ns: int
    """No assignment is better than this; equal to ``value_ns`` when it is optimal."""
    method: str

    @property
    def gap(self) -> float:
        """How far above the best this can be at most, as a share of the bound; 0 is proven optimal."""
        return (self.value_ns - self.bound_ns) / self.bound_ns if self.bound_ns > 0 else float(self.value_ns > 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Where an assignment's time goes."""

    compute_ns: Int64
    """``[devices]``."""
    move_ns: Int64
    """``[devices]``: transfers over its link, synchronisation included."""
    sync_ns: int
    """The part of all transfers that does not depend on their size."""
    transfers: int
    nbytes: int
    """Moved by all transfers."""

    @property
    def latency_ns(self) -> int:
        """One request alone."""
        return int(self.compute_ns.sum() + self.move_ns.sum())

    @property
    def bottleneck_ns(self) -> int:
        """Pace of requests in a pipeline: the busiest device's load."""
        return int((self.compute_ns + self.move_ns).max())

    @property
    def possible(self) -> bool:
        """Every operator runs where it was put, and every tensor that must travel can."""
        return self.latency_ns < FOREVER_NS


def crossings(problem: Problem, device: Int64) -> npt.NDArray[np.bool_]:
    """``[tensors, devices]``: the tensor goes over that device's link, up or down."""
    there = np.zeros((len(problem.tensors), problem.devices), np.bool_)
    edge_tensor, edge_reader = problem.edges
    there[edge_tensor, device[edge_reader]] = True
    made = problem.makers >= 0
    rows, homes = np.flatnonzero(made), device[problem.makers[made]]
    there[rows, homes] = False
    there[rows, homes] = there[rows].any(axis=1) | problem.to_host[rows]
    return there


def cost(problem: Problem, device: Int64) -> Cost:
    """What an assignment costs, in parts.

    Args:
        problem: What is placed.
        device: ``[operators]``, a device of the problem each.
    """
    compute = np.zeros(problem.devices, np.int64)
    np.add.at(compute, device, problem.op_ns[np.arange(problem.ops), device])
    crossing = crossings(problem, device)
    moves = crossing.sum(axis=0)
    sizes = np.array([tensor.nbytes or 0 for tensor in problem.tensors], np.int64)
    priced = np.array([not link.free for link in problem.links])
    return Cost(
        compute_ns=compute,
        move_ns=(crossing * problem.move_ns).sum(axis=0),
        sync_ns=int(sum(int(count) * link.sync_ns for count, link in zip(moves, problem.links, strict=True))),
        transfers=int(moves[priced].sum()),
        nbytes=int((crossing[:, priced] * sizes[:, None]).sum()),
    )


def loads_ns(problem: Problem, device: Int64) -> Int64:
    """Time that each device and its link are busy for one request, ``[devices]``."""
    compute = np.zeros(problem.devices, np.int64)
    np.add.at(compute, device, problem.op_ns[np.arange(problem.ops), device])
    moved: Int64 = (crossings(problem, device) * problem.move_ns).sum(axis=0)
    return compute + moved


def latency_ns(problem: Problem, device: Int64) -> int:
    """Time of one request alone: all loads, one after another."""
    return int(loads_ns(problem, device).sum())


def bottleneck_ns(problem: Problem, device: Int64) -> int:
    """Time between requests in a full pipeline: the largest load."""
    return int(loads_ns(problem, device).max())


def stuck(problem: Problem) -> int | None:
    """A tensor that no assignment can handle; ``None``: there is an assignment.

    Operators joined by tensors that cannot travel must share a device that can run them all.
    """
    group = list(range(problem.ops))

    def root(op: int) -> int:
        while group[op] != op:
            group[op] = group[group[op]]
            op = group[op]
        return op

    can = problem.op_ns < FOREVER_NS
    for t, tensor in enumerate(problem.tensors):
        immovable = problem.move_ns[t] >= FOREVER_NS
        if not immovable.any():
            continue
        ops = [op for op in (tensor.maker, *tensor.readers) if op != HOST]
        for op in ops[1:]:
            first, other = root(ops[0]), root(op)
            if first != other:
                can[first] &= can[other]
                group[other] = first
        if HOST in (tensor.maker, *tensor.readers):
            can[root(ops[0])] &= ~immovable
        if not can[root(ops[0])].any():
            return t
    return None


def contract(problem: Problem, groups: Int64) -> Problem:
    """The problem whose operators are groups of operators that stay together.

    Args:
        problem: What is placed.
        groups: Group of each operator, from 0, none empty; no operator reads from a later group.
    """
    op_ns = np.zeros((int(groups.max()) + 1, problem.devices), np.int64)
    np.add.at(op_ns, groups, problem.op_ns)
    tensors = []
    for tensor in problem.tensors:
        home = HOST if tensor.maker == HOST else int(groups[tensor.maker])
        readers = {HOST if reader == HOST else int(groups[reader]) for reader in tensor.readers}
        inside = home != HOST and home in readers
        readers -= {home} if inside else set()
        if readers:
            tensors.append(Tensor(home, tuple(sorted(readers)), tensor.nbytes))
    return Problem(np.minimum(op_ns, FOREVER_NS), tuple(tensors), problem.links)


def runs(problem: Problem, device: Int64) -> list[tuple[int, list[int]]]:
    """Slices: the operators in an order with few changes of device, cut where the device changes.

    Each slice takes every operator of its device that is ready, so it never ends early; for two devices no order has
    fewer slices (each start is tried), for more it is a good one.

    Returns:
        Device and operators of each slice; a slice needs only what slices before it made.
    """
    waits = [0] * problem.ops
    after: list[list[int]] = [[] for _ in range(problem.ops)]
    for maker, reader in sorted({(t.maker, r) for t in problem.tensors for r in t.readers if HOST not in (t.maker, r)}):
        waits[reader] += 1
        after[maker].append(reader)
    where = [int(each) for each in device]
    found = [_runs_from(start, waits.copy(), after, where, problem.devices) for start in range(problem.devices)]
    return min(found, key=len)


def _runs_from(
    start: int, waits: list[int], after: Sequence[Sequence[int]], device: Sequence[int], devices: int
) -> list[tuple[int, list[int]]]:
    ready: list[list[int]] = [[] for _ in range(devices)]
    for op, missing in enumerate(waits):
        if not missing:
            ready[device[op]].append(op)
    found = []
    current = start
    while any(ready):
        taken = []
        while ready[current]:
            op = ready[current].pop()
            taken.append(op)
            for reader in after[op]:
                waits[reader] -= 1
                if not waits[reader]:
                    ready[device[reader]].append(reader)
        if taken:
            found.append((current, sorted(taken)))
        # The device with the most to do next; with two devices there is only the other one.
        current = max(range(devices), key=lambda each: (len(ready[each]), -each))
    return found
