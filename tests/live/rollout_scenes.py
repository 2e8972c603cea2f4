"""What live tests of rollouts share: a server with administration, clients that keep asking, and what both say."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from loadslice.app.served import Source
from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.server import Server
from loadslice.spec.rollout import ErrorRule, LatencyRule, OutputRule, RolloutPlan

SECRET = "an-administrators-secret-of-some-length"
HEADERS = {"Authorization": f"Bearer {SECRET}"}
PLAN = RolloutPlan(
    dwell_s=[0.0],
    requests_min=20,
    look_s=0.05,
    errors=ErrorRule(excess_max=0.3),
    latency=LatencyRule(slower_max=1.0, slower_max_ms=20),
    outputs=OutputRule(share=1.0, pairs_min=10, different_max=0.3),
)
"""Quick: steps last no time, and little has to be shown."""

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def server_on(path: Path, state: Path, **options: Any) -> Server:
    source = Source(path, profile=None, dilate=1.0, allow_code=False)
    first = source.first()
    return Server(
        first.pipeline,
        first.folder,
        port=0,
        version=first.version,
        probation=first.probation,
        source=source.now,
        state=state,
        versions=None if source.model is None else source,
        guard=Guard(Access(None, admin_secret=SECRET)),
        **options,
    )


class Traffic:
    """Clients that keep asking."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client
        self.answers: Counter[tuple[int, str | None]] = Counter()
        self._stop = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._run(number)) for number in range(6)]

    async def _run(self, number: int) -> None:
        while not self._stop.is_set():
            async with self._client.post("/v2/models/m/infer", json=BODY) as reply:
                await reply.read()
                self.answers[reply.status, reply.headers.get("x-loadslice-version")] += 1

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)


async def ask(client: aiohttp.ClientSession, verb: str, document: Any = None) -> tuple[int, dict]:
    path = f"/admin/rollout/{verb}" if verb else "/admin/rollout"
    method = client.post if verb else client.get
    body = None if document is None else msgspec.json.encode(document)
    async with method(path, data=body, headers=HEADERS) as reply:
        return reply.status, await reply.json()


async def until_state(client: aiohttp.ClientSession, *states: str) -> dict:
    async with asyncio.timeout(60):
        while True:
            _, answer = await ask(client, "")
            if answer["state"] in states:
                return answer


async def scraped(client: aiohttp.ClientSession) -> dict[str, float]:
    """Metrics of what is served, by name and labels."""
    async with client.get("/metrics") as reply:
        lines = (await reply.text()).splitlines()
    found = {}
    for line in lines:
        if line.startswith(
            ("loadslice_rollout_", "loadslice_generation", "loadslice_version_info", "loadslice_canary_step")
        ):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found
