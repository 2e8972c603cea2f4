"""A recorder for a service you already have: middleware, stage timers, utilisation; writes a trace `portrait` reads.

    recorder = Recorder("recording")
    app = recorder.asgi(app)            # or recorder.wsgi(app)

    with stage("decode"):               # anywhere inside a request, threads started by the framework included
        ...
    note(items=len(lines))              # what the request asked for
    recorder.close()                    # recording/trace.parquet; or `loadslice trace import recording -o T`

Rules: a request never waits for a disk and never fails because of the recorder. Requests put one object into a bounded
list; a background thread writes it as Parquet parts. When the list is full, rows are dropped and counted. Old parts
make room for new ones at ``max_bytes``. Importing this module is cheap: Polars loads in the background thread.

Stages and notes find their request through a context variable: they work in tasks and in threads that copy the context
(``asyncio.to_thread``, Starlette's thread pool), and do nothing outside a request.
"""

from loadslice.record.asgi import AsgiMiddleware
from loadslice.record.recorder import Recorder
from loadslice.record.request import note, stage
from loadslice.record.wsgi import WsgiMiddleware

__all__ = ["AsgiMiddleware", "Recorder", "WsgiMiddleware", "note", "stage"]
