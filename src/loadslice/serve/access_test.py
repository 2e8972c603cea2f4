"""Tokens, scopes, rates and quotas, with time as a number."""

from datetime import UTC, datetime

import msgspec
import pytest

from loadslice.serve.access import Access, Usage, check_admin_secret, check_exposure, scope_of
from loadslice.serve.refusals import NS_PER_S, RefusalError
from loadslice.spec.access import Token, Tokens, make
from loadslice.spec.errors import InputError

NOW = datetime(2026, 5, 31, 23, 59, 0, tzinfo=UTC)


class Clocks:
    def __init__(self) -> None:
        self.wall_s = NOW.timestamp()
        self.ns = 0

    def go(self, by_s: float) -> None:
        self.wall_s += by_s
        self.ns += round(by_s * NS_PER_S)


def token(**options) -> tuple[str, Token]:
    return make("acme", scopes=options.pop("scopes", ["infer"]), now=NOW, **options)


def opened(*tokens: Token, secret: str | None = None) -> tuple[Access, Clocks]:
    clocks = Clocks()
    access = Access(
        Tokens(version=1, tokens=list(tokens)),
        admin_secret=secret,
        wall_s=lambda: clocks.wall_s,
        monotonic_ns=lambda: clocks.ns,
    )
    return access, clocks


def ask(access: Access, text: str | None, path: str = "/v2/models/m/infer") -> int:
    headers = {} if text is None else {"authorization": f"Bearer {text}"}
    try:
        access.caller(headers, path)
    except RefusalError as refusal:
        return refusal.status
    return 200


def test_a_valid_token_names_its_tenant_whatever_the_header_says() -> None:
    text, kept = token()
    access, _ = opened(kept)
    caller = access.caller({"authorization": f"bearer {text}"}, "/v2/models/m/infer")
    assert caller.headers({"x-loadslice-tenant": "somebody else"}) == {"x-loadslice-tenant": "acme"}


def test_unknown_wrong_expired_revoked_and_malformed_tokens_are_refused_with_the_same_words() -> None:
    text, kept = token(life_days=1)
    revoked_text, revoked = token()
    access, clocks = opened(kept, msgspec.structs.replace(revoked, revoked=True))
    other, _ = token()
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    answers = set()
    for given in (None, "", "x", other, wrong, revoked_text, text + "\u00e9", text.upper(), f" {text}", f"{text} "):
        with pytest.raises(RefusalError) as refused:
            access.caller({} if given is None else {"authorization": f"Bearer {given}"}, "/x")
        answers.add((refused.value.status, refused.value.text))
    assert ask(access, text) == 200
    clocks.go(86_400)
    with pytest.raises(RefusalError) as refused:
        access.caller({"authorization": f"Bearer {text}"}, "/x")
    answers.add((refused.value.status, refused.value.text))
    assert answers == {(401, "a valid token is needed")}


def test_a_token_in_another_scheme_is_no_credential() -> None:
    text, kept = token()
    access, _ = opened(kept)
    for value in (text, f"Basic {text}", f"Token {text}"):
        with pytest.raises(RefusalError, match="valid token"):
            access.caller({"authorization": value}, "/v2")


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/v2/health/live", None),
        ("/v2/health/ready", None),
        ("/v2/health/live/", "infer"),
        ("/metrics", "metrics"),
        ("/admin", "admin"),
        ("/admin/", "admin"),
        ("/admin/reload", "admin"),
        ("/administrator", "infer"),
        ("/v2", "infer"),
        ("/openapi.json", "infer"),
        ("/console", None),
        ("/console/", "metrics"),
        ("/console/data", "metrics"),
        ("/consoles", "infer"),
        ("/no/such/path", "infer"),
    ],
)
def test_every_path_but_health_asks_for_a_scope(path, scope) -> None:
    assert scope_of(path) == scope


def test_a_scope_that_the_token_lacks_is_forbidden() -> None:
    infer, kept = token()
    admin, admins = token(scopes=["admin"])
    access, _ = opened(kept, admins)
    assert [ask(access, infer, path) for path in ("/v2", "/metrics", "/admin/reload")] == [200, 403, 403]
    assert [ask(access, admin, path) for path in ("/v2", "/metrics", "/admin/reload")] == [403, 403, 200]


def test_beyond_the_burst_a_token_gets_its_rate_and_is_told_when_to_come_back() -> None:
    text, kept = token(rate_per_s=2, burst=3)
    access, clocks = opened(kept)
    assert [ask(access, text) for _ in range(5)] == [200, 200, 200, 429, 429]
    with pytest.raises(RefusalError) as refused:
        access.caller({"authorization": f"Bearer {text}"}, "/v2")
    assert refused.value.retry_after_ns == NS_PER_S // 2
    clocks.go(0.5)
    assert [ask(access, text) for _ in range(2)] == [200, 429]
    clocks.go(3600)
    assert [ask(access, text) for _ in range(4)] == [200, 200, 200, 429]


