"""Addresses of servers as users give them: checked before anything is asked there."""

from urllib.parse import SplitResult, urlsplit

from loadslice.spec.errors import InputError

SHOWN_MAX = 200
"""Characters of what is no address that a message repeats."""


def web_address(text: str, place: str) -> SplitResult:
    """Check the address of an HTTP server.

    Args:
        text: As it was given.
        place: What messages call it, for instance ``--url``.

    Returns:
        Its parts; the host is there, and the port is a number or none.

    Raises:
        InputError: Not like ``http://127.0.0.1:8000``, or with a user and a password in it.
    """
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise InputError(f"{place} '{text:.{SHOWN_MAX}}': {error}. Give one like http://127.0.0.1:8000.") from error
    if parts.username is not None or parts.password is not None:
        # Said without the address: it would stand in terminals, logs and results from here on.
        raise InputError(
            f"{place}: holds a user or a password, which every result and message would show. Give it without them."
        )
    if not is_one or not text.isprintable() or " " in text:
        raise InputError(f"{place} '{text:.{SHOWN_MAX}}': not like http://127.0.0.1:8000.")
    return parts
