import asyncio
import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadslice.record import AsgiMiddleware, Recorder, note, stage
from loadslice.record.body import PAYLOAD_BYTES_MAX
from loadslice.record.request import CURRENT
from loadslice.spec.errors import InputError
from loadslice.workload import trace


@pytest.fixture
def recorder(tmp_path: Path):
    made = Recorder(tmp_path / "recording", utilisation_s=None)
    yield made
    made.close(join=False)


async def call(app, body: bytes = b"", kind: str = "http", **headers: str) -> list:
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await app({"type": kind, "headers": pairs}, receive, send)
    return sent


async def answer(scope, receive, send) -> None:
    await receive()
    with stage("decode"):
        await asyncio.to_thread(note, items=3)
    with stage("model"), stage("inner"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def rows(recorder: Recorder) -> list[dict]:
    path = recorder.close()
    assert path is not None
    return trace.read(path).frame.to_dicts()


def test_an_asgi_request_becomes_a_row_with_stages_and_notes(recorder: Recorder) -> None:
    headers = {"x_loadslice_priority": "critical", "x_loadslice_tenant": "t", "content_length": "12"}
    sent = asyncio.run(call(recorder.asgi(answer), **headers))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    (row,) = rows(recorder)
    assert row["arrival_s"] == 0.0
    assert (row["status"], row["items"], row["class"], row["tenant"], row["bytes_in"]) == (201, 3, "critical", "t", 12)
    assert 0 <= row["stage_ms.inner"] <= row["stage_ms.model"] <= row["latency_ms"]
    assert row["stage_ms.decode"] > 0


def test_requests_that_interleave_keep_their_own_stages(recorder: Recorder) -> None:
    async def main() -> None:
        turn = asyncio.Barrier(2)

        async def app(scope, receive, send) -> None:
            name = scope["headers"][0][1].decode()
            with stage(name):
                await turn.wait()
            note(source=name)
            await send({"type": "http.response.start", "status": 200})

        recorded = recorder.asgi(app)
        await asyncio.gather(call(recorded, who="a"), call(recorded, who="b"))

    asyncio.run(main())
    for row in rows(recorder):
        assert row[f"stage_ms.{row['source']}"] is not None
        assert row[f"stage_ms.{'b' if row['source'] == 'a' else 'a'}"] is None


def test_a_failing_request_is_recorded_and_its_error_passed_on(recorder: Recorder) -> None:
    async def broken(scope, receive, send) -> None:
        with stage("decode"):
            raise ValueError("image")

    with pytest.raises(ValueError, match="image"):
        asyncio.run(call(recorder.asgi(broken)))
    (row,) = rows(recorder)
    assert row["status"] == 500
    assert row["stage_ms.decode"] > 0
    assert recorder.counters()["failed"] == 1


def test_a_client_that_leaves_is_recorded_without_a_status(recorder: Recorder) -> None:
    async def main() -> None:
        entered = asyncio.Event()

        async def slow(scope, receive, send) -> None:
            entered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(call(recorder.asgi(slow)))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    (row,) = rows(recorder)
    assert "status" not in row


def test_other_scopes_pass_untouched(recorder: Recorder) -> None:
    asyncio.run(call(recorder.asgi(answer), kind="lifespan"))
    assert recorder.counters()["requests"] == 0
    assert recorder.close() is None


def test_stages_and_notes_outside_a_request_do_nothing() -> None:
    with stage("decode"):
        note(items=3)
    assert CURRENT.get() is None


def wsgi(recorder: Recorder, app, body: bytes = b"", **environ: str) -> tuple[str, bytes]:
    status = []
    environment = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body)), **environ}
    response = recorder.wsgi(app)(environment, lambda line, headers, *error: status.append(line))
    try:
        return b"".join(response), status[0]
    finally:
        response.close()


