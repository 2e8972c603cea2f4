import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from loadslice.policy import columns as c
from loadslice.serve.limits import Limits
from loadslice.serve.watch import EngineWatch


def test_after_a_stand_still_engines_get_one_interval_to_answer_and_not_two() -> None:
    looks: list[float] = []
    now = SimpleNamespace(s=100.0)

    async def run() -> None:
        tables: Any = SimpleNamespace(stages=np.zeros((1, c.S_TIMEOUT_NS + 1), np.int64))
        engines: Any = SimpleNamespace(processes={}, names=[], suspects=set())
        watch = EngineWatch(tables, engines, cast(Any, None), cast(Any, None), Limits(probe_interval_s=0.5))
        watch._loop = cast(Any, SimpleNamespace(time=lambda: now.s, call_later=lambda *_: None))
        watch._look = lambda: looks.append(now.s)  # type: ignore[method-assign]
        watch._due_s = now.s
        for pause_s in (0.0, 0.5, 0.6, 60.0, 0.5, 0.5, 5.0, 5.0):
            now.s += pause_s
            watch._go_on()

    asyncio.run(run())
    assert [round(at - 100, 1) for at in looks] == [0.0, 0.5, 1.1, 61.6, 62.1, 72.1]
