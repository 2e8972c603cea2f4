"""Temperature, power and memory of this machine, from where they can be read; what cannot is named, never zero."""

import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

NVIDIA_S_MAX = 5.0
MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Sensed:
    """One look; ``None`` where nothing can be read, and then ``absent`` says why."""

    temperature_c: float | None
    power_w: float | None
    memory_bytes: int | None
    power_limit_w: float | None = None
    """Of the accelerators, together."""
    gpu_utilisation: float | None = None
    """Busiest accelerator, 0 to 1."""
    absent: dict[str, str] = field(default_factory=dict)


class Sensors:
    """Reads sensors of the machine it runs on.

    Args:
        pid: A process whose memory is meant, children included; ``None``: the machine's.
        root: Of the file system that shows sensors.
    """

    def __init__(self, pid: int | None = None, root: Path = Path("/")) -> None:
        self._pid = pid
        self._zones = sorted((root / "sys/class/powercap").glob("*:[0-9]"))
        self._nvidia = shutil.which("nvidia-smi")
        self._energy_uj: dict[Path, int] = {}
        self._energy_s = time.monotonic()

    def look(self) -> Sensed:
        """Read all there are; may take some tenths of a second where a driver is asked."""
        absent: dict[str, str] = {}
        cards = self._cards()
        temperature = max([*_temperatures(), *(card["temperature"] for card in cards)], default=None)
        if temperature is None:
            absent["temperature_c"] = "no sensor that the system shows; virtual machines hide them"
        package_w = self._package_w()
        drawn = [card["power"] for card in cards]
        power = None if package_w is None and not drawn else (package_w or 0.0) + sum(drawn)
        if power is None:
            absent["power_w"] = "no energy counter (powercap) and no accelerator's driver that could be read"
        memory = self._memory()
        if memory is None:
            absent["memory_bytes"] = f"process {self._pid} cannot be read"
        limits = [card["limit"] for card in cards]
        return Sensed(
            temperature,
            power,
            memory,
            sum(limits) if limits else None,
            max((card["utilisation"] / 100 for card in cards), default=None),
            absent,
        )

    def _memory(self) -> int | None:
        if self._pid is None:
            return int(psutil.virtual_memory().used)
        try:
            process = psutil.Process(self._pid)
            return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
        except psutil.Error:
            return None

    def _package_w(self) -> float | None:
        """Power of the processor's packages since the last look; the first one knows no power yet."""
        now_s, spent = time.monotonic(), {}
        for zone in self._zones:
            try:
                spent[zone] = int((zone / "energy_uj").read_text(encoding="ascii"))
            except (OSError, ValueError):
                continue  # some systems show it to root alone; the zone is as good as absent then
        passed_s, self._energy_s = now_s - self._energy_s, now_s
        grown = [spent[zone] - before for zone, before in self._energy_uj.items() if zone in spent]
        self._energy_uj = spent
        if not grown or passed_s <= 0 or min(grown) < 0:  # a counter that has wrapped around says nothing
            return None
        return sum(grown) * MICRO / passed_s

    def _cards(self) -> list[dict[str, float]]:
        """Accelerators whose driver answers; the driver's own tool, for a library of ours would have to match it."""
        if self._nvidia is None:
            return []
        fields = ("temperature.gpu", "power.draw", "power.limit", "utilization.gpu")
        try:
            said = subprocess.run(
                [self._nvidia, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                capture_output=True, text=True, timeout=NVIDIA_S_MAX, check=True,
            ).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return []
        return parse_cards(said)


def parse_cards(said: str) -> list[dict[str, float]]:
    """Lines of the driver's tool: temperature, power drawn, its limit, utilisation; incomplete ones are left out."""
    cards = []
    for line in said.splitlines():
        try:
            temperature, power, limit, utilisation = (float(word) for word in line.split(","))
        except ValueError:
            continue
        cards.append({"temperature": temperature, "power": power, "limit": limit, "utilisation": utilisation})
    return cards


def _temperatures() -> list[float]:
    read = getattr(psutil, "sensors_temperatures", None)
    if read is None:
        return []
    return [one.current for group in read().values() for one in group if one.current and one.current > 0]