def test_a_wsgi_request_lasts_until_its_body_was_sent(recorder: Recorder) -> None:
    def app(environ, start_response):
        start_response("202 Accepted", [])
        with stage("first"):
            yield b"a"
        note(tokens_out=2)
        yield b"b"

    assert wsgi(recorder, app, HTTP_X_LOADSLICE_TENANT="t") == (b"ab", "202 Accepted")
    (row,) = rows(recorder)
    assert (row["status"], row["tenant"], row["tokens_out"], row["bytes_in"]) == (202, "t", 2, 0)
    assert row["stage_ms.first"] > 0
    assert CURRENT.get() is None


def test_a_wsgi_application_that_raises_is_recorded(recorder: Recorder) -> None:
    def app(environ, start_response):
        raise ValueError("image")

    with pytest.raises(ValueError, match="image"):
        wsgi(recorder, app)
    assert rows(recorder)[0]["status"] == 500


def test_bodies_are_kept_only_when_asked_and_within_bounds(tmp_path: Path) -> None:
    made = Recorder(tmp_path, sample_payloads=1, utilisation_s=None)
    app = made.asgi(answer)
    for body in (b"page", b"x" * (PAYLOAD_BYTES_MAX + 1), b""):
        asyncio.run(call(app, body))
    assert (
        wsgi(made, lambda environ, start: (start("200 OK", []), [environ["wsgi.input"].read()])[1], b"form")[0]
        == b"form"
    )
    found = rows(made)
    kept = {name: (tmp_path / "payloads" / f"{name}.bin").read_bytes() for row in found if (name := row["input"])}
    assert sorted(kept.values()) == [b"form", b"page"]
    assert made.counters()["payloads"] == 2


def test_a_writer_too_far_behind_drops_and_counts(tmp_path: Path) -> None:
    made = Recorder(tmp_path, pending_max=10, flush_s=3600, utilisation_s=None)
    for _ in range(25):
        made.end(made.begin())
    assert (made.counters()["dropped"], made.counters()["waiting"]) == (15, 10)
    assert len(rows(made)) == 10
    made.end(made.begin())
    counters = made.counters()
    assert counters["requests"] == counters["written"] + counters["dropped"] + counters["waiting"] == 26


def test_every_request_of_many_threads_is_counted_and_written(tmp_path: Path) -> None:
    made = Recorder(tmp_path, part_rows=500, utilisation_s=0.01)

    def work(_: int) -> None:
        for _ in range(500):
            made.end(made.begin())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(rows(made)) == 4000
    counters = made.counters()
    assert (counters["written"], counters["dropped"], counters["waiting"]) == (4000, 0, 0)
    assert sum(counters["latency_us_histogram"].values()) == 4000
    assert not any(thread.name == "loadslice-record" for thread in threading.enumerate())


def test_a_disk_that_fails_costs_rows_not_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Recorder(tmp_path / "gone", utilisation_s=None)
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").write_bytes(b"a file where the folder was")
    made.end(made.begin())
    with pytest.raises(InputError, match="rows were lost"):
        made.close()
    assert made.counters()["dropped"] == 1
    assert len(caplog.records) == 1


def test_a_place_that_cannot_be_recorded_to_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be recorded to"):
        Recorder(tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_worker_records_for_itself_and_exit_flushes(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from loadslice.record import Recorder\n"
        "made = Recorder(sys.argv[1], utilisation_s=None)\n"
        "child = os.fork()\n"
        "for _ in range(3): made.end(made.begin())\n"
        "if child: os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    from loadslice.workload import recording

    assert len(list(tmp_path.glob("part-*"))) == 2
    assert recording.read(tmp_path).frame.height == 6


def test_importing_the_recorder_is_light() -> None:
    program = (
        "import sys, loadslice.record; sys.exit(any(name in sys.modules for name in ('polars', 'numba', 'numpy')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_frameworks_can_add_it_by_class(recorder: Recorder) -> None:
    from fastapi import FastAPI

    app = FastAPI()
    app.add_middleware(AsgiMiddleware, recorder=recorder)

    @app.get("/pages")
    def pages() -> dict[str, int]:
        with stage("model"):
            note(items=2)
        return {"pages": 2}

    import httpx

    async def main() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return (await client.get("/pages")).status_code

    assert asyncio.run(main()) == 200
    (row,) = rows(recorder)
    assert row["items"] == 2
    assert row["stage_ms.model"] > 0
