"""What an engine's process is told when it is started, and when it is started again."""

import asyncio
import sys
from typing import Any

import pytest

from loadslice.backends.language import messages as m
from loadslice.backends.language.host import LanguageProcess, SharedSlots


def test_a_process_that_is_started_again_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(LanguageProcess, "send", lambda _self, message: sent.append(message))
    monkeypatch.setattr(sys, "executable", "/bin/true")  # ends at once, and only what it would be told matters here

    async def play() -> None:
        load = m.Load(
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
        slots = SharedSlots(0, 1)
        process = LanguageProcess("e", load, slots, sent.append, sent.append)
        for _ in range(2):
            process.start()
            process.close()
        slots.close()

    asyncio.run(play())
    assert [message.measure for message in sent] == [True, False]
