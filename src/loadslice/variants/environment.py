"""What figures depend on beside the files, and what this processor has for low precision."""

import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from loadslice.backends import probe
from loadslice.spec.variant import CpuOffer, EnvironmentLock

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "openvino", "nncf", "onnx", "onnxslim", "onnx-ir", "numpy", "tensorrt")

# Best first: the first that is there is what a runtime will use.
_INT8 = ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "asimddp")
_BF16 = ("amx_bf16", "avx512_bf16", "svebf16", "bf16")
_FP16 = ("amx_fp16", "avx512_fp16", "asimdhp")


def lock() -> EnvironmentLock:
    """Describe this machine and what is installed."""
    machine = probe.local(measure=False)
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return EnvironmentLock(
        cpu=machine.cpu,
        architecture=machine.architecture,
        cores_usable=machine.cores_usable,
        isa=machine.isa,
        numa_nodes=machine.numa_nodes,
        memory_bytes=min(machine.memory_bytes, machine.memory_limit_bytes or machine.memory_bytes),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages=versions,
        devices={runtime.name: runtime.devices for runtime in machine.runtimes},
        driver=_first_line(Path("/proc/driver/nvidia/version")),
        cpu_governor=_first_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        cpu_mhz_max=_mhz(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")),
    )


def cpu_offer(environment: EnvironmentLock) -> CpuOffer:
    """Low-precision instructions of this processor; see `CpuOffer`."""
    there = environment.isa or []
    return CpuOffer(
        int8=_first_of(_INT8, there),
        bf16=_first_of(_BF16, there),
        fp16=_first_of(_FP16, there),
        numa_nodes=environment.numa_nodes,
        cores_usable=environment.cores_usable,
    )


def _first_of(wanted: Sequence[str], there: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in there), None)


def _first_line(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def _mhz(file: Path) -> float | None:
    text = _first_line(file)
    return int(text) / 1000 if text is not None and text.isdigit() else None
