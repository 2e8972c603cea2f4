"""Layer 4: the same load for a while. Does latency drift, does memory grow, does anybody starve?

A slope counts only when its whole 95 % interval lies above 0 and above what the file allows; how small a slope this
soak could have shown at all is told, for a short soak shows only large ones. A latency that rises is a decay of the
placement only if a fresh server of the same does not take as long on the same minutes (`layers.aged`); else the
machine slowed down. Memory must also go on growing in the second half, for a server fills its pools at first. A soak
below `LEAST_S` tells neither.
"""

import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from loadslice.evaluate.closed_loop import drive
from loadslice.evaluate.layers import aged
from loadslice.evaluate.layers.subject import Subject
from loadslice.evaluate.slope import Slope, robust
from loadslice.evaluate.wire import Heard, Letter
from loadslice.spec.evaluation import Soak as Wanted

SAMPLE_S = 0.2
LOW_EVERY = 5
"""Every fifth request is of the class `sheddable`, to see whether it starves."""
STARVED_S = 2.0
STARVED_RATIO = 40.0
"""A wait this many times the median, and longer than `STARVED_S`, is starvation."""
WARM_SHARE = 0.15
LEAST_S = 15.0
"""A shorter soak is mostly the server's first seconds."""
CHANGE_MIN = 0.1
"""Of the level, over the whole soak: less is no decay that a soak of this length can show."""
GROWTH_MIN = 0.02
"""The same of memory."""
LEFT_S = 5.0
"""How long what is still inside may take to end once every client has its answer."""
OTHERS_MAX = 0.1
"""Other programs that use more of the processors than this are told beside the figures."""


@dataclass(slots=True)
class Soak:
    """What a while under load did."""

    clients: int = 0
    for_s: float = 0.0
    heards: list[Heard] = field(default_factory=list)
    latency: Slope | None = None
    """Milliseconds per hour."""
    latency_ms: float | None = None
    """Median."""
    memory: Slope | None = None
    """Bytes per hour."""
    memory_bytes: float | None = None
    """Median."""
    starved: list[str] = field(default_factory=list)
    left_inside: float | None = None
    """Requests the server still holds when all are answered."""
    failed: int = 0
    others_share: float | None = None
    """Of all processors' time that other programs used meanwhile; ``None``: not known of a server elsewhere."""
    rises: bool | None = None
    """Latency, whoever is to blame; ``None``: too short to tell."""
    aged_ratios: list[float] | None = None
    """Latency over a fresh server's, round by round; ``None``: not asked, or there could be none."""
    decays: bool | None = None
    """It rises, and a fresh server is not as slow; ``None``: too short, or nobody could be asked."""
    grows: bool | None = None


def measure(subject: Subject, wanted: Wanted, *, clients: int) -> Soak:
    """Keep ``clients`` requests open for a while."""
    found = Soak(clients=clients)
    letters = list(itertools.islice(subject.numbered("soak"), LOW_EVERY * len(subject.letters)))
    letters = [_lowered(letter) if number % LOW_EVERY == 0 else letter for number, letter in enumerate(letters)]
    memory: list[tuple[float, float]] = []
    stop = threading.Event()

    def sample() -> None:
        while subject.memory_bytes is not None and not stop.wait(SAMPLE_S):
            memory.append((time.perf_counter(), float(subject.memory_bytes())))

    sampler = threading.Thread(target=sample, name="memory")
    began, used_s = time.perf_counter(), _busy_s(subject)
    sampler.start()
    try:
        found.heards = drive(subject.line, letters, clients, for_s=wanted.for_s)
    finally:
        stop.set()
        sampler.join()
    found.for_s = time.perf_counter() - began
    if used_s is not None and (now_s := _busy_s(subject)) is not None:
        found.others_share = max(0.0, now_s - used_s) / (found.for_s * (psutil.cpu_count() or 1))
    _judge(found, memory, wanted)
    if found.rises and subject.alive():
        found.aged_ratios = aged.against_fresh(subject, letters, clients)
        found.decays = None if found.aged_ratios is None else aged.is_older(found.aged_ratios)
    found.left_inside = _left(subject)
    return found


def _left(subject: Subject) -> float | None:
    """Requests that are inside although nobody waits for one."""
    waiting, until = threading.Event(), time.monotonic() + LEFT_S
    with subject.line() as line:
        while True:
            left = gauge(line.get("/metrics").body, "loadslice_requests_inside")
            if not left or time.monotonic() > until:
                return left
            waiting.wait(SAMPLE_S)


