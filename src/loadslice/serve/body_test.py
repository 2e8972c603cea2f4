import gc
import weakref

import pytest

from loadslice.serve.body import ALIGNMENT, Bodies, Body, placed
from loadslice.serve.chunks import ChunkedBody
from loadslice.serve.head import HeadReader
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError


def test_bodies_that_grow_at_the_same_time_are_bounded_together() -> None:
    bodies = Bodies(Limits(held_bytes_max=1000))
    first, second = Body(bodies, placed(600, 0)), Body(bodies, placed(600, 0))
    first.received(500)
    second.received(400)
    with pytest.raises(RefusalError, match="as many bytes") as refused:
        second.received(200)
    assert refused.value.status == 503
    first.received(100)
    assert first.is_whole
    assert bodies.held_bytes == first.held_bytes + second.held_bytes == 1000


def test_a_body_that_comes_in_chunks_is_bounded_by_itself() -> None:
    bodies = Bodies(Limits(body_bytes_max=10))
    head = HeadReader(Limits()).read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    body = ChunkedBody(bodies, head, memoryview(bytearray(100)))
    body.feed(b"5\r\n12345\r\n5\r\n67890\r\n")
    assert bytes(body.taken()) == b"1234567890"
    assert bodies.held_bytes == body.held_bytes == 10
    with pytest.raises(RefusalError, match="more than 10 bytes") as refused:
        body.feed(b"1\r\n1\r\n")
    assert refused.value.status == 413


@pytest.mark.parametrize("sent", [b"3\r\nabc\r\n0\r\n\r\n", b"3\r\nabc\r\n"])
def test_a_body_in_chunks_is_freed_when_nobody_has_it_any_more_and_not_by_the_garbage_collector(sent) -> None:
    head = HeadReader(Limits()).read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    gc.disable()
    try:
        body = ChunkedBody(Bodies(Limits()), head, memoryview(bytearray(100)))
        body.feed(sent)
        body.leave()
        alive = weakref.ref(body)
        del body
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("json_bytes", [0, 1, 63, 64, 200])
def test_what_stands_behind_the_json_part_is_aligned(json_bytes) -> None:
    import numpy as np

    body = placed(1000, json_bytes)
    assert len(body) == 1000
    assert (np.frombuffer(body, np.uint8).ctypes.data + json_bytes) % ALIGNMENT == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: 11", 413),
        (b"Content-Length: 5\r\nContent-Encoding: gzip", 415),
        (b"Content-Length: 5\r\nExpect: a miracle", 417),
        (b"Transfer-Encoding: gzip, chunked", 501),
    ],
)
def test_bodies_that_are_not_taken_are_refused_by_their_head(headers, status) -> None:
    limits = Limits(body_bytes_max=10)
    head = HeadReader(limits).read(b"POST / HTTP/1.1\r\n" + headers + b"\r\n\r\n")
    with pytest.raises(RefusalError) as refused:
        Bodies(limits).check(head)
    assert refused.value.status == status
    assert refused.value.close
