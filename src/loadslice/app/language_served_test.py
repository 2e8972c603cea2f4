"""What a served load says of steps: whom they ran beside, and what the way to the server took."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from loadslice.app.language_served import ServedStep, held_by, shared_ns


def test_time_beside_others_is_added_up() -> None:
    spans = np.array([[0, 10], [5, 25], [100, 110], [12, 13]])
    others = np.array([[20, 30], [4, 8], [10, 12]])
    assert shared_ns(spans, others).tolist() == [4.0, 3 + 2 + 5, 0.0, 0.0]
    assert shared_ns(spans, np.zeros((0, 2), np.int64)).tolist() == [0.0] * 4


def test_a_step_is_expected_to_be_longer_by_as_much_of_it_as_another_engine_computes() -> None:
    def step(engine: int, began_ns: int, ended_ns: int) -> ServedStep:
        return ServedStep(
            engine=engine, prompt_tokens=1, rows=2, pairs=3, prompt_pairs=4, began_ns=began_ns, ended_ns=ended_ns
        )

    profile: Any = SimpleNamespace(beside={"a": {"b": 0.5}, "b": {"a": 0.0}})
    held = held_by([step(0, 0, 10_000_000), step(1, 5_000_000, 30_000_000)], profile, ["a", "b"])
    assert held["a"][0].company == 1.25
    assert held["b"][0].company == 1.0
    assert held["b"][0].took_ms == 25.0
    assert held["a"][0][:4] == (1, 2, 3, 4)
