"""Talking to a running server's administration from a command."""

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from loadslice.spec.address import web_address
from loadslice.spec.errors import InputError

ADMIN_TOKEN = "LOADSLICE_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
REPLY_BYTES_MAX = 4 << 20
TIMEOUT_S = 600.0
"""A reload answers once the new version is loaded and warm."""


def token() -> str:
    """The secret that the commands send.

    Raises:
        InputError: None is set.
    """
    secret = os.environ.get(ADMIN_TOKEN, "")
    if not secret:
        raise InputError(f"set {ADMIN_TOKEN} to a token with the scope admin, as the server has it.")
    return secret


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A server that sends us elsewhere would have our token sent there."""

    def redirect_request(self, *_arguments: Any) -> None:
        return None


def ask(url: str, method: str, path: str, document: Any = None, *, timeout_s: float = TIMEOUT_S) -> tuple[int, Any]:
    """Send one request.

    Args:
        url: Of the server's administration.
        method: GET or POST.
        path: From ``/admin/`` on.
        document: Sent as JSON.
        timeout_s: How long the answer may take.

    Returns:
        The status and the document of the reply, refusals included.

    Raises:
        InputError: The server cannot be reached, or is not one of ours.
    """
    web_address(url, "address")
    request = urllib.request.Request(  # noqa: S310 - the scheme has been checked
        url.rstrip("/") + path,
        method=method,
        data=None if document is None else json.dumps(document).encode(),
        headers={"Authorization": f"Bearer {token()}", "Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return reply.status, json.loads(reply.read(REPLY_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _refusal(error)
    except (OSError, ValueError, RecursionError, HTTPException) as error:
        raise InputError(f"{url:.200}: cannot be asked, {getattr(error, 'reason', error)}.") from error


def _refusal(error: urllib.error.HTTPError) -> Any:
    try:
        return json.loads(error.read(REPLY_BYTES_MAX))
    except (OSError, ValueError, RecursionError, HTTPException):
        return {"error": f"status {error.code}"}


def done(url: str, method: str, path: str, document: Any = None) -> Any:
    """The same where anything but success is the user's business.

    Raises:
        InputError: Refused; says why.
    """
    status, answer = ask(url, method, path, document)
    if status >= 400:
        words = answer.get("error", status) if isinstance(answer, dict) else status
        raise InputError(f"{url:.200}{path}: refused with {status}: {words}")
    return answer
