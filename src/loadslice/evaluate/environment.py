"""Reads the environment: driver, runtime, toolchain, clocks, power and cooling, from where Linux shows them."""

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import psutil

from loadslice.spec.environment import SCHEMA, Environment
from loadslice.spec.files import cpu_model

RUNTIMES = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "openvino", "openvino-genai", "tensorrt", "onnx", "numpy",
    "ray", "torch",
)  # fmt: skip
TOOLCHAINS = ("rknn-toolkit2", "ethos-u-vela", "onnxruntime-qnn", "nncf", "hailo-sdk-client", "tvm")

DRIVERS = {
    "nvidia": "sys/module/nvidia/version",
    "amdgpu": "sys/module/amdgpu/version",
    "amdxdna": "sys/module/amdxdna/version",
    "intel_vpu": "sys/module/intel_vpu/version",
    "rknpu": "sys/module/rknpu/version",
    "hailo_pci": "sys/module/hailo_pci/version",
}
"""Where a loaded driver tells its version, below the root of the file system."""

_CLOCK = ("scaling_governor", "scaling_min_freq", "scaling_max_freq", "energy_performance_preference")


def read(root: Path = Path("/"), *, toolchains: dict[str, str] | None = None) -> Environment:
    """The environment of this machine.

    Args:
        root: Where ``sys`` and ``proc`` stand.
        toolchains: Vendors' compilers in environments of their own, name -> version.
    """
    return Environment(
        processor=cpu_model(),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1),
        system=f"{platform.system()} {platform.release()}",
        memory_bytes=psutil.virtual_memory().total,
        driver=_drivers(root),
        runtime={**_versions(RUNTIMES), "python": platform.python_version()},
        toolchain={**_versions(TOOLCHAINS), **(toolchains or {})},
        clock_policy=_clock_policy(root),
        memory_clock=_memory_clock(root),
        power_policy=_power_policy(root),
        cooling=_cooling(root),
        clock_source=_line(root / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        stamp={"schema": SCHEMA, "loadslice": metadata.version("loadslice")},
    )


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _drivers(root: Path) -> dict[str, str]:
    found = {}
    for name, place in DRIVERS.items():
        if (root / place).parent.is_dir():
            found[name] = _line(root / place) or "loaded, version not told"
    return found


def _clock_policy(root: Path) -> dict[str, str]:
    """Of all processors; where they differ, each value that there is."""
    folder = root / "sys/devices/system/cpu/cpufreq"
    found: dict[str, set[str]] = {}
    for policy in sorted(folder.glob("policy*")):
        for key in _CLOCK:
            if (value := _line(policy / key)) is not None:
                found.setdefault(key, set()).add(value)
    told = {key: " ".join(sorted(values)) for key, values in found.items()}
    for key, place in (("boost", folder / "boost"), ("no_turbo", folder.parent / "intel_pstate/no_turbo")):
        if (value := _line(place)) is not None:
            told[key] = value
    return told


def _memory_clock(root: Path) -> str | None:
    """Of graphics cards that show it as a file; processors do not tell theirs without the rights of the super-user."""
    clocks = []
    for card in sorted((root / "sys/class/drm").glob("card*/device/pp_dpm_mclk")):
        clocks += [line.strip() for line in (_text(card) or "").splitlines() if "*" in line]
    return "; ".join(clocks) or None


def _power_policy(root: Path) -> dict[str, str]:
    found = {}
    if (profile := _line(root / "sys/firmware/acpi/platform_profile")) is not None:
        found["platform_profile"] = profile
    for zone in sorted((root / "sys/class/powercap").glob("*:*")):
        limit = _line(zone / "constraint_0_power_limit_uw")
        if limit is not None:
            found[f"{_line(zone / 'name') or zone.name}_limit_uw"] = limit
    for card in sorted((root / "sys/class/drm").glob("card*/device/power_dpm_force_performance_level")):
        found[card.parts[-3]] = _line(card) or "not told"
    return found


def _cooling(root: Path) -> dict[str, str]:
    """Kinds of cooling devices and how many of each; their step changes by the second and is no setting."""
    kinds: dict[str, int] = {}
    for device in sorted((root / "sys/class/thermal").glob("cooling_device*")):
        kind = _line(device / "type") or "unknown"
        kinds[kind] = kinds.get(kind, 0) + 1
    return {kind: str(count) for kind, count in kinds.items()}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _line(path: Path) -> str | None:
    text = _text(path)
    return text.strip() if text is not None and text.strip() else None
