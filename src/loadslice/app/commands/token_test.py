"""`loadslice token` on files."""

import json

import pytest

from loadslice.app.cli import run
from loadslice.spec.access import digest, load, parts


def test_a_new_token_is_printed_once_and_only_its_hash_is_kept(tmp_path, capsys) -> None:
    file = tmp_path / "tokens.yaml"
    assert run(["token", "new", str(file), "--tenant", "acme", "--class", "sheddable", "--rate", "5"]) == 0
    text = capsys.readouterr().out.strip()
    identity, secret = parts(text)
    (kept,) = load(file).tokens
    assert (kept.id, kept.sha256, kept.ceiling, kept.rate_per_s, kept.burst) == (
        identity,
        digest(secret),
        "sheddable",
        5,
        5,
    )
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_a_revoked_token_stays_in_the_list_as_no_longer_valid(tmp_path, capsys) -> None:
    file = tmp_path / "tokens.yaml"
    for tenant in ("a", "b"):
        assert run(["token", "new", str(file), "--tenant", tenant]) == 0
    first = load(file).tokens[0].id
    assert run(["token", "revoke", str(file), first]) == 0
    capsys.readouterr()
    assert run(["token", "list", str(file), "--json"]) == 0
    assert [row["valid"] for row in json.loads(capsys.readouterr().out)["tokens"]] == [False, True]
    assert run(["token", "revoke", str(file), "nobody"]) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\ntokens: [{id: x}]", "tokens[0]"),
        ("version: 2", "version"),
        ("version: 1\ntoken: []", "token"),
        (
            "version: 1\ntokens: [{id: 0123456789ab, sha256: plain-secret, tenant: a, expires: 2027-01-01T00:00:00Z}]",
            "A secret does not belong here",
        ),
        (
            f"version: 1\ntokens: [{{id: 0123456789ab, sha256: {'a' * 64}, tenant: a, expires: 2027-01-01T00:00:00}}]",
            "time zone",
        ),
        (
            (
                f"version: 1\ntokens: [{{id: 0123456789ab, sha256: {'a' * 64}, tenant: a, "
                f"expires: 2027-01-01T00:00:00Z, rate_per_s: .inf}}]"
            ),
            "rate_per_s: inf is not between",
        ),
    ],
)
def test_a_bad_tokens_file_is_one_line_with_its_place(tmp_path, capsys, text, words) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text)
    assert run(["token", "list", str(file)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
