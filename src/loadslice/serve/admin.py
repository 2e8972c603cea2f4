"""Administration: what an operator's commands ask of a running server. Knows of no transport.

Rules of this file: whoever asks has been let in already (`access`, scope ``admin``); bodies are small and of one type,
unknown keys refused; every answer is one bounded JSON document; what is refused says why, without the folders that
things stand in.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from loadslice.serve.refusals import RefusalError
from loadslice.spec.errors import InputError

T = TypeVar("T")

BODY_BYTES_MAX = 64 << 10
CONFLICT = 409
"""What was asked for cannot be done as things are."""

Handler = Callable[[bytes], Awaitable[dict[str, Any]]]

_FOLDERS = re.compile(r"""(?<![\w/])/(?:[^\s/'"():,]+/)+""")


class Admin:
    """Paths under ``/admin/`` and who answers them."""

    def __init__(self) -> None:
        self.routes: dict[str, dict[str, Handler]] = {"/admin": {"GET": self._index}}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Have a path answered.

        Args:
            method: GET or POST.
            path: From ``/admin/`` on.
            handler: Gets the body, of a GET the query; raises InputError for what cannot be done.
        """
        self.routes.setdefault(path, {})[method] = handler

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer one request.

        Args:
            method: One that the path has.
            path: One that is known.
            body: As it came.

        Returns:
            Status and document.

        Raises:
            RefusalError: 413 for a body beyond the limit.
        """
        if len(body) > BODY_BYTES_MAX:
            raise RefusalError(413, f"a body here has at most {BODY_BYTES_MAX} bytes")
        try:
            return 200, await self.routes[path][method](body)
        except InputError as error:
            return CONFLICT, {"error": without_folders(str(error))}

    async def _index(self, _body: bytes) -> dict[str, Any]:
        """Which paths there are."""
        return {"paths": [f"{method} {path}" for path, methods in sorted(self.routes.items()) for method in methods]}


def decode(body: bytes, kind: type[T]) -> T:
    """Read a body of one type; an empty one is an empty object.

    Raises:
        RefusalError: 400, naming the key.
    """
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RefusalError(400, f"the body: {text}") from error


def without_folders(text: str) -> str:
    """A message with files' names instead of their paths."""
    return _FOLDERS.sub("", text)
