import json

from loadslice.serve.connection import TEXT_MAX, refuse
from loadslice.serve.refusals import RefusalError


def test_a_refusal_is_short_and_can_always_be_sent() -> None:
    assert json.loads(refuse(RefusalError(415, "type a\udcff")).body) == {"error": "type a?"}
    assert len(json.loads(refuse(RefusalError(400, "n" * 100_000)).body)["error"]) == TEXT_MAX
