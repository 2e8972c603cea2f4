"""Who a request comes from, and what it may do: tokens, scopes, rates and quotas. Knows of no transport.

Rules of this file: a refusal never says which of several reasons it has (unknown, expired, revoked, malformed: all are
401 with the same words); secrets are compared by their hashes in constant time, and an id that nobody has costs as much
as one that somebody has; a server without tokens serves its own machine only (`check_exposure`).
"""

import hmac
import ipaddress
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from loadslice.serve.refusals import NS_PER_S, RefusalError
from loadslice.spec.access import Scope, Token, Tokens, digest, parts
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import CLASSES

ADMIN_PREFIX = "/admin/"
HEALTH_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})
"""Open to everybody: orchestrators probe without credentials, and get one bit."""

CONSOLE_PREFIX = "/console/"
OPEN_PATHS = HEALTH_PATHS | {"/console"}
"""A browser sends no token with the address of a page; the console's is the same for everybody and tells nothing."""

TENANT_HEADER = "x-loadslice-tenant"
PRIORITY_HEADER = "x-loadslice-priority"
_CLASS_NUMBERS = {name: number for number, name in enumerate(CLASSES)} | {str(n): n for n in range(len(CLASSES))}
_NOBODY = digest("")

SET_BACK = 1
"""Days, and months, that a clock may be set back without a quota beginning anew: an hour around midnight would grant it
twice. One that was wrong by more than that has counted for a day that is none."""

ADMIN_TOKEN_BYTES_MIN = 20
"""Shorter secrets from the environment are refused."""


class Caller(NamedTuple):
    """Whom a request comes from."""

    tenant: str | None
    """``None``: the request's own header says."""
    ceiling: int
    """Highest class it may have, index; 0: any."""
    token: str | None
    """Id, for logs; ``None``: no tokens are in use."""

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """A request's headers with what the token has the say about put in its place.

        Args:
            headers: Lower-case names.

        Raises:
            RefusalError: 403, the request asks for a class above the token's ceiling.
        """
        if self.token is None:
            return headers
        stated = headers.get(PRIORITY_HEADER)
        asked = None if stated is None else _CLASS_NUMBERS.get(stated)
        if asked is not None and asked < self.ceiling:
            raise RefusalError(403, "this class is above what your token allows")
        changed = dict(headers)
        if stated is None and self.ceiling > _DEFAULT_CLASS:
            changed[PRIORITY_HEADER] = CLASSES[self.ceiling]
        if self.tenant is not None:
            changed[TENANT_HEADER] = self.tenant
        return changed


_DEFAULT_CLASS = CLASSES.index("critical")

ANYBODY = Caller(None, 0, None)


@dataclass(slots=True)
class _Account:
    """What is left of one token."""

    token: Token
    expires_s: float
    credit: float
    """Requests that may come now, at most ``burst``."""
    filled_ns: int
    day: int = -1
    """Days since 1970 that `used_today` is about."""
    month: int = -1
    used_today: int = 0
    used_this_month: int = 0


class Usage(NamedTuple):
    """What a token has used of its quotas; outlives a restart."""

    token: str
    day: int
    used_today: int
    month: int
    used_this_month: int