def _busy_s(subject: Subject) -> float | None:
    """Processor time of all programs but the server and ourselves."""
    if subject.cpu_s is None or not subject.alive():
        return None
    times = psutil.cpu_times()
    busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
    return float(busy_s) - subject.cpu_s() - time.process_time()


def _lowered(letter: Letter) -> Letter:
    return Letter(letter.input, letter.body, {**letter.headers, "x-loadslice-priority": "sheddable"})


def _judge(found: Soak, memory: list[tuple[float, float]], wanted: Wanted) -> None:
    done = [heard for heard in found.heards if heard.completed]
    found.failed = sum(heard.error is not None or heard.status not in (200, 429, 503, 504) for heard in found.heards)
    done = done[int(WARM_SHARE * len(done)) :]
    long_enough = found.for_s >= LEAST_S
    times_ms = np.array([heard.whole_ms for heard in done], np.float64)
    if times_ms.size:
        found.latency_ms = float(np.median(times_ms))
        found.latency = _per_hour(robust(np.array([heard.done_s for heard in done]), times_ms))
        # Beside a slope that is surely there, a change that anybody would notice in the time that was watched.
        least = max(wanted.drift_pct_per_hour / 100, CHANGE_MIN * 3600 / max(found.for_s, 1e-9)) * found.latency_ms
        found.rises = surely_above(found.latency, least) if long_enough else None
        found.decays = found.rises  # until a fresh server was asked
    kept = memory[int(WARM_SHARE * len(memory)) :]
    if kept:
        at_s, values = (np.array(column) for column in zip(*kept, strict=True))
        found.memory_bytes = float(np.median(values))
        found.memory = _per_hour(robust(at_s, values))
        least = max(wanted.growth_pct_per_hour / 100, GROWTH_MIN * 3600 / max(found.for_s, 1e-9)) * found.memory_bytes
        half = len(kept) // 2
        later = _per_hour(robust(at_s[half:], values[half:]))
        found.grows = (surely_above(found.memory, least) and surely_above(later, least / 2)) if long_enough else None
    found.starved = _starved(found)


def _per_hour(slope: Slope | None) -> Slope | None:
    return None if slope is None else Slope(*(3600 * value for value in slope))


def surely_above(slope: Slope | None, limit: float) -> bool | None:
    """The whole interval is above the limit; ``None`` without a slope."""
    return None if slope is None else slope.low > max(limit, 0.0)


def _starved(found: Soak) -> list[str]:
    """Requests that waited out of all proportion."""
    if not found.latency_ms:
        return []
    limit_ms = max(STARVED_RATIO * found.latency_ms, 1000 * STARVED_S)
    return [
        f"{heard.id or heard.input} waited {heard.whole_ms:.0f} ms"
        for heard in found.heards
        if heard.whole_ms is not None and heard.whole_ms > limit_ms
    ] + [f"{heard.id or heard.input} was never answered" for heard in found.heards if heard.error == "hung"]


def gauge(body: bytes, name: str) -> float | None:
    """One metric without labels out of a Prometheus page."""
    for line in body.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            try:
                return float(value)
            except ValueError:
                return None
    return None


def figures(found: Soak) -> dict[str, Any]:
    """For the document. ``detectable``: the least slope that this soak could have shown."""
    return {
        "clients": found.clients,
        "for_s": found.for_s,
        "requests": len(found.heards),
        "failed": found.failed,
        "latency_ms_p50": found.latency_ms,
        **_slope("latency", "ms_per_hour", found.latency, found.latency_ms),
        "others_share": found.others_share,
        "rises": found.rises,
        "latency_over_fresh": found.aged_ratios,
        "decays": found.decays,
        "memory_bytes_p50": found.memory_bytes,
        **_slope("memory", "bytes_per_hour", found.memory, found.memory_bytes),
        "grows": found.grows,
        "starved": len(found.starved),
        "left_inside": found.left_inside,
    }


def _slope(name: str, unit: str, slope: Slope | None, level: float | None) -> dict[str, Any]:
    if slope is None:
        return {f"{name}_drift_{unit}": None, f"{name}_drift_95": None, f"{name}_detectable_pct_per_hour": None}
    half = (slope.high - slope.low) / 2
    return {
        f"{name}_drift_{unit}": slope.slope,
        f"{name}_drift_95": [slope.low, slope.high],
        f"{name}_detectable_pct_per_hour": 100 * half / level if level else None,
    }


def passed(found: Soak) -> bool | None:
    """No decay, no growth, nobody starved, nothing left inside."""
    if found.decays or found.grows or found.starved or found.failed or found.left_inside:
        return False
    return None if found.decays is None or not found.heards else True
