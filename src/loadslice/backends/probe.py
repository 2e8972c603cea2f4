"""What this machine is: its processor, its memory, and the devices that each installed runtime finds.

Peak and bandwidth are measured, not looked up: a virtual machine has the processor's name and not its cores, and a
container not its memory. Both runs together stay under two seconds.
"""

import importlib
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil

from loadslice.spec.device import BUSY, Device, Figure, Peak
from loadslice.spec.errors import installing
from loadslice.spec.files import cpu_model
from loadslice.spec.machine import LocalMachine, Runtime

_ISA = """sse4_2 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8
amx_bf16 amx_fp16 asimd asimddp asimdhp i8mm bf16 sve sve2 svei8mm svebf16 sme"""
ISA_OF_INTEREST = frozenset(_ISA.split())
"""Instruction sets that change how fast a model runs, as Linux names them."""

GEMM_SIDE = 1536
"""Three matrices of 9 MB: beyond L2, and short of 0.2 s on a slow core."""

COPY_BYTES = 128 * 1024 * 1024
"""Larger than common last-level caches; smaller where memory is short."""

BUDGET_S = 0.7
"""Longest either measurement keeps repeating; the best repetition counts."""


def local(*, measure: bool = True) -> LocalMachine:
    """Probe this machine.

    Args:
        measure: Also measure peak and bandwidth; keeps every usable core busy for under two seconds.
    """
    cores = usable_cores()
    memory = psutil.virtual_memory()
    limit = memory_limit_bytes()
    cache = last_level_cache_bytes()
    return LocalMachine(
        cpu=cpu_model(),
        architecture=platform.machine(),
        cores_usable=cores,
        cores_physical=psutil.cpu_count(logical=False),
        isa=instruction_sets(),
        memory_bytes=memory.total,
        memory_available_bytes=memory.available,
        memory_limit_bytes=limit,
        numa_nodes=numa_nodes(),
        onchip_bytes=cache,
        runtimes=runtimes(),
        device=_device(cores, min(memory.total, limit or memory.total), cache, measure=measure),
    )


def usable_cores() -> int:
    """Logical processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str] | None:
    """Vector extensions of interest; ``None`` where the operating system does not list them."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return sorted(ISA_OF_INTEREST & set(line.partition(":")[2].split()))
    return None


def numa_nodes(folder: Path = Path("/sys/devices/system/node")) -> int | None:
    """Memory nodes; ``None`` where the operating system does not say."""
    return len(list(folder.glob("node[0-9]*"))) or None


def memory_limit_bytes(file: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    """The memory limit of the container (cgroup v2) this process is in; ``None``: none, or not known."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def free_memory_bytes(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What can be taken before the system, or the limit of the container this process is in, ends somebody for it."""
    free = psutil.virtual_memory().available
    limit = memory_limit_bytes(folder / "memory.max")
    if limit is None:
        return free
    try:
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        said = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):
        return min(free, limit)
    return max(0, min(free, limit - used + int(said.get("inactive_file", 0))))


