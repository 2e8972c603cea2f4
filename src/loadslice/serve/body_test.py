import asyncio

import pytest
from aiohttp import StreamReader, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import make_mocked_request

from loadslice.serve.body import BodyReader
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError


def upload(length: int) -> tuple[StreamReader, web.BaseRequest]:
    """A request whose head has come and whose body is still to be fed."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.transport = asyncio.Transport()
    stream = StreamReader(protocol, 1 << 16, loop=loop)
    return stream, make_mocked_request("POST", "/", {"Content-Length": str(length)}, payload=stream)


def test_bodies_that_grow_at_the_same_time_are_bounded_together() -> None:
    async def run() -> None:
        bodies = BodyReader(Limits(held_bytes_max=1000))
        (one, first), (two, second) = upload(600), upload(600)
        reading = [asyncio.ensure_future(bodies.read(request)) for request in (first, second)]
        one.feed_data(b"1" * 500)
        two.feed_data(b"2" * 400)
        await asyncio.wait(reading, timeout=0)
        two.feed_data(b"2" * 200)
        with pytest.raises(RefusalError, match="as many bytes") as refused:
            await reading[1]
        assert refused.value.status == 503
        one.feed_data(b"1" * 100)
        one.feed_eof()
        assert len(await reading[0]) == bodies.held_bytes == 600
        bodies.release(600)
        assert bodies.held_bytes == 0

    asyncio.run(run())
