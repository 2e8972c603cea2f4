from types import SimpleNamespace
from typing import Any

import pytest

from loadslice.app import study_offers


def test_on_a_crowded_machine_no_fleet_is_sought(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: Any = SimpleNamespace(studied=[SimpleNamespace(table=object())], planned=None, not_planned=None)
    crowded = [SimpleNamespace(cpu=SimpleNamespace(others_utilisation=0.91)), SimpleNamespace(cpu=None)]
    monkeypatch.setattr(study_offers, "plan_reports", lambda _: crowded)
    study_offers.plan(found, None)  # type: ignore[arg-type]
    assert found.planned is None
    assert found.not_planned.startswith("other programs took up to 91% of this machine")
    assert "no fleet to buy is sought" in capsys.readouterr().err
