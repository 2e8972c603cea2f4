"""A small scripted server for tests of the load generator: it answers by what each request's body says."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(slots=True)
class Script:
    """What the server saw, in order."""

    ids: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@contextlib.contextmanager
def serving(close_after: int | None = None, ages_ms: float = 0.0) -> Iterator[Script]:
    """Serve on a free loopback port until the block ends.

    A body is ``STATUS`` or ``STATUS MS`` (answer after that time) and, after a bar, what to answer with.

    Args:
        close_after: Stop listening and drop all connections on this request, counted from 1.
        ages_ms: Each answer that takes time takes so much longer than the one before.
    """
    script, ready, stop = Script(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(script, ready, stop, close_after, ages_ms)))
    thread.start()
    assert ready.wait(10)
    try:
        yield script
    finally:
        stop.set()
        thread.join(10)


async def _serve(
    script: Script, ready: threading.Event, stop: threading.Event, close_after: int | None, ages_ms: float
) -> None:
    loop = asyncio.get_running_loop()
    closing = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        script.ids.append(request.headers["x-request-id"])
        script.headers.append({name.lower(): value for name, value in request.headers.items()})
        if len(script.ids) == close_after:
            closing.set()
        command, _, text = (await request.text()).partition("|")
        status, _, delay_ms = command.partition(" ")
        if delay_ms:
            gone = loop.create_future()
            loop.call_later((float(delay_ms) + ages_ms * len(script.ids)) / 1000, gone.set_result, None)
            await gone
        return web.Response(status=int(status), text=text, headers={"x-loadslice-engine": "cpu0"})

    async def ready_answer(_: web.Request) -> web.Response:
        return web.Response()

    async def pipelines_answer(_: web.Request) -> web.Response:
        return web.json_response({"pipelines": [{"name": "p"}]})

    application = web.Application()
    application.router.add_post("/work", answer)
    application.router.add_post("/v1/pipelines/p", answer)
    application.router.add_get("/v2/health/ready", ready_answer)
    application.router.add_get("/v1/pipelines", pipelines_answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    script.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    ready.set()
    waiting = loop.create_task(asyncio.to_thread(stop.wait))
    await asyncio.wait([waiting, loop.create_task(closing.wait())], return_when=asyncio.FIRST_COMPLETED)
    await runner.cleanup()
    await waiting