def last_level_cache_bytes(folder: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Size of the last-level cache, all instances together; ``None`` where the operating system does not say."""
    found: dict[tuple[int, str], int] = {}
    for index in folder.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text(encoding="ascii"))
            size = (index / "size").read_text(encoding="ascii").strip()
            shared = (index / "shared_cpu_list").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if size.endswith("K") and size[:-1].isdigit():
            found[level, shared] = int(size[:-1]) * 1024
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last) or None


# Asked through the module that owns each runtime, the only one allowed to import it.
_ASK: dict[str, Callable[[Any], list[str]]] = {
    "onnxruntime": lambda module: list(module.ort.get_available_providers()),
    "openvino": lambda module: [
        f"{name} ({module.core().get_property(name, 'FULL_DEVICE_NAME')})" for name in module.core().available_devices
    ],
}


def runtimes() -> list[Runtime]:
    """Every runtime we can drive, with the devices it reports or the reason it cannot be used."""
    return [_runtime(name, ask) for name, ask in _ASK.items()]


def _runtime(name: str, ask: Callable[[Any], list[str]]) -> Runtime:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Runtime(name=name, version=None, devices=[], reason=f"not installed: {installing(name)}")
    try:
        devices = ask(importlib.import_module(f"loadslice.backends.{name}"))
    except Exception as error:  # noqa: BLE001 - a broken driver may raise anything; the reason is shown
        text = str(error).strip() or type(error).__name__
        return Runtime(name=name, version=version, devices=[], reason=text.splitlines()[-1][:200])
    return Runtime(name=name, version=version, devices=devices)


BUSY_SHARE = 0.1
"""Of the processors, in others' hands while a figure is measured: beyond it the figure is not the machine's."""


class Others:
    """How much of the processors others take inside the block."""

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        all_s, idle_s, own_s = (after - before for after, before in zip(self._read(), self._before, strict=True))
        self.share = min(1.0, max(0.0, (all_s - idle_s - own_s) / all_s)) if all_s > 0 else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Seconds of all processors, of those the idle ones, and this process's own."""
        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        return sum(times[:8]), times.idle + getattr(times, "iowait", 0.0), own.user + own.system

    @property
    def note(self) -> str | None:
        """What to say beside the figure; ``None``: the machine was quiet enough."""
        if self.share <= BUSY_SHARE:
            return None
        return (
            f"{BUSY}: others took {self.share:.0%} of its processors while this was measured, so it is "
            "what they left. Measure again when it is quiet"
        )


def measured_peak_flop_per_s(budget_s: float = BUDGET_S, side: int = GEMM_SIDE) -> tuple[float, int]:
    """Best rate of a single-precision matrix product on all usable cores.

    Args:
        budget_s: How long to repeat it.
        side: Rows and columns.

    Returns:
        FLOP/s (2 per multiply-accumulate), and the number of repetitions.
    """
    rng = np.random.default_rng(0)
    left, right = (rng.random((side, side), dtype=np.float32) for _ in range(2))
    out = np.empty((side, side), np.float32)
    best, repetitions = _best_s(lambda: np.matmul(left, right, out=out), budget_s)
    return 2 * side**3 / best, repetitions


def measured_bandwidth_bytes_per_s(
    budget_s: float = BUDGET_S, size_bytes: int = COPY_BYTES, threads: int | None = None
) -> tuple[float, int]:
    """Best rate of copying memory on all usable cores, bytes read plus bytes written.

    Args:
        budget_s: How long to repeat it.
        size_bytes: Bytes copied in one repetition.
        threads: Copying threads; default: one per usable core.

    Returns:
        Bytes/s, and the number of repetitions.
    """
    threads = threads or usable_cores()
    size_bytes = max(min(size_bytes, psutil.virtual_memory().available // 8), 1 << 20)
    parts = [np.ones(size_bytes // threads, np.uint8) for _ in range(threads)]
    copies = [np.zeros_like(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        best, repetitions = _best_s(lambda: list(pool.map(np.copyto, copies, parts)), budget_s)
    return 2 * threads * parts[0].nbytes / best, repetitions


def _best_s(run: Callable[[], object], budget_s: float) -> tuple[float, int]:
    """Seconds of the fastest repetition within a budget, the first one not counted, and how many there were."""
    run()
    best, repetitions, end = float("inf"), 0, time.perf_counter() + budget_s
    while repetitions == 0 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        repetitions += 1
    return best, repetitions


def _device(cores: int, memory_bytes: int, cache_bytes: int | None, *, measure: bool) -> Device:
    peaks: dict[str, Peak] = {}
    bandwidth = None
    if measure:
        with Others() as beside:
            flop_per_s, repetitions = measured_peak_flop_per_s()
        source = f"numpy {np.__version__} sgemm {GEMM_SIDE}x{GEMM_SIDE} on {cores} cores, best of {repetitions}"
        peaks["fp32"] = Peak(value=flop_per_s, source=source, basis="measured", dense=True, note=beside.note)
        with Others() as beside_copying:
            bytes_per_s, repetitions = measured_bandwidth_bytes_per_s()
        source = f"numpy {np.__version__} copy of {COPY_BYTES >> 20} MiB on {cores} threads, best of {repetitions}"
        note = "; ".join(filter(None, ("bytes read plus bytes written", beside_copying.note)))
        bandwidth = Figure(value=bytes_per_s, source=source, basis="measured", note=note)
    return Device(
        name="local",
        title=f"{cpu_model()}, {cores} usable cores",
        kind="cpu",
        peak_ops_per_s=peaks,  # type: ignore[arg-type] # the key is one of PeakPrecision
        bandwidth_bytes_per_s=bandwidth,
        memory_bytes=Figure(value=memory_bytes, source="operating system", basis="measured"),
        onchip_bytes=Figure(value=cache_bytes, source="operating system", basis="stated", note="last-level cache")
        if cache_bytes
        else None,
        notes=["fp32 only: int8 and bf16 rates depend on the runtime; `loadslice profile` measures models themselves."],
    )
