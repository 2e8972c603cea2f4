"""Random problems for tests and benchmarks: synthetic, with the shape of the real ones.

Device 1 is an accelerator that is four times faster on most operators, slower on some, and lacks others; device 0, the
host, runs everything.
"""

import numpy as np

from loadslice.plan.placement.problem import FOREVER_NS, HOST, Int64, Link, Problem, Tensor


def problem(ops: int, rng: np.random.Generator, *, devices: int = 2, unsupported_share: float = 0.15) -> Problem:
    """A random graph: each operator reads one or two of the four before it, the first the model's input."""
    readers: list[set[int]] = [set() for _ in range(ops)]
    for op in range(1, ops):
        for maker in {int(each) for each in rng.integers(max(0, op - 4), op, int(rng.integers(1, 3)))}:
            readers[maker].add(op)
    tensors = [Tensor(HOST, (0,), int(rng.integers(10_000, 60_000)))]
    for op, found in enumerate(readers):
        tensors.append(Tensor(op, tuple(sorted(found)) or (HOST,), int(rng.integers(10_000, 60_000))))
    return Problem(_times(ops, devices, rng, unsupported_share), tuple(tensors), _links(devices, rng))


def chain(ops: int, rng: np.random.Generator, *, devices: int = 2, unsupported_share: float = 0.15) -> Problem:
    """Each operator reads the one before it; a mask from the host goes to every third, a second made by the first."""
    tensors = [Tensor(HOST, (0,), 20_000), Tensor(HOST, tuple(range(0, ops, 3)), 500)]
    for op in range(ops):
        after = (op + 1,) if op + 1 < ops else (HOST,)
        tensors.append(Tensor(op, after, int(rng.integers(10_000, 60_000))))
    if ops > 3:
        tensors.append(Tensor(0, tuple(range(2, ops, 2)), 400))
    return Problem(_times(ops, devices, rng, unsupported_share), tuple(tensors), _links(devices, rng))


def _times(ops: int, devices: int, rng: np.random.Generator, unsupported_share: float) -> Int64:
    times = rng.integers(5_000, 200_000, (ops, devices))
    for device in range(1, devices):
        fast = rng.random(ops) < 0.6
        times[:, device] = np.where(fast, times[:, 0] // 4 + 1, times[:, 0] * 3)
        times[rng.random(ops) < unsupported_share, device] = FOREVER_NS
    return times.astype(np.int64)


def _links(devices: int, rng: np.random.Generator) -> tuple[Link, ...]:
    return (Link(), *(Link(int(rng.integers(2_000, 12_000)), 1e9) for _ in range(devices - 1)))
