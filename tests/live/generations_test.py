"""One generation after another, under load: nothing fails, nothing is lost, and the journals add up."""

import asyncio
import errno
import threading
from collections import Counter
from pathlib import Path

import aiohttp
import msgspec
import pytest

from loadslice.app.cli import run as loadslice
from loadslice.policy import invariants
from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.limits import Limits
from loadslice.serve.server import Server
from loadslice.serve.serving import Serving
from loadslice.spec import journal
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome
from loadslice.spec.pipeline import Batch, Pipeline

pytestmark = pytest.mark.live

RELOADS = 10
SENDERS = 8


def variation(pipeline: Pipeline, number: int) -> Pipeline:
    """The same pipeline with another batch size at its first stage."""
    first, *others = pipeline.stages
    sized = msgspec.structs.replace(first, batch={"ort": Batch(size=1 + number)})
    return msgspec.structs.replace(pipeline, stages=[sized, *others])


async def under_load(server: Server, infer, change) -> Counter[int]:
    """Send from several clients while something changes; statuses of all replies."""
    statuses: Counter[int] = Counter()
    stop = asyncio.Event()

    async def keep_sending(client: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            status, _ = await infer(client, server.generation.pipeline.pipeline)
            statuses[status] += 1

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, connector=connector) as client:
        senders = [asyncio.ensure_future(keep_sending(client)) for _ in range(SENDERS)]
        try:
            await change()
        finally:
            stop.set()
            await asyncio.gather(*senders)
    return statuses


def test_ten_reloads_under_load_fail_and_lose_nothing(pipeline, folder, tmp_path, infer) -> None:
    kept = tmp_path / "journal"
    seen: Counter[int] = Counter()
    served = pipeline("tiny")
    asked: list[int] = []

    def source() -> Serving:
        asked.append(len(asked) + 1)
        return Serving(variation(served, asked[-1]), folder)

    async def run() -> Server:
        server = Server(served, folder, port=0, journal=kept, source=source)
        await server.start()

        async def reload_often() -> None:
            for _ in range(RELOADS):
                await server.reload()
            await server.retired()

        seen.update(await under_load(server, infer, reload_often))
        assert server.generation.number == RELOADS + 1
        invariants.check(server.tables, server.state)
        await server.stop()
        invariants.check_idle(server.state)
        return server

    server = asyncio.run(run())
    assert set(seen) == {200}
    ended = {outcome: count for outcome, count in server.outcomes.items() if count}
    assert ended == {Outcome.COMPLETED: seen[200]}
    folders = [kept, *(kept / f"generation-{number}" for number in range(2, RELOADS + 2))]
    assert sum(journal.load_head(one).requests for one in folders) == seen[200]
    assert [journal.load_head(one).clean for one in folders] == [True] * (RELOADS + 1)
    assert [loadslice(["check", str(one)]) for one in (folders[0], folders[1], folders[-1])] == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pipeline": "other"}, "another name"),
        ({"model": "absent.onnx"}, "no such file"),
        ({"model": "renamed.onnx"}, "'w'"),
        ({"max_requests": 5}, "does not let it be served: too many open files"),
    ],
)
def test_what_cannot_be_served_leaves_the_old_serving_and_says_why(
    pipeline, folder, infer, tmp_path, change, words
) -> None:
    served = pipeline("tiny")
    if (model := change.get("model")) is not None:
        first, *others = served.stages
        bad = msgspec.structs.replace(served, stages=[msgspec.structs.replace(first, model=model), *others])
    else:
        bad = msgspec.structs.replace(served, **change)

    def probation(stages, _step) -> None:
        if "max_requests" in change:
            raise OSError(errno.EMFILE, "Too many open files")
        (info,) = stages[0].stable.inputs
        if info.name != "x":
            raise InputError(f"its input is '{info.name}'")

    async def run() -> None:
        server = Server(served, folder, port=0, source=lambda: Serving(bad, folder, probation=probation))
        await server.start()

        async def reload() -> None:
            with pytest.raises(InputError, match=words):
                await server.reload()

        seen = await under_load(server, infer, reload)
        assert set(seen) <= {200}
        assert server.generation.number == 1
        await server.stop()

    asyncio.run(run())


def test_a_stop_does_not_wait_for_what_is_being_loaded(pipeline, folder) -> None:
    served = pipeline("tiny")
    loading, end = threading.Event(), threading.Event()

    def probation(_stages, _step) -> None:
        loading.set()
        end.wait()

    async def run() -> None:
        server = Server(served, folder, port=0, source=lambda: Serving(served, folder, probation=probation))
        await server.start()
        reload = asyncio.ensure_future(server.reload())
        await asyncio.to_thread(loading.wait)
        await server.stop()
        with pytest.raises(InputError, match="stopping"):
            await reload

    try:
        asyncio.run(asyncio.wait_for(run(), 30))
    finally:
        end.set()


