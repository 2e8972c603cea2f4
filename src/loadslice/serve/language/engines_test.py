"""Engines that are lost before anybody is served, or come back as something else."""

import asyncio

import msgspec

from loadslice.backends.language import messages as m
from loadslice.backends.language.host import SharedSlots
from loadslice.serve.language.engines import LanguageEngines
from loadslice.serve.language.starting import Starting

LAYOUT = m.Layout("00" * 32, 2, 1, 8, "float32", has_neutral=True, raw="r", raw_bytes_per_block=1024)
READY = m.Ready(LAYOUT, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
LOAD = m.Load("m", "openvino-paged", "CPU", 1, 8, 0, {}, 0, 64, measure=False)


class Told:
    """A desk that keeps what it is told."""

    def __init__(self) -> None:
        self.all: list[tuple[str, int]] = []

    def hear(self, engine: int, message: m.FromEngine) -> None:
        self.all.append(("heard", engine))

    def engine_down(self, engine: int) -> None:
        self.all.append(("down", engine))

    def engine_up(self, engine: int) -> None:
        self.all.append(("up", engine))


async def loaded() -> tuple[LanguageEngines, Told]:
    names = ["a", "b"]
    slots = SharedSlots(0, 1)
    engines = LanguageEngines(dict.fromkeys(names, LOAD), slots, Starting(names, print), lambda index, starts: None)
    engines._loaded = [asyncio.get_running_loop().create_future() for _ in names]
    for index in range(len(names)):
        engines._hear(index, READY)
    slots.close()
    return engines, Told()


def test_an_engine_that_is_lost_while_another_loads_is_down_when_serving_begins() -> None:
    async def play() -> None:
        engines, desk = await loaded()
        engines._lost(0)
        engines.serve(desk)
        assert desk.all == [("down", 0)]
        engines._hear(0, READY)
        assert desk.all == [("down", 0), ("up", 0)]
        engines.close()

    asyncio.run(play())


def test_an_engine_that_comes_back_with_another_model_is_not_used() -> None:
    async def play() -> None:
        engines, desk = await loaded()
        engines.serve(desk)
        engines._lost(1)
        other = msgspec.structs.replace(LAYOUT, model_sha256="11" * 32)
        engines._hear(1, msgspec.structs.replace(READY, layout=other))
        assert desk.all == [("down", 1)]
        assert engines.is_up == [True, False]
        engines.close()

    asyncio.run(play())
