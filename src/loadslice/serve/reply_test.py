import json

from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import CLOSE, TEXT_MAX, refuse, render


def test_a_refusal_is_short_and_can_always_be_sent() -> None:
    assert json.loads(refuse(RefusalError(415, "type a\udcff")).body) == {"error": "type a?"}
    assert len(json.loads(refuse(RefusalError(400, "n" * 100_000)).body)["error"]) == TEXT_MAX


def test_a_refusal_says_when_to_come_back_and_which_methods_there_are() -> None:
    reply = refuse(RefusalError(503, "later", retry_after_ns=1_200_000_000, close=True))
    assert reply.close
    sent = render(reply, CLOSE)
    assert sent.startswith(b"HTTP/1.1 503 Service Unavailable\r\nServer: loadslice\r\nConnection: close\r\n")
    assert b"\r\nRetry-After: 2\r\n" in sent
    assert b"\r\nx-loadslice-retry-after-ms: 1200\r\n" in sent
    assert b"\r\nAllow: GET, HEAD\r\n" in render(refuse(RefusalError(405, "no", allow=("GET", "HEAD"))), b"")


def test_the_answer_to_head_tells_of_the_body_and_does_not_bring_it() -> None:
    sent = render(refuse(RefusalError(404, "no such path")), b"", with_body=False)
    assert sent.endswith(b"\r\nContent-Length: 24\r\n\r\n")
