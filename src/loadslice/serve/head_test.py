import pytest

from loadslice.serve.head import KNOWN_MAX, Head, HeadReader
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError


@pytest.fixture
def reader() -> HeadReader:
    return HeadReader(Limits(headers_max=8))


def raw(*headers: str, line: str = "POST /v2/models/m/infer HTTP/1.1") -> bytes:
    return "\r\n".join((line, *headers, "", "")).encode()


def test_a_head_is_taken_apart(reader) -> None:
    head = reader.read(raw("Host: h", "Content-Length: 12", "X-Odd:  b\u00fcro\t", line="POST /a%20b?c=d HTTP/1.1"))
    assert (head.method, head.path, head.query, head.body_bytes) == ("POST", "/a b", "c=d", 12)
    assert head.headers == {"host": "h", "content-length": "12", "x-odd": "b\u00fcro"}
    assert (head.has_body, head.is_plain, head.is_chunked, head.is_http11, head.keeps_alive) == (
        True,
        True,
        False,
        True,
        True,
    )


def test_the_same_bytes_are_the_same_head_and_others_are_not(reader) -> None:
    first = reader.read(raw("Content-Length: 1"))
    assert reader.read(raw("Content-Length: 1")) is first
    assert reader.read(raw("Content-Length: 2")) is not first


@pytest.mark.parametrize("header", ["x-request-id: 1", "traceparent: 00-1", "x-loadslice-key: u", "a: " + "b" * 4000])
def test_heads_that_will_not_come_again_push_out_no_other(reader, header) -> None:
    assert reader.read(raw(header)) is not reader.read(raw(header))


def test_what_is_remembered_is_bounded(reader) -> None:
    for number in range(KNOWN_MAX + 1):
        reader.read(raw(f"Content-Length: {number}"))
    assert len(reader._known) == 1


@pytest.mark.parametrize(
    ("line", "headers", "keeps"),
    [
        ("GET / HTTP/1.1", [], True),
        ("GET / HTTP/1.1", ["Connection: close"], False),
        ("GET / HTTP/1.0", [], False),
        ("GET / HTTP/1.0", ["Connection: keep-alive"], True),
        ("GET / HTTP/1.1", ["Upgrade: h2c", "Connection: upgrade"], True),
    ],
)
def test_a_connection_is_kept_as_the_client_says(reader, line, headers, keeps) -> None:
    assert reader.read(raw(*headers, line=line)).keeps_alive is keeps


@pytest.mark.parametrize(
    "bad",
    [
        b"NONSENSE\r\n\r\n",
        raw(line="GET / HTTP/9.9"),
        raw(line="GET / HTTP/2.0"),
        raw("Content-Length: -1"),
        raw("Content-Length: 1", "Content-Length: 1"),
        raw("Content-Length: 1", "Transfer-Encoding: chunked"),
        raw("Transfer-Encoding: chunked, gzip"),
        raw("a b: c"),
        raw("a: b", " folded"),
        raw("a: \0"),
        raw(*[f"h{number}: v" for number in range(9)]),
        raw("Authorization: Bearer a", "authorization: Bearer b"),
        raw("x-loadslice-tenant: a", "x-loadslice-tenant: b"),
        b"GET / HTTP/1.1\r\na: b\n\nGET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(reader, bad) -> None:
    with pytest.raises(RefusalError, match="not valid HTTP") as refused:
        reader.read(bad)
    assert (refused.value.status, refused.value.close) == (400, True)


def test_a_proxys_form_of_a_target_means_its_path() -> None:
    assert HeadReader(Limits()).read(raw(line="GET http://h:1/v2?a HTTP/1.1")).path == "/v2"


def test_text_that_is_not_utf8_can_be_told_from_text_that_is(reader) -> None:
    head = reader.read(b"GET / HTTP/1.1\r\nX-A: a\xff\r\n\r\n")
    assert isinstance(head, Head)
    assert head.headers["x-a"] == "a\udcff"
