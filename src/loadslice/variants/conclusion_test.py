"""What a squeeze ends with: serve this, or keep what you have, and why."""

from typing import Any

import msgspec

from loadslice.spec.variant import MetricFigure, Scheme, Variant
from loadslice.variants.conclusion import conclude

FLOOR = "cosine>=0.99"
SCHEME = Scheme(weight_bits=16, activation_bits=16, tool="none")


def variant(**changes: Any) -> Variant:
    metric = MetricFigure(name="cosine", source=1.0, variant=changes.pop("metric", 0.999), labelled=False, inputs=8)
    bare = Variant(
        name="m-bf16", target="cpu-bf16", path=None, sha256=None, engine=None, scheme=SCHEME, speedup_vs_untuned=0.94,
        metric=metric, sqnr_db=None, shipped=False, why="", meets_floor=True,
    )  # fmt: skip
    return msgspec.structs.replace(bare, **changes)


def test_what_ships_is_to_be_served() -> None:
    told = conclude([variant(shipped=True, speedup_vs_untuned=1.9), variant()], FLOOR)
    assert told == "Serve m-bf16: 1.90x as fast as the model as it is, and it meets cosine>=0.99."


def test_right_but_not_faster_and_faster_but_wrong_are_told_apart() -> None:
    slow = conclude([variant()], FLOOR)
    assert slow == ("Keep the model as it is: what meets cosine>=0.99 is not faster here (the best, m-bf16, 0.94x).")
    wrong = conclude([variant(speedup_vs_untuned=3.0, meets_floor=False, metric=0.5)], FLOOR)
    assert wrong == "Keep the model as it is: nothing meets cosine>=0.99 (the best reaches 0.5000)."


def test_what_was_built_for_other_machines_is_no_reason_to_change_anything() -> None:
    told = conclude([variant(speedup_vs_untuned=None, meets_floor=None)], FLOOR)
    assert told == "Keep the model as it is: nothing that was built can be timed on this machine."
