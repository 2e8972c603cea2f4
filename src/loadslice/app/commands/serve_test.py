import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app.cli import run
from loadslice.app.commands import serve
from loadslice.backends import checks
from loadslice.serve.server import Server

PIPELINE = """
version: 1
pipeline: tensors
engines: {one: {backend: %s, device: %s}}
stages: [{name: model, model: m.onnx, engine: one}]
"""


@pytest.mark.parametrize(
    ("backend", "device", "dilate", "said"),
    [
        ("onnxruntime", "cpu", "20", "--dilate: no engine of this pipeline is emulated"),
        ("twin", "arm-ethos-u65-512", "0.5", "--dilate"),
        ("twin", "npu9", "1", "'npu9' is not in the catalogue"),
        ("twin", "arm-ethos-u65-512", "1", "leaves sides open (rowsx3xwidth)"),
    ],
)
def test_what_cannot_be_emulated_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str, device: str, dilate: str, said: str
) -> None:
    checks.write_model(tmp_path / "m.onnx")
    (tmp_path / "p.yaml").write_text(PIPELINE % (backend, device))
    assert run(["serve", str(tmp_path / "p.yaml"), "--http", "0", "--dilate", dilate]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("port", "console", "lines"),
    [
        (None, None, []),
        (18301, None, ["grpc [::1]:18301"]),
        (18301, "http://[::1]:18300/console", ["grpc [::1]:18301", "console http://[::1]:18300/console"]),
    ],
)
def test_every_address_it_listens_on_is_said(port: int | None, console: str | None, lines: list[str]) -> None:
    server = SimpleNamespace(url="http://[::1]:18300", grpc_port=port, console_url=console)
    assert serve._other_addresses(cast(Server, server)) == lines


def test_what_is_asked_for_while_everything_is_read_again_is_read_once_more() -> None:
    class Read:
        """Is asked again while it reads, and fails the first time."""

        count = 0

        async def refresh(self) -> dict[str, str | None]:
            self.count += 1
            if self.count == 1:
                asked.set()
                raise ValueError("a defect")
            return {"tokens": None}

    async def run() -> int:
        read = Read()
        asked.set()
        reloading = asyncio.ensure_future(serve._reload(cast(Any, read), asked))
        for _ in range(10):
            await asyncio.sleep(0)
        reloading.cancel()
        return read.count

    asked = asyncio.Event()
    assert asyncio.run(run()) == 2
