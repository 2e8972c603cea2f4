"""What an engine's process is told when it is started, and when it is started again; and how its end is noticed."""

import asyncio
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadslice.backends.isolated import witnesses
from loadslice.backends.language import messages as m
from loadslice.backends.language.host import LanguageProcess, SharedSlots

LOAD = m.Load(
    model="tiny.gguf",
    backend="remote-openai",
    device="CPU",
    threads=1,
    kv_blocks=64,
    cached_blocks=0,
    options={},
    slots=0,
    context=64,
    measure=True,
)


def test_a_process_that_is_started_again_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(LanguageProcess, "send", lambda _self, message: sent.append(message))
    monkeypatch.setattr(sys, "executable", "/bin/true")  # ends at once, and only what it would be told matters here

    async def play() -> None:
        slots = SharedSlots(0, 1)
        process = LanguageProcess("e", LOAD, slots, sent.append, lambda: None)
        for _ in range(2):
            process.start()
            process.close()
        slots.close()

    asyncio.run(play())
    assert [message.measure for message in sent] == [True, False]


def test_an_end_is_told_when_its_first_thread_has_ended_and_not_when_all_is_given_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "worker"
    script.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))

    async def play() -> str:
        slots = SharedSlots(0, 1)
        ended = asyncio.Event()
        process = LanguageProcess("e", LOAD, slots, print, ended.set)
        process.start()
        thread, ends = os.pipe()
        monkeypatch.setattr("loadslice.backends.language.host.watch", lambda _: [thread])
        process._watch((1, 2))
        os.close(ends)  # its channel is open: whoever waits for that waits until it has given its memory back
        async with asyncio.timeout(60):
            await ended.wait()
            assert process.pid is None
            how = await process.gone()
        slots.close()
        return how

    assert asyncio.run(play()) == "SIGKILL"


def test_a_thread_that_only_waits_is_seen_to_end_with_its_process() -> None:
    code = (
        "from loadslice.backends.isolated.witnesses import start_witnesses as s; print(*s(), flush=True); import sys; "
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        numbers = [int(one) for one in child.stdout.readline().split()]
        watched = witnesses.watch(numbers)
        assert len(numbers) == 2
        assert not any(_is_readable(one, 0) for one in watched)
        child.kill()
        assert all(_is_readable(one, 60_000) for one in watched)
        for one in watched:
            os.close(one)


def _is_readable(descriptor: int, within_ms: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(within_ms))