class Access:
    """Decides about callers.

    Args:
        tokens: ``None``: everybody who reaches the server may infer and read metrics; nobody may administer it unless
            ``admin_secret`` is given.
        admin_secret: A secret from the environment that opens ``/admin/`` (and nothing else).
        wall_s: Seconds since 1970.
        monotonic_ns: Never goes back.
    """

    def __init__(
        self,
        tokens: Tokens | None,
        *,
        admin_secret: str | None = None,
        wall_s: Callable[[], float] = time.time,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_s = wall_s
        self._monotonic_ns = monotonic_ns
        self._admin_digest = None if admin_secret is None else digest(admin_secret)
        self._accounts: dict[str, _Account] = {}
        self.is_open = tokens is None
        """Whether no credentials are asked for, outside ``/admin/``."""
        self.replace(tokens)

    def replace(self, tokens: Tokens | None) -> None:
        """Take other tokens from now on; what those that stay have used is kept."""
        now_ns = self._monotonic_ns()
        accounts = {}
        for token in [] if tokens is None else tokens.tokens:
            account = self._accounts.get(token.id)
            if account is None:
                account = _Account(token, 0.0, float(token.burst), now_ns)
            account.token = token
            account.expires_s = token.expires.timestamp()
            account.credit = min(account.credit, float(token.burst))
            accounts[token.id] = account
        self._accounts = accounts
        self.is_open = tokens is None

    def caller(self, headers: Mapping[str, str], path: str) -> Caller:
        """Who asks for a path, if they may; counts the request.

        Args:
            headers: Lower-case names; a header that came twice is the transport's to refuse.
            path: Without its query.

        Raises:
            RefusalError: 401 no valid token, 403 not allowed, 429 over the rate or the quota.
        """
        scope = scope_of(path)
        if scope is None or (self.is_open and scope != "admin"):
            return ANYBODY
        return self.check(headers.get("authorization"), scope)

    def check(self, authorization: str | None, scope: Scope) -> Caller:
        """The same for a transport without paths.

        Args:
            authorization: ``Bearer TOKEN``.
            scope: What is asked for.

        Raises:
            RefusalError: As `caller`.
        """
        if self.is_open and scope != "admin":
            return ANYBODY
        if self.is_open and self._admin_digest is None:
            raise RefusalError(403, "administration is off")
        bearer = "" if authorization is None else authorization
        kind, _, text = bearer.partition(" ")
        if kind.lower() != "bearer" or not text.isascii():
            raise _unauthorised()
        if (
            scope == "admin"
            and self._admin_digest is not None
            and hmac.compare_digest(digest(text), self._admin_digest)
        ):
            return Caller(None, 0, "environment")
        account = self._known(text)
        if scope not in account.token.scopes:
            raise RefusalError(403, "not allowed")
        self._spend(account)
        return Caller(account.token.tenant, CLASSES.index(account.token.ceiling), account.token.id)

    def _known(self, text: str) -> _Account:
        """The account of a token that is valid now."""
        given = parts(text)
        identity, secret = ("", "") if given is None else given
        account = self._accounts.get(identity)
        same = hmac.compare_digest(digest(secret), _NOBODY if account is None else account.token.sha256)
        if account is None or not same or account.token.revoked or self._wall_s() >= account.expires_s:
            raise _unauthorised()
        return account

    def _spend(self, account: _Account) -> None:
        """Take one request from a token's bucket and quotas; a refused one takes nothing."""
        token = account.token
        now_ns = self._monotonic_ns()
        account.credit = min(
            float(token.burst), account.credit + token.rate_per_s * (now_ns - account.filled_ns) / NS_PER_S
        )
        account.filled_ns = now_ns
        if account.credit < 1.0:
            wait_ns = round((1.0 - account.credit) / token.rate_per_s * NS_PER_S)
            raise RefusalError(429, "over the rate of this token", retry_after_ns=wait_ns)
        wall_s = self._wall_s()
        now = datetime.fromtimestamp(wall_s, UTC)
        day, month = now.toordinal(), now.year * 12 + now.month
        if not 0 <= account.day - day <= SET_BACK:
            account.day, account.used_today = day, 0
        if not 0 <= account.month - month <= SET_BACK:
            account.month, account.used_this_month = month, 0
        if account.used_today >= token.per_day or account.used_this_month >= token.per_month:
            raise RefusalError(
                429, "over the quota of this token", retry_after_ns=(86_400 - int(wall_s) % 86_400) * NS_PER_S
            )
        account.credit -= 1.0
        account.used_today += 1
        account.used_this_month += 1

    def usage(self) -> list[Usage]:
        """What every token has used."""
        return [
            Usage(name, one.day, one.used_today, one.month, one.used_this_month)
            for name, one in self._accounts.items()
            if one.day >= 0
        ]

    def remember(self, usages: list[Usage]) -> None:
        """Go on from what an earlier run had counted; of tokens that are gone, nothing is kept."""
        for usage in usages:
            account = self._accounts.get(usage.token)
            if account is not None:
                account.day, account.used_today = usage.day, usage.used_today
                account.month, account.used_this_month = usage.month, usage.used_this_month


def _unauthorised() -> RefusalError:
    return RefusalError(401, "a valid token is needed")


def scope_of(path: str) -> Scope | None:
    """What a path asks of a token; ``None``: nothing. What is not known asks for as much as inference does."""
    if path in OPEN_PATHS:
        return None
    if path == "/metrics" or path.startswith(CONSOLE_PREFIX):
        return "metrics"
    if path == ADMIN_PREFIX.rstrip("/") or path.startswith(ADMIN_PREFIX):
        return "admin"
    return "infer"


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, *, has_tokens: bool, has_tls: bool, insecure: bool) -> None:
    """Refuse to listen beyond this machine without both tokens and TLS.

    Raises:
        InputError: Names what is missing.
    """
    if is_loopback(host) or insecure or (has_tokens and has_tls):
        return
    missing = [name for name, has in (("--tokens FILE", has_tokens), ("--tls-cert and --tls-key", has_tls)) if not has]
    raise InputError(
        f"--host {host}: others reach this address. Give {' and '.join(missing)}, or say --insecure if something in "
        "front of it keeps them out."
    )


def check_admin_secret(secret: str | None) -> str | None:
    """The environment's admin secret, if it is one.

    Raises:
        InputError: It is too short to be a secret.
    """
    if not secret:
        return None
    if len(secret) < ADMIN_TOKEN_BYTES_MIN or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise InputError(
            f"LOADSLICE_ADMIN_TOKEN: give at least {ADMIN_TOKEN_BYTES_MIN} printable ASCII characters without blanks; "
            "`openssl rand -hex 32` makes one."
        )
    return secret
