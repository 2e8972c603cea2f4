"""One sample of what the machine is doing: processor, memory, disks, and NVIDIA GPUs where `pynvml` is installed."""

import importlib
from typing import Any

import psutil


class Sampler:
    """Samples rates since the sample before; make it where sampling starts.

    Args:
        now_ns: Wall-clock time.
    """

    def __init__(self, now_ns: int) -> None:
        self._before_ns = now_ns
        self._busy_ms = _disk_busy_ms()
        self._nvml = _nvml()
        psutil.cpu_percent(None)

    def sample(self, now_ns: int) -> dict[str, float | None]:
        """Take one sample; what cannot be measured here is ``None``.

        Returns:
            ``time`` (seconds since 1970), ``cpu_pct``, ``mem_pct``, ``io_pct`` (busiest disk) and, with GPUs,
            ``gpu_pct`` (mean), ``gpu_mem_pct`` (fullest), ``gpu_w`` (sum).
        """
        busy_ms = _disk_busy_ms()
        elapsed_ms = max(1.0, (now_ns - self._before_ns) / 1e6)
        shares = [
            min(100.0, max(0.0, 100.0 * (busy - self._busy_ms[disk]) / elapsed_ms))
            for disk, busy in busy_ms.items()
            if disk in self._busy_ms
        ]
        self._before_ns, self._busy_ms = now_ns, busy_ms
        return {
            "time": now_ns / 1e9,
            "cpu_pct": psutil.cpu_percent(None),
            "mem_pct": psutil.virtual_memory().percent,
            "io_pct": max(shares, default=None),
            **self._gpus(),
        }

    def _gpus(self) -> dict[str, float | None]:
        nvml = self._nvml
        if nvml is None:
            return {}
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            memory = [nvml.nvmlDeviceGetMemoryInfo(handle) for handle in handles]
            busy = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
            watts = [nvml.nvmlDeviceGetPowerUsage(handle) / 1000 for handle in handles]
        except nvml.NVMLError:
            # A GPU that fell off the bus, or a part (MIG) that does not tell: unknown for this sample.
            return {"gpu_pct": None, "gpu_mem_pct": None, "gpu_w": None}
        if not handles:
            return {}
        return {
            "gpu_pct": sum(busy) / len(busy),
            "gpu_mem_pct": max(100.0 * part.used / part.total for part in memory),
            "gpu_w": sum(watts),
        }


def _disk_busy_ms() -> dict[str, int]:
    """Busy time of each disk since boot; empty where the system does not count it."""
    disks = psutil.disk_io_counters(perdisk=True) or {}
    return {name: disk.busy_time for name, disk in disks.items() if hasattr(disk, "busy_time")}


def _nvml() -> Any:
    """The NVML module, ready, or ``None``."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml
