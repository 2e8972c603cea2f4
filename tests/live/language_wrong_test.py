"""Engines that say what cannot be true: they are not believed, and every stream has the tokens that are right."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.live.language_scenes import LONG, marks, play, said, split, streamed, until
from tests.tiny_model.language import spelled

from loadslice.backends.language import messages as m
from loadslice.policy.tokens import columns as c
from loadslice.serve.language.server import LanguageServer

pytestmark = marks


def _beyond(message: m.Stepped) -> m.Stepped:
    return msgspec.structs.replace(message, drawn=(msgspec.structs.replace(message.drawn[0], token=10**6),))


def _twice(message: m.Stepped) -> m.Stepped:
    return msgspec.structs.replace(message, drawn=2 * message.drawn)


def _silent(message: m.Stepped) -> m.Stepped:
    return msgspec.structs.replace(message, drawn=())


@pytest.mark.parametrize("lie", [_beyond, _twice, _silent])
@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_an_engine_whose_answer_is_none_is_ended_and_no_stream_has_a_wrong_token(
    victim: str, lie: Callable[[m.Stepped], m.Stepped]
) -> None:
    async def scene(server: LanguageServer, client: Any) -> None:
        shell, number = server._shell, server._names.index(victim)
        assert shell is not None
        hear, left = shell.hear, [1 if victim == "prefill" else 4]

        def hear_lies(engine: int, message: m.FromEngine) -> None:
            if engine == number and isinstance(message, m.Stepped) and message.drawn:
                left[0] -= 1
                if left[0] == 0:
                    message = lie(message)
            hear(engine, message)

        shell.hear = hear_lies  # type: ignore[method-assign]
        assert await streamed(client, LONG) == spelled("g", 1, 12)
        assert server.starts[victim] == 2 or not server._engines.is_up[number]
        assert int(server.state.counters[c.C_FALLBACKS]) == 1
        await until(lambda: all(server._engines.is_up))

    # Who decodes has another beside it that can take over.
    play(scene, split() if victim == "prefill" else said({"decode": {}, "second": {}}, "always-local"))


def test_kv_of_another_length_than_the_prompt_is_not_taken() -> None:
    async def scene(server: LanguageServer, client: Any) -> None:
        shell = server._shell
        assert shell is not None
        hear = shell.hear

        def hear_lies(engine: int, message: m.FromEngine) -> None:
            if isinstance(message, m.Exported):
                message = msgspec.structs.replace(message, tokens=message.tokens - 1)
            hear(engine, message)

        shell.hear = hear_lies  # type: ignore[method-assign]
        assert await streamed(client, LONG) == spelled("g", 1, 12)
        assert int(server.state.counters[c.C_HANDOVERS_FAILED]) == 1
        assert server._slots.free == server._slots.slots

    play(scene, split())
