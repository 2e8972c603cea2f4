"""Which event loop a server runs on."""

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed; otherwise asyncio's own, which costs some microseconds more per request."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
