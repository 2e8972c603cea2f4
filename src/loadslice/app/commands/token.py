"""`loadslice token`: make, list and revoke the tokens of a server."""

from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from loadslice.app.output import Finite, emit, json_option
from loadslice.spec import access
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import CLASSES, ClassName

_file = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@click.group("token")
def command() -> None:
    """Make, list and revoke the tokens of a server (`loadslice serve --tokens FILE`)."""


@command.command("new", epilog="Example: loadslice token new tokens.yaml --tenant acme --class sheddable --rate 20")
@_file
@click.option("--tenant", required=True, help="Whom its requests count for.")
@click.option("--class", "ceiling", type=click.Choice(CLASSES), default="critical", show_default=True)
@click.option("--scope", "scopes", type=click.Choice(["infer", "metrics", "admin"]), multiple=True, default=["infer"])
@click.option("--rate", type=Finite(0.001, access.RATE_PER_S_MAX), default=100.0, show_default=True, help="Per second.")
@click.option("--burst", type=click.IntRange(1, 1_000_000), default=None, help="At once; default: one second's worth.")
@click.option("--per-day", type=click.IntRange(1, access.PER_DAY_MAX), default=1_000_000, show_default=True)
@click.option("--per-month", type=click.IntRange(1, access.PER_DAY_MAX), default=30_000_000, show_default=True)
@click.option("--days", type=Finite(0.01, 3650), default=float(access.LIFE_DAYS), show_default=True, help="It lives.")
@json_option
def new(
    file: Path,
    tenant: str,
    ceiling: ClassName,
    scopes: tuple[access.Scope, ...],
    rate: float,
    burst: int | None,
    per_day: int,
    per_month: int,
    days: float,
    as_json: bool,
) -> None:
    """Add a token to FILE (made if absent) and print it, once: the file keeps only its hash."""
    kept = access.load(file) if file.exists() else access.Tokens(version=1)
    text, token = access.make(
        tenant,
        scopes=list(scopes),
        ceiling=ceiling,
        rate_per_s=rate,
        burst=burst if burst is not None else max(1, round(rate)),
        per_day=per_day,
        per_month=per_month,
        life_days=days,
    )
    access.write(file, msgspec.structs.replace(kept, tokens=[*kept.tokens, token]))
    emit(
        {"token": text, "id": token.id, "tenant": tenant, "expires": token.expires.isoformat(), "file": str(file)},
        as_json=as_json,
        text=lambda: [text],
    )


@command.command("list", epilog="Example: loadslice token list tokens.yaml")
@_file
@json_option
def list_(file: Path, as_json: bool) -> None:
    """What is in FILE; never a secret, for it holds none."""
    tokens = access.load(file).tokens
    now = datetime.now(UTC)
    rows = [
        {
            "id": token.id,
            "tenant": token.tenant,
            "scopes": token.scopes,
            "ceiling": token.ceiling,
            "rate_per_s": token.rate_per_s,
            "per_day": token.per_day,
            "per_month": token.per_month,
            "expires": token.expires.isoformat(),
            "valid": _is_valid(token, now),
        }
        for token in tokens
    ]
    emit({"tokens": rows}, as_json=as_json, text=lambda: [_line(token, now) for token in tokens])


def _is_valid(token: access.Token, now: datetime) -> bool:
    return not token.revoked and token.expires > now


def _line(token: access.Token, now: datetime) -> str:
    scopes = ",".join(token.scopes)
    return (
        f"{token.id}  {token.tenant}  {scopes}  up to {token.ceiling}  {token.rate_per_s:g}/s  "
        f"until {token.expires.isoformat()}{'' if _is_valid(token, now) else '  no longer valid'}"
    )


@command.command("revoke", epilog="Example: loadslice token revoke tokens.yaml 1f2e3d4c5b6a && kill -HUP PID")
@_file
@click.argument("identity", metavar="ID")
@json_option
def revoke(file: Path, identity: str, as_json: bool) -> None:
    """Have a token refused; a running server takes note on SIGHUP or POST /admin/reload."""
    kept = access.load(file)
    if identity not in [token.id for token in kept.tokens]:
        raise InputError(
            f"{file}: no token '{identity:.40}'. `loadslice token list {file}` shows those that are there."
        )
    tokens = [msgspec.structs.replace(token, revoked=True) if token.id == identity else token for token in kept.tokens]
    access.write(file, msgspec.structs.replace(kept, tokens=tokens))
    emit({"id": identity, "revoked": True}, as_json=as_json, text=lambda: [f"revoked {identity}"])
