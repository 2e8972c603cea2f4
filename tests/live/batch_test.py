"""Offline work, against a real server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadslice.app import cli

pytestmark = pytest.mark.live


def line(values: list[float], **changes: Any) -> str:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": values} | changes
    return json.dumps({"inputs": [tensor]})


def batch(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.run(["batch", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_one_bad_row_is_named_and_the_others_run(tiny, tmp_path: Path, capsys) -> None:
    rows = [line([float(n)] * 4) for n in range(20)]
    rows[7] = line([1.0] * 3)
    rows[11] = "{not json"
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    code, told = batch(capsys, str(tmp_path / "in.jsonl"), tiny.server.url)
    assert code == 3
    assert (told["complete"], told["outcomes"]) == (True, {"completed": 18, "failed": 2})
    failed = {one["row"]: one for one in told["failed_rows"]}
    assert set(failed) == {7, 11}
    assert (failed[7]["place"], failed[7]["status"]) == ("line 8", 400)
    assert failed[11]["status"] is None
    results = [json.loads(text) for text in Path(told["results"]).read_text().splitlines()]
    assert [one["row"] for one in results] == list(range(20))
    assert results[3]["outputs"][0]["data"] == [-6.0] * 4
    assert results[3]["engine"] == "ort, ov"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "in.jsonl.results.jsonl"]


def test_arrays_are_sent_row_by_row_and_kept_where_asked(tiny, tmp_path: Path, capsys) -> None:
    np.savez(tmp_path / "in.npz", x=np.arange(40, dtype=np.float32).reshape(10, 4))
    out = tmp_path / "out"
    code, told = batch(capsys, str(tmp_path / "in.npz"), tiny.server.url, "--out", str(out), "--concurrency", "3")
    assert code == 0
    assert told["outcomes"] == {"completed": 10, "failed": 0}
    assert told["concurrency_max"] <= 3
    assert json.loads((out / "batch.json").read_bytes()) == told
    assert not (tmp_path / "in.npz.results.jsonl").exists()


def test_files_are_sent_as_they_are(text, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "a.txt").write_text("1 2 3 4")
    (folder / "b.txt").write_text("words")
    code, told = batch(capsys, str(folder), text.server.url, "--out", str(tmp_path / "out"))
    assert code == 3
    assert told["outcomes"] == {"completed": 1, "failed": 1}
    assert told["failed_rows"][0]["place"] == "b.txt"
    assert told["failed_rows"][0]["status"] == 400


def test_refusals_are_waited_out_and_every_row_gets_its_answer(serving, folder, pipeline, gate, tmp_path: Path) -> None:
    """Of a pipeline that takes eight requests, 64 at once are wanted; none may be lost or failed."""
    (tmp_path / "in.jsonl").write_text("\n".join(line([1.0] * 4) for _ in range(60)))

    async def submit() -> tuple[int, str]:
        async with serving(pipeline("gated"), folder) as (server, _):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "loadslice", "batch", str(tmp_path / "in.jsonl"), server.url, "--json",
                "--concurrency", "64", stdout=subprocess.PIPE,
            )  # fmt: skip
            out, _ = await process.communicate()
            return process.returncode or 0, out.decode()

    code, printed = asyncio.run(submit())
    told = json.loads(printed)
    assert code == 0
    assert told["outcomes"] == {"completed": 60, "failed": 0}
    assert told["attempts"] == 60 + told["refusals"]


def test_a_run_that_is_killed_goes_on_where_it_was(serving, folder, pipeline, gate, tmp_path: Path, until) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(line([float(n)] * 4) for n in range(3000)))
    part = tmp_path / "in.jsonl.results.jsonl.part"

    async def run(url: str, kill: int | None) -> tuple[int, str]:
        before = part.read_bytes().count(b"\n") if part.exists() else 0
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadslice", "batch", str(path), url, "--json", "--concurrency", "2",
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if kill is not None:
            await until(lambda: part.exists() and part.read_bytes().count(b"\n") > before + 20)
            os.kill(process.pid, kill)
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def whole() -> tuple[int, int, int, int, str]:
        async with serving(pipeline("gated"), folder) as (server, _):
            killed, _ = await run(server.url, signal.SIGKILL)
            interrupted, _ = await run(server.url, signal.SIGINT)
            terminated, _ = await run(server.url, signal.SIGTERM)
            return killed, interrupted, terminated, *(await run(server.url, None))

    killed, interrupted, terminated, code, printed = asyncio.run(whole())
    told = json.loads(printed)
    assert (killed, interrupted, terminated, code) == (-signal.SIGKILL, 130, 143, 0)
    assert told["resumed_rows"] >= 60
    assert told["outcomes"] == {"completed": 3000, "failed": 0}
    assert told["attempts"] < 3000
    rows = [json.loads(text)["row"] for text in Path(told["results"]).read_text().splitlines()]
    assert rows == list(range(3000))
    assert not part.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl", "http://127.0.0.1:1"], "nowhere.jsonl: cannot be read"),
        (["IN", "http://127.0.0.1:1"], "nobody answers there"),
        (["IN", "http://192.0.2.1:1"], "needs --allow-remote"),
        (["IN", "http://127.0.0.1:1", "--class", "best"], "'best' is not one of"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, arguments, message, capsys) -> None:
    (tmp_path / "in.jsonl").write_text(line([1.0] * 4))
    code = cli.run(["batch", *(str(tmp_path / "in.jsonl") if part == "IN" else part for part in arguments)])
    assert code == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
