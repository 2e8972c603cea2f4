import asyncio
import os
import threading
import weakref

import pytest

from loadslice.serve.handback import Handback

FAST_S = 20.0


def test_what_threads_ask_for_is_done_on_the_loop_in_order_and_one_failure_stops_nothing() -> None:
    async def play() -> None:
        home = Handback(asyncio.get_running_loop())
        seen: list[tuple[int, int]] = []
        whole = asyncio.Event()

        def note(number: int) -> None:
            seen.append((number, threading.get_ident()))
            if number == 3:
                raise ValueError("a defect of ours")
            if number == 999:
                whole.set()

        def ask() -> None:
            for number in range(1000):
                home.call(note, number)

        thread = threading.Thread(target=ask)
        thread.start()
        async with asyncio.timeout(FAST_S):
            await whole.wait()
        thread.join(FAST_S)
        assert [number for number, _ in seen] == list(range(1000))
        assert {ident for _, ident in seen} == {threading.get_ident()}
        home.close()

    asyncio.run(play())


def test_more_is_asked_for_than_a_pipe_holds() -> None:
    async def play() -> None:
        home = Handback(asyncio.get_running_loop())
        seen: list[int] = []
        count = 100_000  # a pipe holds 65,536 bytes, and nobody reads while this goes on
        for number in range(count):
            home.call(seen.append, number)
        whole = asyncio.Event()
        home.call(lambda _: whole.set(), None)
        async with asyncio.timeout(FAST_S):
            await whole.wait()
        assert seen == list(range(count))
        home.close()

    asyncio.run(play())


def test_a_worker_that_comes_back_late_writes_to_nothing_that_has_been_opened_since() -> None:
    async def play() -> None:
        home = Handback(asyncio.get_running_loop())
        home.close()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        home.call(print, "too late")
        home.close()
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
        os.close(reader)
        os.close(writer)

    asyncio.run(play())


def test_what_is_called_once_closed_is_not_kept() -> None:
    class Tensors:
        """Something that can be referred to weakly."""

    async def play() -> None:
        home = Handback(asyncio.get_running_loop())
        home.close()
        late = Tensors()
        home.call(lambda _: None, late)
        kept = weakref.ref(late)
        del late
        assert kept() is None

    asyncio.run(play())
