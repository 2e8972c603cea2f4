"""Which event loop a server runs on."""

import asyncio
import gc

from loadslice.serve.memory import give_back


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed; otherwise asyncio's own, which costs some microseconds more per request."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def settle() -> None:
    """Have the garbage collector leave alone what will live as long as the process; once in its life.

    Called when everything is loaded. Half a million objects of libraries would otherwise be walked again and again
    while requests wait: a full collection took 120 ms. What only loading needed is given back.
    """
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
        give_back()
