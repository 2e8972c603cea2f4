import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

from loadslice.backends.isolated.host import EngineLostError
from loadslice.serve.limits import Limits
from loadslice.serve.process_watch import ProcessWatch, _Care


def test_a_start_that_fails_while_the_server_stops_is_no_defect_of_ours() -> None:
    said: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: said.append(context))
        watch = ProcessWatch(cast(Any, SimpleNamespace(processes={})), cast(Any, None), Limits())
        watch.stop()
        for end in (lambda done: done.set_exception(EngineLostError("ended")), lambda done: done.cancel()):
            done = loop.create_future()
            end(done)
            watch._started(_Care(0, cast(Any, None)), done)
        del done
        gc.collect()

    asyncio.run(run())
    assert not said
