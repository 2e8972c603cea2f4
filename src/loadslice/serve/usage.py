"""What tokens have used of their quotas, written down while the server runs."""

import asyncio
import logging
from concurrent.futures import Future

from loadslice.serve.access import Access
from loadslice.serve.state_file import StateFile

log = logging.getLogger(__name__)

WRITTEN_S = 5.0
"""How often: a server that is killed forgets at most this much of it."""


class UsageKeeper:
    """Writes what tokens have used, now and every few seconds.

    Args:
        file: Where to.
        access: Counts it.
    """

    def __init__(self, file: StateFile, access: Access) -> None:
        self._file = file
        self._access = access
        self._timer: asyncio.TimerHandle | None = None
        self._is_well = True

    def start(self) -> None:
        """Write from now on."""
        self._write()
        self._timer = asyncio.get_running_loop().call_later(WRITTEN_S, self.start)

    def stop(self) -> None:
        """Write once more, where it was started."""
        if self._timer is not None:
            self._timer.cancel()
            self._write()

    def _write(self) -> None:
        self._file.write_usage(self._access.usage()).add_done_callback(self._written)

    def _written(self, written: "Future[None]") -> None:
        """Say once that it cannot be written, and once that it can be again; on the file's own thread."""
        error = written.exception()
        was_well, self._is_well = self._is_well, error is None
        if error is not None and was_well:
            log.error("what tokens have used cannot be written (%s): a restart would forget it", error)
        elif error is None and not was_well:
            log.warning("what tokens have used can be written again")
