from pathlib import Path

import pytest

from loadslice.spec import pipeline
from loadslice.spec.errors import InputError
from loadslice.spec.predicate import bounds

GOOD = """
version: 1
pipeline: demo
engines: {cpu0: {backend: onnxruntime}, npu0: {backend: openvino}}
stages:
  - {name: first, variant: a, engines: [npu0, cpu0], failover: {to: cpu0, share: 0.3}}
  - {name: second, variant: b, engine: cpu0}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_file_loads_in_execution_order(tmp_path: Path) -> None:
    swapped = GOOD.replace("variant: a,", "variant: a, after: second,").replace(
        "variant: b,", "variant: b, after: first,"
    )
    with pytest.raises(InputError, match="cycle"):
        pipeline.load(write(tmp_path, swapped))
    loaded = pipeline.load(write(tmp_path, GOOD))
    assert [stage.name for stage in loaded.stages] == ["first", "second"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("pipeline: demo", "pipeline: demo\nqueues: 3", "queues"),
        ("share: 0.3", "share: 1.5", "failover.share: 1.5"),
        ("to: cpu0", "to: gpu7", "'gpu7' is not an engine here"),
        ("to: cpu0", "to: npu0", "a cycle"),
        ("engines: [npu0, cpu0]", "engines: [npu9]", "'npu9' is not an engine here"),
        ("variant: b", "variant: b, timeout_ms: .nan", "timeout_ms"),
        ("variant: b, ", "", "one of python, model or variant"),
        ("name: second", "name: first", "already stage 0"),
        ("backend: openvino", "backend: openvino, max_inflight: 0", "engines.npu0.max_inflight: 0"),
        ("version: 1", "version: [1", "not valid YAML"),
        ("engine: cpu0", "engine: cpu0, prefer: rules", "go together"),
        ("engine: cpu0", "engine: cpu0, prefer: cheapest", "needs engines.cpu0.active_w"),
        ("engine: cpu0", "engine: cpu0, degraded: sorry", "not module:function"),
        ("engine: cpu0", "engine: cpu0, canary: {}", "one of python, model or variant"),
        ("engine: cpu0", "engine: cpu0, share: {npu0: 0.5}", "'npu0' is not an engine here"),
        ("engine: cpu0", "engine: cpu0, batch: {cpu0: {size: 4, pad_to: [2, 3]}}", "end at the size"),
        ("backend: onnxruntime", "backend: onnxruntime, memory_mb: 9", "give the stage memory_mb and load_ms"),
        ("pipeline: demo", "pipeline: demo\ntenants: {others: {share: 0.1}}", "stands for whoever is not named"),
        ("pipeline: demo", "pipeline: demo\ntenants: {a: {share: 0.6}, b: {share: 0.4}}", "leave 0.01"),
        ("pipeline: demo", "pipeline: demo\nrollout: {steps: [0.5, 0.1]}", "must rise"),
        ("pipeline: demo", "pipeline: demo\nclasses: {sheddable: {offline: true, floor: 0.5}}", "no floor"),
    ],
)
def test_a_fault_is_one_line_that_names_it(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        pipeline.load(write(tmp_path, GOOD.replace(old, new, 1)))
    assert says in str(caught.value)
    assert str(tmp_path / "pipeline.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(">8", (9, 2**62)), (">=8", (8, 2**62)), ("<8", (0, 7)), ("<=8", (0, 8)), ("8", (8, 8))],
)
def test_predicates_become_inclusive_bounds(text: str, expected: tuple[int, int]) -> None:
    assert bounds(text, "x") == expected
