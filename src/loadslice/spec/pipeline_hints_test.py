import msgspec
import pytest

from loadslice.spec.pipeline import Pipeline, check
from loadslice.spec.pipeline_hints import silent

WHOLE = """
version: 1
pipeline: p
rollout: {steps: [0.5, 1.0]}
engines:
  a: {backend: twin, queue: {overflow_at: 4, wait_limit_ms: 10}}
  b: {backend: twin}
stages:
  - {name: s, variant: v, canary: {variant: w}, engines: [a, b], prefer: fastest, batch: {a: {size: 4, window_ms: 2}}, failover: {to: b}}
"""  # noqa: E501


def told(text: str) -> list[str]:
    return silent(check(msgspec.yaml.decode(text, type=Pipeline), "p"))


def test_a_file_whose_keys_all_count_is_told_nothing() -> None:
    assert told(WHOLE) == []


@pytest.mark.parametrize(
    ("part", "instead", "place"),
    [
        (", failover: {to: b}", "", "engines.a.queue.overflow_at"),
        (", canary: {variant: w}", "", "rollout"),
        ("size: 4, window_ms", "size: 1, window_ms", "stages[0] 's'.batch.a.window_ms"),
        ("failover: {to: b}", "failover: {to: b, share: 0}", "stages[0] 's'.failover"),
        ("  b: {backend: twin}", "  b: {backend: twin}\n  c: {backend: twin}", "engines.c"),
        ("engines: [a, b]", "engines: [b, a]", None),
    ],
)
def test_a_key_without_effect_is_told_with_its_place(part: str, instead: str, place: str | None) -> None:
    assert part in WHOLE
    text = WHOLE.replace(part, instead)
    if place is None:
        text = text.replace("to: b}", "to: a}")
    lines = told(text)
    assert [line for line in lines if place is None or not line.startswith(f"{place}:")] == (
        ["engines.a.queue.wait_limit_ms: has no effect, no stage of this engine has a `failover`."]
        if place == "engines.a.queue.overflow_at"
        else []
    )
    assert place is None or any(line.startswith(f"{place}:") for line in lines)
