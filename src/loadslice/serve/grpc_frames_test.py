import pytest
from hpack import Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from loadslice.serve import grpc_frames as h2
from loadslice.serve.grpc_frames import HeaderReader, ProtocolError

NAMES = st.sampled_from(["x-a", "x-b", "x-request-id", ":path", "authorization"])
VALUES = st.sampled_from(["", "1", "2", "w" * 200, "ü", "z" * 3000])
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=5, unique_by=lambda pair: pair[0])


@given(st.lists(st.tuples(LISTS, st.sampled_from([None, 0, 64, 4096])), max_size=30))
@settings(max_examples=150, deadline=None)
def test_headers_are_what_was_sent_however_often_and_whatever_the_table_does(sent) -> None:
    """Blocks that repeat are looked up; a lookup must never give what they meant while the table was another."""
    encoder, reader = Encoder(), HeaderReader()
    for headers, size in sent:
        if size is not None:
            encoder.header_table_size = size
        assert dict(reader.read(encoder.encode(headers))) == dict(headers)


def test_a_block_that_comes_again_is_the_same_object() -> None:
    encoder, reader = Encoder(), HeaderReader()
    first = reader.read(encoder.encode([("x-a", "1")]))
    second = reader.read(encoder.encode([("x-a", "1")]))
    assert first == second
    assert reader.read(encoder.encode([("x-a", "1")])) is second


@pytest.mark.parametrize(
    "block",
    [b"\xff", b"\x80", b"\x3f\xff\xff\xff\xff\xff\xff", b"\x00\x7f", b"\x00\x85\xff\xff\xff\xff\xff\x01a", b"\xbe"],
)
def test_what_is_no_header_block_is_refused(block: bytes) -> None:
    with pytest.raises(ProtocolError):
        HeaderReader().read(block)


def test_headers_that_unpack_to_more_than_is_taken_are_refused() -> None:
    # One long value enters the table; each further byte refers to it.
    bomb = Encoder().encode([("x-a", "w" * 4000)]) + b"\xbe" * 1000
    with pytest.raises(ProtocolError) as caught:
        HeaderReader().read(bomb)
    assert caught.value.code == h2.ENHANCE_YOUR_CALM


def test_what_a_connection_keeps_of_headers_is_bounded_by_what_they_mean() -> None:
    encoder, reader = Encoder(), HeaderReader()
    for name in ("x-a", "x-b"):
        reader.read(encoder.encode([(name, name * 600)]))
    for count in range(200):  # a few bytes each, which mean four kilobytes
        reader.read(b"\xbe\xbf" + h2.field(b"n", str(count).encode()))
        kept = sum(len(name) + len(value) for headers in reader._known.values() for name, value in headers.items())
        assert kept <= h2.CACHED_BYTES
    assert kept > 3000


@pytest.mark.parametrize("name", ["authorization", "x-loadslice-tenant"])
def test_a_header_that_decides_may_not_be_given_twice(name: str) -> None:
    read = HeaderReader().read
    assert read(h2.field(name.encode(), b"a") * 2).is_ambiguous
    assert not read(h2.field(b"x-other", b"a") * 2 + h2.field(name.encode(), b"a")).is_ambiguous


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 300, 20_000])
def test_literals_of_every_length_are_read_by_the_library(size: int) -> None:
    from hpack import Decoder

    decoder = Decoder(max_header_list_size=1 << 20)
    assert decoder.decode(h2.field(b"x", b"v" * size), raw=True) == [(b"x", b"v" * size)]
    assert decoder.decode(h2.STATUS_200 + h2.CONTENT_TYPE, raw=True) == [
        (b":status", b"200"), (b"content-type", b"application/grpc")
    ]  # fmt: skip