def test_a_quota_ends_with_the_day_and_the_month() -> None:
    text, kept = token(per_day=2, per_month=3, burst=100)
    access, clocks = opened(kept)
    assert [ask(access, text) for _ in range(3)] == [200, 200, 429]
    clocks.go(61)  # the first of June
    assert [ask(access, text) for _ in range(3)] == [200, 200, 429]
    clocks.go(86_400)
    assert [ask(access, text) for _ in range(2)] == [200, 429]  # the third of the month


def test_a_clock_that_is_set_back_and_forth_around_midnight_grants_no_quota_twice() -> None:
    text, kept = token(per_day=2, burst=100)
    access, clocks = opened(kept)
    clocks.go(3600)  # the first of June
    assert [ask(access, text) for _ in range(2)] == [200, 200]
    for by_s in (-3600, 3600, -3600, 3600):
        clocks.wall_s += by_s
        assert ask(access, text) == 429
    clocks.wall_s -= 400 * 86_400  # it was wrong by a year: that is no day of ours
    assert ask(access, text) == 200


def test_what_was_used_outlives_a_restart_and_a_reload() -> None:
    text, kept = token(per_day=3)
    access, _ = opened(kept)
    assert [ask(access, text) for _ in range(2)] == [200, 200]
    access.replace(Tokens(version=1, tokens=[kept]))
    again, _ = opened(kept)
    again.remember([*access.usage(), Usage("gone", 1, 1, 1, 1)])
    assert [ask(again, text) for _ in range(2)] == [200, 429]
    access.replace(Tokens(version=1))
    assert ask(access, text) == 401


def test_a_class_above_the_ceiling_is_refused_and_the_default_is_lowered() -> None:
    text, kept = token(ceiling="sheddable_plus")
    access, _ = opened(kept)
    caller = access.caller({"authorization": f"Bearer {text}"}, "/v2")
    assert caller.headers({})["x-loadslice-priority"] == "sheddable_plus"
    assert caller.headers({"x-loadslice-priority": "sheddable"})["x-loadslice-priority"] == "sheddable"
    for above in ("critical", "critical_plus", "0", "1"):
        with pytest.raises(RefusalError) as refused:
            caller.headers({"x-loadslice-priority": above})
        assert refused.value.status == 403


def test_without_tokens_everybody_may_infer_and_nobody_may_administer() -> None:
    access = Access(None)
    assert [ask(access, None, path) for path in ("/v2", "/metrics", "/admin/engines")] == [200, 200, 403]
    secret = "s" * 32
    access = Access(None, admin_secret=secret)
    assert ask(access, secret, "/admin/engines") == 200
    assert [ask(access, given, "/admin/engines") for given in (None, "", secret[:-1])] == [401, 401, 401]


def test_the_environments_secret_opens_administration_only() -> None:
    _, kept = token()
    secret = "s" * 32
    access, _ = opened(kept, secret=secret)
    assert [ask(access, secret, path) for path in ("/admin/engines", "/v2", "/metrics")] == [200, 401, 401]


@pytest.mark.parametrize(
    ("host", "has_tokens", "has_tls", "insecure", "fine"),
    [
        ("127.0.0.1", False, False, False, True),
        ("::1", False, False, False, True),
        ("localhost", False, False, False, True),
        ("127.8.8.8", False, False, False, True),
        ("0.0.0.0", False, False, False, False),
        ("::", True, False, False, False),
        ("192.0.2.1", False, True, False, False),
        ("0.0.0.0", True, True, False, True),
        ("0.0.0.0", False, False, True, True),
        ("localhost.example", False, False, False, False),
    ],
)
def test_beyond_loopback_needs_tokens_and_tls(host, has_tokens, has_tls, insecure, fine) -> None:
    if fine:
        check_exposure(host, has_tokens=has_tokens, has_tls=has_tls, insecure=insecure)
    else:
        with pytest.raises(InputError, match="others reach this address"):
            check_exposure(host, has_tokens=has_tokens, has_tls=has_tls, insecure=insecure)


def test_a_short_secret_in_the_environment_is_refused() -> None:
    assert check_admin_secret(None) is None
    assert check_admin_secret("") is None
    assert check_admin_secret("x" * 20) == "x" * 20
    for bad in ("x" * 19, "x" * 19 + " y", "x" * 19 + "\u00e9"):
        with pytest.raises(InputError, match="LOADSLICE_ADMIN_TOKEN"):
            check_admin_secret(bad)
