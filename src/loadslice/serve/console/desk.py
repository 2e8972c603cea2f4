"""The console's paths, whatever server they are part of: the page, its data, single requests.

Rules of this file: a document is made at most once per second and shared by all who ask; the number of answers per
second has a limit, whoever asks; without tokens, only a browser that was sent to an address asks, not one that was
sent to a name (a name can be pointed at this machine by whoever owns it: DNS rebinding); with tokens, `access` has
looked at the credential, and who may see single requests needs the scope ``admin`` beside it.
"""

import asyncio
import ipaddress
import logging
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from loadslice.serve.access import Access
from loadslice.serve.console import page
from loadslice.serve.head import Head
from loadslice.serve.refusals import NS_PER_S, RefusalError
from loadslice.serve.reply import JSON, Reply

log = logging.getLogger(__name__)

PAGE, DATA, REQUESTS = "/console", "/console/data", "/console/requests"
PATHS = (PAGE, DATA, REQUESTS)

EVERY_S = 1.0
ANSWERS_MAX = 64
"""Documents given out between two turns; a viewer asks for one a second."""

SEARCHES_MAX = 16
"""Looks at single requests between two turns."""

BODIES_MAX = 8
"""Documents kept between two turns, by what the viewer has already."""

NAME_MAX = 256
PRIVATE = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))


class View(Protocol):
    """Looks at a server; called on the loop's thread."""

    @property
    def number(self) -> int:
        """Of the last second taken in."""

    def turn(self) -> None:
        """Take in a second."""

    def document(self, since: int) -> dict[str, Any]:
        """Everything that is shown, with the points after one."""

    def requests(self, name: str | None, *, notable: bool) -> dict[str, Any] | None:
        """Requests that were kept, or one of them."""


class ConsoleDesk:
    """Answers the console's paths.

    Args:
        access: Who may ask.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._view: View | None = None
        self._page = page.reply()
        self._bodies: dict[int, bytes] = {}
        self._answers = self._searches = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, view: View) -> None:
        """Look once per second from now on."""
        self._view = view
        self._turn()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._turn)
        self.take_in()

    def take_in(self) -> None:
        """Take in a second, and forget what was made of the last one."""
        assert self._view is not None
        self._answers = self._searches = 0
        self._bodies.clear()
        try:
            self._view.turn()
        except Exception:
            # Whoever looks on must not stop what is looked at; the next second is another try.
            log.exception("the console could not take in a second")

    def answer(self, head: Head) -> Reply:
        """Answer a GET of one of `PATHS`.

        Raises:
            RefusalError: 400, 403, 404, 429 or 503.
        """
        if head.path == PAGE:
            return self._page
        if self._access.is_open and not _is_address(head.headers.get("host", "")):
            raise RefusalError(403, "open the console by the server's address or as localhost, or give it tokens")
        if self._view is None:
            raise RefusalError(503, "models are being loaded", retry_after_ns=NS_PER_S)
        asked = parse_qs(head.query, max_num_fields=8) if len(head.query) <= 4 * NAME_MAX else None
        if asked is None:
            raise RefusalError(400, "the query is too long")
        if head.path == DATA:
            return self._data(self._view, asked.get("since", ["0"])[-1])
        return self._requests(self._view, head, asked)

    def _data(self, view: View, since: str) -> Reply:
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            raise RefusalError(400, f"since: '{since[:32]}' is not the number of a second")
        if self._answers >= ANSWERS_MAX:
            raise RefusalError(429, "too many look on", retry_after_ns=NS_PER_S)
        self._answers += 1
        # Whoever is ahead has seen another run of the server, and begins anew.
        number = int(since) if int(since) <= view.number else 0
        body = self._bodies.get(number)
        if body is None:
            body = msgspec.json.encode(view.document(number))
            if len(self._bodies) < BODIES_MAX:
                self._bodies[number] = body
        return Reply(200, body, JSON, PRIVATE)

    def _requests(self, view: View, head: Head, asked: dict[str, list[str]]) -> Reply:
        if self._searches >= SEARCHES_MAX:
            raise RefusalError(429, "too many look for requests", retry_after_ns=NS_PER_S)
        self._searches += 1
        if not self._access.is_open:
            self._access.check(head.headers.get("authorization"), "admin")
        name = asked.get("id", [""])[-1][:NAME_MAX] or None
        found = view.requests(name, notable=asked.get("notable", ["0"])[-1] == "1")
        if found is None:
            raise RefusalError(404, "no request of this id or number is among those that were kept")
        return Reply(200, msgspec.json.encode(found), JSON, PRIVATE)


def _is_address(host: str) -> bool:
    """Whether a ``Host`` header names this machine by address, or not at all."""
    if not host or host == "localhost" or host.startswith("localhost:"):
        return True
    name, _, rest = host[1:].partition("]") if host.startswith("[") else (host.partition(":")[0], "", "")
    if rest and not rest.startswith(":"):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
