import pytest

from loadslice.app import admin_client, cli

IDLE = {
    "state": "idle", "step": 0, "weight": 0.0, "since": None, "decision": "inconclusive", "why": "none was started",
    "analysis": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("since", "first"),
    [
        (None, "idle, step 0, 0% of the traffic"),
        ("2026-11-30T10:15:01Z", "idle, step 0, 0% of the traffic, since 2026-11-30T10:15:01Z"),
    ],
)
def test_a_rollout_that_has_not_begun_has_no_since(
    since: str | None, first: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin_client, "done", lambda *_: IDLE | {"since": since})
    assert cli.run(["rollout", "status"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first
