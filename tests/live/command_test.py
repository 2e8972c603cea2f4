"""`loadslice serve` as a user runs it."""

import contextlib
import json
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadslice.spec import journal

pytestmark = pytest.mark.live

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "loadslice", "serve", *map(str, arguments)]


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `loadslice serve` and the line it says when it is ready."""
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_stops_cleanly_when_asked(folder, tmp_path, number) -> None:
    ready = tmp_path / "ready"
    kept = tmp_path / "kept"
    ready.write_text("left by a run that was killed")
    with started(folder / "tiny.yaml", "--http", 0, "--ready-file", ready, "--journal", kept) as (process, line):
        words = line.split(maxsplit=2)
        assert ready.read_text() == words[1]
        assert (words[0], words[2]) == ("ready", "(pipeline tiny, engines ort, ov)\n")
        assert httpx.post(f"{words[1]}/v2/models/tiny/infer", json=BODY, timeout=30).status_code == 200
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert not ready.exists()
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z INFO \S+: loading pipeline tiny$", errors.splitlines()[0])
    assert errors.splitlines()[-1].endswith(": stopped: 1 requests (completed 1)")
    assert json.loads((kept / "journal.json").read_text())["clean"] is True


def test_as_many_files_may_be_open_as_its_connections_need(folder) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

    with subprocess.Popen(
        command(folder / "tiny.yaml", "--http", 0), stdout=subprocess.PIPE, text=True, preexec_fn=few
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] >= min(2000, hard)
        finally:
            process.kill()


UNUSED = ("polars", "onnx", "openvino", "openvino_genai", "google.protobuf", "hpack", "opentelemetry", "ray", "scipy")


def test_a_pipeline_is_served_without_what_it_does_not_use(folder) -> None:
    """Large libraries and extras that are not there are not missed by a pipeline of ONNX Runtime alone."""
    absent = "".join(f"sys.modules[{name!r}] = None; " for name in UNUSED)
    code = f"import sys; {absent}sys.argv = ['loadslice', *sys.argv[1:]]; from loadslice.__main__ import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(folder / "runtimes.yaml"), "--http", "0"],
        stdout=subprocess.PIPE, text=True, encoding="utf-8",
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1]
            assert httpx.post(f"{url}/v2/models/runtimes/infer", json=BODY, timeout=30).status_code == 200
            assert httpx.get(f"{url}/metrics", timeout=30).status_code == 200
        finally:
            process.kill()


def test_a_second_signal_stops_at_once_and_still_closes_the_journal(folder, tmp_path) -> None:
    with started(folder / "blocked.yaml", "--http", 0, "--journal", tmp_path / "kept") as (process, line):
        statuses = []
        url = f"{line.split()[1]}/v2/models/blocked/infer"
        client = threading.Thread(target=lambda: statuses.append(httpx.post(url, json=BODY, timeout=60).status_code))
        client.start()
        assert process.stderr is not None
        while (
            'engine="host"} 1.0'
            not in httpx.get(f"{line.split()[1]}/metrics", timeout=30)
            .text.partition("# TYPE loadslice_engine_inflight")[2]
            .partition("# HELP")[0]
        ):
            pass
        process.send_signal(signal.SIGINT)
        while "stopping" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)  # less than the 20 s of --drain-s and the 30 s of the stage
        client.join()
    assert process.returncode == 130
    assert statuses == [503]
    head = journal.load(tmp_path / "kept").head
    assert (head.clean, head.outcomes["cancelled"]) == (True, 1)


def test_json_is_one_document(folder) -> None:
    with started(folder / "tiny.yaml", "--http", 0, "--json") as (process, first):
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        document = json.loads(first + process.stdout.read())
    assert (document["pipeline"], document["engines"]) == ("tiny", ["ort", "ov"])
    assert document["url"].startswith("http://127.0.0.1:")


def test_a_killed_server_leaves_a_journal_that_says_so(folder, tmp_path) -> None:
    with started(folder / "tiny.yaml", "--http", 0, "--journal", tmp_path / "kept") as (process, _):
        process.kill()
        process.wait(60)
    left = journal.load(tmp_path / "kept")
    assert (left.head.clean, left.requests.height) == (False, 0)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_address_that_others_reach_is_warned_about(tmp_path, host, warned) -> None:
    (tmp_path / "p.yaml").write_text(VARIANT)
    done = subprocess.run(
        command(tmp_path / "p.yaml", "--http", 0, "--host", host, "--insecure"),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (f"--host {host} --insecure: whoever reaches this address" in done.stderr) == warned


def test_a_ready_file_that_cannot_be_written_is_refused_before_anything_is_loaded(folder, tmp_path) -> None:
    (tmp_path / "file").touch()
    ready = tmp_path / "file" / "ready"
    done = subprocess.run(
        command(folder / "tiny.yaml", "--http", 0, "--ready-file", ready), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"loadslice: --ready-file {ready}: cannot be written, not a directory.\n"


VARIANT = "version: 1\npipeline: v\nengines: {e: {backend: onnxruntime}}\nstages: [{name: s, variant: v1, engine: e}]\n"
MISSING = (
    "version: 1\npipeline: m\nengines: {e: {backend: onnxruntime}}\nstages: [{name: s, model: no.onnx, engine: e}]\n"
)
BROKEN = (
    "version: 1\npipeline: b\nengines: {e: {backend: onnxruntime}}\nstages: [{name: s, model: b.onnx, engine: e}]\n"
)
CANARY = (
    "version: 1\npipeline: c\nengines: {e: {backend: python}}\n"
    'stages: [{name: s, python: "own:good", canary: {python: "own:new"}, engine: e}]\n'
)
UNKNOWN = "version: 1\npipeline: u\nengines: {e: {backend: onnxruntime}}\nstagez: []\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (VARIANT, "stage 's' names the variant 'v1' only"),
        (MISSING, "model 'no.onnx': no such file"),
        (BROKEN, "b.onnx: onnxruntime cannot load it"),
        (CANARY, "stage 's'.canary: 'own:new': "),
        (UNKNOWN, "stagez"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    (tmp_path / "own.py").write_text("def good(work):\n    return work\n")
    (tmp_path / "b.onnx").write_bytes(b"not a model")
    done = subprocess.run(
        command(tmp_path / "p.yaml", "--http", 0, "--journal", tmp_path / "kept"), capture_output=True, text=True
    )
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("loading ") and " INFO " not in line]
    assert line.startswith("loadslice: ")
    assert part in line
    assert not (tmp_path / "kept").exists()
