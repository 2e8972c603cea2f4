import asyncio
import gc
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

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


@pytest.mark.parametrize(("pauses_s", "is_killed"), [([0.5] * 8, False), ([0.5] * 9, True), ([0.5, 60.0, 0.5], False)])
def test_time_in_which_the_server_itself_stood_still_is_nobodys_silence(pauses_s, is_killed: bool) -> None:
    killed: list[int] = []
    now = SimpleNamespace(s=100.0)

    async def run() -> None:
        process: Any = SimpleNamespace(
            name="e", pid=os.getpid(), has_answered=lambda: False, ping=lambda: None, kill=lambda: killed.append(1)
        )
        shell: Any = SimpleNamespace(engine_down=lambda _engine: True)
        watch = ProcessWatch(cast(Any, SimpleNamespace(processes={0: process})), shell, Limits())
        watch._loop = cast(
            Any, SimpleNamespace(time=lambda: now.s, call_later=lambda *_: None, add_reader=lambda *_: None)
        )
        watch.start()
        for pause_s in pauses_s:
            now.s += pause_s
            watch._take_pulses()
        (care,) = watch._cares.values()
        assert care.pidfd is not None
        os.close(care.pidfd)

    asyncio.run(run())
    assert bool(killed) is is_killed
