"""A plan out of range is refused with its key; a baseline that does not go with its plan is refused too."""

import json

import msgspec
import pytest

from loadslice.spec.errors import InputError
from loadslice.spec.watch import Baseline, Least, Operating, Signal, WatchPlan, check_plan, load_baseline, load_plan

SIGNAL = Signal(name="c", output="c", take="mean")
PLAN = WatchPlan(signals=[SIGNAL], minimum=100)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"signals": []}, "signals: one to 32"),
        ({"signals": [SIGNAL] * 2}, "'c' is there twice"),
        ({"signals": [Signal(name="", output="c", take="mean")]}, "printable"),
        ({"signals": [Signal(name="c", output="c", take="class", abstains_below=0.5)]}, "abstains_below"),
        ({"signals": [Signal(name=n, output="c", take="class") for n in "ab"]}, "more than one takes a class"),
        ({"minimum": 99}, "minimum: 99 is not between 100"),
        ({"samples_per_s": float("nan")}, "samples_per_s"),
        ({"false_alarm": 0.0}, "false_alarm"),
        ({"least": Least(ks=1.5)}, r"least\.ks"),
        ({"operating": Operating(latency_ratio=0.5)}, r"operating\.latency_ratio"),
    ],
)
def test_a_plan_out_of_range_is_refused_with_its_key(changes, words) -> None:
    with pytest.raises(InputError, match=words):
        check_plan(msgspec.structs.replace(PLAN, **changes), "watch.yaml")


def test_a_file_of_the_shortest_plan_has_all_defaults(tmp_path) -> None:
    (tmp_path / "watch.yaml").write_text("signals: [{name: c, output: c, take: mean}]\n")
    assert load_plan(tmp_path / "watch.yaml") == WatchPlan(signals=[SIGNAL])
    (tmp_path / "watch.yaml").write_text("signals: [{name: c, output: c, take: median}]\n")
    with pytest.raises(InputError, match=r"signals\[0\]\.take"):
        load_plan(tmp_path / "watch.yaml")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": [[0.5, 0.5]] * 200}, "each needs 1 values"),
        ({"rows": [[0.5]] * 99}, "99 answers are fewer than the minimum of 100"),
        ({"clumping": [0.5]}, "clumping"),
        ({"clumping": []}, "each needs 1 values"),
    ],
)
def test_a_baseline_that_was_changed_by_hand_is_refused(tmp_path, changes, words) -> None:
    well = Baseline(plan=PLAN, pipeline="p", basis="measured", taken=200, rows=[[0.5]] * 200, clumping=[1.0])
    path = tmp_path / "baseline.json"
    path.write_bytes(msgspec.json.encode(well))
    assert load_baseline(path) == well
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    with pytest.raises(InputError, match=words):
        load_baseline(path)