def test_what_hangs_while_it_is_warmed_is_given_up_and_the_old_goes_on_serving(pipeline, folder, infer, gate) -> None:
    good = pipeline("gated")
    hangs = msgspec.structs.replace(good, inputs="stages:rows", max_requests=9)

    async def run() -> tuple[int, int]:
        server = Server(good, folder, port=0, source=lambda: Serving(hangs, folder))
        await server.start()
        server._limits = Limits(load_timeout_s=0.3)
        gate("shut")
        with pytest.raises(InputError, match="has not come back"):
            await server.reload()
        gate("open")
        async with aiohttp.ClientSession(server.url) as client:
            status, _ = await infer(client, "gated")
        await server.stop()
        return status, server.generation.number

    assert asyncio.run(run()) == (200, 1)


def test_a_request_ends_in_the_generation_it_arrived_in(pipeline, folder, infer, gate, until, tmp_path) -> None:
    served = pipeline("gated")

    async def run() -> tuple[int, int]:
        server = Server(
            served, folder, port=0, journal=tmp_path / "kept", source=lambda: Serving(variation_of_gated, folder)
        )
        await server.start()
        gate("shut")
        async with aiohttp.ClientSession(server.url) as client:
            slow = asyncio.ensure_future(infer(client, "gated"))
            old = server.generation
            await until(lambda: old.inside == 1)
            await server.reload()
            assert server.generation.inside == 0
            assert not slow.done()
            gate("open")
            first, _ = await slow
            second, _ = await infer(client, "gated")
        await server.stop()
        assert (old.outcomes[Outcome.COMPLETED], server.generation.outcomes[Outcome.COMPLETED]) == (1, 1)
        return first, second

    variation_of_gated = msgspec.structs.replace(served, max_requests=9)
    assert asyncio.run(run()) == (200, 200)


def test_stopping_while_a_generation_drains_closes_both(pipeline, folder, infer, gate, until, tmp_path: Path) -> None:
    served = pipeline("gated")

    async def run() -> int:
        server = Server(served, folder, port=0, journal=tmp_path / "kept", source=lambda: Serving(served, folder))
        await server.start()
        gate("shut")
        async with aiohttp.ClientSession(server.url) as client:
            slow = asyncio.ensure_future(infer(client, "gated"))
            await until(lambda: server.generation.inside == 1)
            await server.reload()
            stopping = asyncio.ensure_future(server.stop())
            gate("open")
            status, _ = await slow
            await stopping
        return status

    assert asyncio.run(run()) == 200
    assert journal.load_head(tmp_path / "kept").clean
    assert journal.load_head(tmp_path / "kept" / "generation-2").clean


def test_a_switch_that_is_given_up_while_another_generation_drains_leaves_that_and_the_stop_alone(
    pipeline, folder, infer, gate, until
) -> None:
    served = pipeline("gated")

    async def run() -> int:
        server = Server(served, folder, port=0)
        await server.start()
        gate("shut")
        async with aiohttp.ClientSession(server.url) as client:
            slow = asyncio.ensure_future(infer(client, "gated"))
            await until(lambda: server.generation.inside == 1)
            await server.replace(Serving(served, folder))
            given_up = asyncio.ensure_future(server.replace(Serving(served, folder)))
            await until(server._replacing.locked)
            given_up.cancel()  # as a rollout that stands in the midst of a step is when the server stops
            stopping = asyncio.ensure_future(server.stop())
            await asyncio.wait((given_up,))
            gate("open")
            status, _ = await slow
            await stopping
        assert server.outcomes[Outcome.COMPLETED] == 1
        return status

    assert asyncio.run(run()) == 200


def test_a_server_that_is_stopped_while_it_loads_another_stops(pipeline, folder, until) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def probation(_stages, _step) -> None:
        loading.set()
        assert go_on.wait(20)

    async def run() -> None:
        served = pipeline("tiny")
        server = Server(served, folder, port=0, source=lambda: Serving(served, folder, probation=probation))
        await server.start()
        reloading = asyncio.ensure_future(server.reload())
        await until(loading.is_set)
        stopping = asyncio.ensure_future(server.stop())
        await until(lambda: server.generation.shell.draining)
        go_on.set()
        with pytest.raises(InputError, match="stopping"):
            await reloading
        await stopping
        assert server.generation.number == 1

    asyncio.run(run())


def test_a_reload_goes_on_though_whoever_asked_for_it_hangs_up(pipeline, folder, until) -> None:
    served = pipeline("tiny")
    began, may_end = threading.Event(), threading.Event()

    def source() -> Serving:
        began.set()
        assert may_end.wait(60)
        return Serving(variation(served, 1), folder)

    async def run() -> None:
        guard = Guard(Access(None, admin_secret="a secret that is long enough to be one"))
        server = Server(served, folder, port=0, source=source, guard=guard)
        await server.start()
        headers = {"Authorization": "Bearer a secret that is long enough to be one"}
        async with aiohttp.ClientSession(server.url, headers=headers) as client:
            asking = asyncio.ensure_future(client.post("/admin/reload"))
            await until(began.is_set)
            asking.cancel()
            await until(lambda: server._front.active == 0)
        may_end.set()
        await until(lambda: server.generation.number == 2)
        await server.stop()

    asyncio.run(run())
