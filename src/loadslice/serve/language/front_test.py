"""What a language server says before it is ready."""

import asyncio
import json
from pathlib import Path

from loadslice.backends.language import messages as m
from loadslice.serve.language.front import LanguageFront
from loadslice.serve.language.server import LanguageServer
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.spec.language import Language, LanguageEngine

LANGUAGE = Language(version=1, language="chat", model="m", engines={"a": LanguageEngine(backend="openvino-paged")})


def reason(front: LanguageFront) -> str:
    reply = front._ready()
    assert reply.status == 503
    said = json.loads(reply.body)
    assert said["ready"] is False
    return str(said["reason"])


def test_every_refusal_has_the_form_that_clients_of_the_interface_read() -> None:
    front = LanguageFront(LANGUAGE, Limits())
    for status, kind, code in (
        (404, "invalid_request_error", None),
        (401, "invalid_request_error", "invalid_api_key"),
        (429, "rate_limit_error", None),
        (503, "server_error", None),
    ):
        said = json.loads(front.refused(RefusalError(status, "words")).body)
        assert said == {"error": {"message": "words", "type": kind, "param": None, "code": code}}


def test_a_server_that_starts_says_what_it_measures_and_how_far_it_is() -> None:
    told: list[str] = []
    server = LanguageServer(LANGUAGE, Path("m"), tell=told.append)

    async def start() -> None:
        assert reason(server._front) == "starting"
        server._engines._loaded = [asyncio.get_running_loop().create_future()]
        for done in (3, 4):
            server._engines._hear(0, m.Measuring(done, 8))

    asyncio.run(start())
    assert reason(server._front) == "engine a (1 of 1): measuring its steps, 4 of 8 kinds done"
    assert told == ["engine a (1 of 1): measuring its steps, 3 of 8 kinds done"]
    server._slots.close()
