"""What the recorder costs a request: the same ASGI application with and without it, interleaved, medians."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from loadslice.record import Recorder, note, stage

ROUNDS = 60
REQUESTS = 500
HEADERS = [
    (b"host", b"localhost"), (b"user-agent", b"bench"), (b"accept", b"*/*"), (b"content-type", b"image/png"),
    (b"content-length", b"1024"), (b"x-loadslice-priority", b"critical"), (b"x-loadslice-tenant", b"a"),
]  # fmt: skip


async def plain_app(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer at once."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


async def staged_app(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, through three stages."""
    with stage("decode"):
        pass
    with stage("model"):
        pass
    with stage("post"):
        note(items=3)
    await plain_app(scope, receive, send)


async def _nothing(*_: Any) -> dict[str, str]:
    return {"type": "http.request"}


async def _round_s(app: Any) -> float:
    begin = time.perf_counter()
    for _ in range(REQUESTS):
        await app({"type": "http", "headers": HEADERS}, _nothing, _nothing)
    return (time.perf_counter() - begin) / REQUESTS


async def _measure(recorded: Any) -> tuple[list[float], list[float]]:
    without, with_ = [], []
    for _ in range(ROUNDS):
        without.append(await _round_s(plain_app))
        with_.append(await _round_s(recorded))
    return without, with_


def run() -> dict[str, float | int]:
    """Measure the overhead while the writer thread writes parts.

    Returns:
        Microseconds per request: median and 95th percentile over rounds of the difference, and what was dropped.
    """
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder) / "recording", part_rows=5_000, utilisation_s=1.0)
        without, with_ = asyncio.run(_measure(recorder.asgi(staged_app)))
        recorder.close()
        counters = recorder.counters()
    extra_us = sorted(1e6 * (b - a) for a, b in zip(without, with_, strict=True))
    return {
        "requests": counters["requests"],
        "plain_us_median": 1e6 * statistics.median(without),
        "recorded_us_median": 1e6 * statistics.median(with_),
        "overhead_us_median": statistics.median(extra_us),
        "overhead_us_p95": extra_us[int(0.95 * len(extra_us))],
        "dropped": counters["dropped"],
        "parts": counters["parts"],
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:>20} {value:.4g}")
