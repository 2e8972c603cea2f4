import pytest

from loadslice.app import admin_client, cli

IDLE = {
    "state": "idle", "step": 0, "weight": 0.0, "since": None, "decision": "inconclusive", "why": "none was started",
    "analysis": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("since", "first"),
    [
        (None, "idle"),
        ("2026-11-30T10:15:01Z", "idle, since 2026-11-30T10:15:01Z"),
    ],
)
def test_a_rollout_that_has_not_begun_has_no_since(
    since: str | None, first: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(admin_client, "done", lambda *_: IDLE | {"since": since})
    assert cli.run(["rollout", "status"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first


def test_a_version_that_was_rolled_back_and_chosen_since_is_said_to_serve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"state": "rolled_back", "candidate": "2", "serves": "2", "weight": 1.0}
    monkeypatch.setattr(admin_client, "done", lambda *_: IDLE | told)
    assert cli.run(["rollout", "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rolled_back"
    assert lines[2] == "version 2, the one of this rollout, serves all of the traffic now"
