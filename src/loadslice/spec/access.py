"""The tokens file: who may use a server, as whom, for what and how much of it.

A token reads ``ls_ID_SECRET``. The file holds its id and the SHA-256 of its secret; the secret is shown once, when it
is made, and stands nowhere. Every limit has a number: a token without one does not exist.
"""

import hashlib
import re
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import decode_yaml, write_bytes
from loadslice.spec.pipeline import ClassName
from loadslice.spec.pipeline_shares import TENANT_LENGTH_MAX

Scope = Literal["infer", "metrics", "admin"]

TOKENS_MAX = 10_000
SECRET_BYTES = 32
"""Of entropy: a hash of it needs no salt and no slow function, for it cannot be guessed."""

RATE_PER_S_MAX = 1_000_000.0
PER_DAY_MAX = 10**12
LIFE_DAYS = 90
"""How long a new token lives unless told otherwise."""

_TOKEN = re.compile(r"ls_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One credential."""

    id: str
    """Public; names the token in lists and logs."""
    sha256: str
    """Of its secret, hexadecimal."""
    tenant: str
    """Whom its requests count for, whatever their header says."""
    expires: datetime
    """With a time zone."""
    scopes: list[Scope] = msgspec.field(default_factory=lambda: ["infer"])
    ceiling: ClassName = "critical"
    """Highest class that its requests may ask for."""
    rate_per_s: float = 100.0
    """Requests per second in the long run."""
    burst: int = 100
    """Requests that may come at once after a pause."""
    per_day: int = 1_000_000
    """Requests per day, UTC."""
    per_month: int = 30_000_000
    """Requests per calendar month, UTC."""
    revoked: bool = False


class Tokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole tokens file."""

    version: Literal[1]
    tokens: list[Token] = []


def load(path: Path) -> Tokens:
    """Read and check a tokens file.

    Raises:
        InputError: One line naming the key, the value and what would be right.
    """
    return check(decode_yaml(path, Tokens), str(path))


def check(tokens: Tokens, path: str) -> Tokens:
    """Refuse what types cannot.

    Raises:
        InputError: The first fault found.
    """
    if len(tokens.tokens) > TOKENS_MAX:
        raise InputError(f"{path}: tokens: {len(tokens.tokens)} are more than {TOKENS_MAX}.")
    seen: set[str] = set()
    for number, token in enumerate(tokens.tokens):
        place = f"{path}: tokens[{number}]"
        if not re.fullmatch(r"[0-9a-f]{12}", token.id) or token.id in seen:
            raise InputError(
                f"{place}.id: '{token.id:.40}' is not 12 hexadecimal digits that no other has. "
                f"Make tokens with `loadslice token new {path}`."
            )
        seen.add(token.id)
        if not _DIGEST.fullmatch(token.sha256):
            raise InputError(
                f"{place}.sha256: not 64 hexadecimal digits. A secret does not belong here: `loadslice token new`."
            )
        if not 1 <= len(token.tenant) <= TENANT_LENGTH_MAX or not token.tenant.isprintable():
            raise InputError(
                f"{place}.tenant: {token.tenant!r:.80} is not 1 to {TENANT_LENGTH_MAX} printable characters."
            )
        if token.expires.tzinfo is None:
            raise InputError(f"{place}.expires: {token.expires} has no time zone; write 2027-01-31T00:00:00Z.")
        if not token.scopes:
            raise InputError(f"{place}.scopes: at least one of infer, metrics, admin.")
        _within(place, "rate_per_s", token.rate_per_s, 0.001, RATE_PER_S_MAX)
        _within(place, "burst", token.burst, 1, RATE_PER_S_MAX)
        _within(place, "per_day", token.per_day, 1, PER_DAY_MAX)
        _within(place, "per_month", token.per_month, 1, PER_DAY_MAX)
    return tokens


def _within(place: str, key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{place}.{key}: {value:g} is not between {low:g} and {high:g}.")


def parts(text: str) -> tuple[str, str] | None:
    """Id and secret of a token as a client presents it; ``None``: not of that form."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else (found[1], found[2])


def digest(secret: str) -> str:
    """What the file keeps of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def make(
    tenant: str,
    *,
    scopes: list[Scope],
    ceiling: ClassName = "critical",
    rate_per_s: float = 100.0,
    burst: int = 100,
    per_day: int = 1_000_000,
    per_month: int = 30_000_000,
    life_days: float = LIFE_DAYS,
    now: datetime | None = None,
) -> tuple[str, Token]:
    """A new token.

    Args:
        tenant: Whom it stands for.
        scopes: What it may do.
        ceiling: Highest class.
        rate_per_s: Requests per second in the long run.
        burst: At once.
        per_day: Requests per day.
        per_month: Requests per month.
        life_days: Until it expires.
        now: When it is made; default: now.

    Returns:
        The text to hand to whoever will use it, and what the file keeps.
    """
    identity, secret = secrets.token_hex(6), secrets.token_urlsafe(SECRET_BYTES)
    made = (now or datetime.now(UTC)).replace(microsecond=0)
    token = Token(
        id=identity,
        sha256=digest(secret),
        tenant=tenant,
        expires=made + timedelta(days=life_days),
        scopes=scopes,
        ceiling=ceiling,
        rate_per_s=rate_per_s,
        burst=burst,
        per_day=per_day,
        per_month=per_month,
    )
    return f"ls_{identity}_{secret}", token


def write(path: Path, tokens: Tokens) -> None:
    """Write a tokens file that only its owner may read.

    Raises:
        InputError: It cannot be written, or would not be read back.
    """
    check(tokens, str(path))
    write_bytes(path, msgspec.yaml.encode(tokens))
    path.chmod(0o600)
