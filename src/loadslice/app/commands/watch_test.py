"""`watch` on samples that were kept, and what it refuses."""

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

pytest.importorskip("river", reason="the extra 'watch' is not installed")
pytest.importorskip("scipy", reason="the extra 'watch' is not installed")

from loadslice.app.admin_client import ADMIN_TOKEN
from loadslice.app.cli import run
from loadslice.app.watch_run import Watch, load_samples, written
from loadslice.spec.watch import Alert, Sample, Samples, Signal, WatchPlan, load_baseline

PLAN = WatchPlan(signals=[Signal(name="confidence", output="c", take="mean")], minimum=100)


def keep(path: Path, count: int, low: float, seed: int = 1, plan: WatchPlan = PLAN, pipeline: str = "p") -> Path:
    values = np.random.default_rng(seed).uniform(low, 1.0, count)
    head = Samples(plan=plan, pipeline=pipeline, basis="measured", taken=count, samples=[])
    path.write_bytes(written(head, [Sample(n, float(n), None, [float(v)]) for n, v in enumerate(values, 1)]))
    return path


@pytest.fixture
def well(tmp_path) -> Path:
    """A baseline of values from 0.5 to 1."""
    assert run(["watch", "baseline", str(keep(tmp_path / "s.jsonl", 1000, 0.5)), "--out", str(tmp_path / "well")]) == 0
    return tmp_path / "well/baseline.json"


def test_samples_as_in_the_baseline_end_well_and_others_with_exit_3(well, tmp_path, capsys) -> None:
    same = keep(tmp_path / "same.jsonl", 2000, 0.5, seed=2)
    assert run(["watch", "check", str(same), "--baseline", str(well)]) == 0
    assert "as in the baseline" in capsys.readouterr().out
    other = keep(tmp_path / "other.jsonl", 2000, 0.2, seed=3)
    assert run(["watch", "check", str(other), "--baseline", str(well), "--json", "--out", str(tmp_path / "o")]) == 3
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["firing"] >= 2
    assert {alert["state"] for alert in document["alerts"]} == {"firing"}
    assert {alert["said_utc"] for alert in document["alerts"]} == {None}, "nobody knows when these were taken"
    assert all(0 < alert["at_s"] <= 2000 for alert in document["alerts"]), "a sample's time, on the server's clock"
    assert all("confidence" in line for line in said.err.splitlines())
    assert json.loads((tmp_path / "o/watch.json").read_bytes()) == document


def test_an_alert_of_a_live_watch_says_when_it_was_said_whatever_clocks_count_from(well) -> None:
    heard: list[Alert] = []
    watch = Watch(load_baseline(well), [heard.append])
    began = datetime.now(UTC).replace(microsecond=0)
    watch.feed(load_samples(keep(well.with_name("other.jsonl"), 2000, 0.2, seed=3)).samples)
    assert heard
    assert all(began <= datetime.fromisoformat(alert.said_utc) <= datetime.now(UTC) for alert in heard)
    assert heard == watch.alerts


def test_fewer_samples_than_the_minimum_say_so_and_nothing_else(well, tmp_path, capsys) -> None:
    few = keep(tmp_path / "few.jsonl", 99, 0.0)
    assert run(["watch", "check", str(few), "--baseline", str(well)]) == 0
    assert "99 of 100 samples: nothing is said yet" in capsys.readouterr().out


def test_samples_come_back_as_they_were_kept(tmp_path) -> None:
    path = keep(tmp_path / "s.jsonl", 300, 0.5)
    found = load_samples(path)
    assert written(found, found.samples) == path.read_bytes()


def test_rules_for_prometheus_are_yaml_with_expressions(well, tmp_path, capsys) -> None:
    assert run(["watch", "rules", "--baseline", str(well), "--out", str(tmp_path / "r")]) == 0
    groups = yaml.safe_load((tmp_path / "r/loadslice-watch.rules.yaml").read_text())["groups"]
    assert groups[0]["name"] == "loadslice-p"
    assert all({"alert", "expr", "for"} <= rule.keys() for rule in groups[0]["rules"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["baseline", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["baseline", "bad.jsonl"], "bad.jsonl: not a file of samples"),
        (["baseline", "wide.jsonl"], "line 2: 2 values for 1 signals"),
        (["baseline", "few.jsonl"], "a baseline needs 100"),
        (["check", "alien.jsonl", "--baseline", "well/baseline.json"], "of pipeline 'p'"),
        (["run", "http://127.0.0.1:1", "--baseline", "well/baseline.json", "--for-s", "0"], "cannot be read"),
        (["run", "ftp://x", "--baseline", "well/baseline.json", "--for-s", "0"], "not like http"),
        (["run", "http://127.0.0.1:1", "--baseline", "well/baseline.json", "--tell", "x=y"], "give SIGNAL=METRIC"),
        (
            ["run", "http://127.0.0.1:1", "--baseline", "well/baseline.json", "--webhook", "x"],
            "--webhook 'x': not like http",
        ),
        (["rules", "--baseline", "s.jsonl"], "s.jsonl: "),
    ],
)
def test_bad_input_is_one_line(well, tmp_path, monkeypatch, capsys, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ADMIN_TOKEN, "a-secret-that-is-long-enough-for-anybody")
    Path("bad.jsonl").write_text("{}\n")
    head = Samples(plan=PLAN, pipeline="p", basis="measured", taken=1, samples=[])
    Path("wide.jsonl").write_bytes(msgspec.json.encode(head) + b"\n[1, 0.0, null, [1.0, 2.0]]\n")
    keep(Path("few.jsonl"), 50, 0.5)
    keep(Path("alien.jsonl"), 500, 0.5, pipeline="q")
    capsys.readouterr()
    assert run(["watch", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_watch_without_a_token_says_which_variable(well, monkeypatch, capsys) -> None:
    monkeypatch.delenv(ADMIN_TOKEN, raising=False)
    assert run(["watch", "run", "http://127.0.0.1:1", "--baseline", str(well)]) == 2
    assert ADMIN_TOKEN in capsys.readouterr().err
