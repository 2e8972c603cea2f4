"""Parts of a model as stages, and stages shared by two engines, answer what the whole answers."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.app.slice_stages import carries
from loadslice.app.twins import resolved
from loadslice.backends.base import open_backend
from loadslice.graph.specimen import transformer
from loadslice.profiles.chain import close, open_steps, walk
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Pipeline, check
from loadslice.spec.work import Sample, Tensor


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pipeline(engines: dict[str, Any], *stages: dict[str, Any]) -> Pipeline:
    document = {"version": 1, "pipeline": "p", "engines": engines, "stages": list(stages)}
    return check(msgspec.convert(document, Pipeline), "p.yaml")


CPU = {"a": {"backend": "onnxruntime"}, "b": {"backend": "onnxruntime"}}


def answers(given: Pipeline, folder: Path, feeds: dict[str, Tensor]) -> dict[str, Tensor]:
    steps = open_steps(resolved(given, folder), folder)
    try:
        return walk(Sample("one", "", b"", tensors=feeds), steps)[-1].tensors
    finally:
        close(steps)


def write_transformer(folder: Path) -> dict[str, Tensor]:
    onnx.save(transformer(), folder / "t.onnx")
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 2, (2, 9)) for name in ("ids", "mask")}


def test_a_transformer_in_three_parts_on_two_engines_is_equal_to_the_whole(tmp_path: Path) -> None:
    feeds = write_transformer(tmp_path)
    whole = answers(pipeline(CPU, {"name": "w", "model": "t.onnx", "engine": "a"}), tmp_path, feeds)
    parts = pipeline(
        CPU,
        {"name": "x", "model": "t.onnx", "to": "h1", "engine": "a"},
        {"name": "y", "model": "t.onnx", "from": "h1", "to": "h2", "engine": "b"},
        {"name": "z", "model": "t.onnx", "from": "h2", "engine": "a"},
    )
    found = answers(parts, tmp_path, feeds)
    assert list(found) == list(whole)
    np.testing.assert_allclose(found["h3"], whole["h3"], rtol=1e-5, atol=1e-6)
    assert [stage.carry for stage in resolved(parts, tmp_path).stages] == [["mask"], ["mask"], []]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"to": "nothing"}, r"'x'.to: no operator of .*'nothing'.*Legal cuts are at"),
        ({"to": "mask"}, r"'x'.to: no operator"),
        ({"from": "h2", "to": "h1"}, r"'h1' does not depend on 'h2'"),
        ({"to": "h2"}, r"'y'.from must be 'x'.to \(h2\)"),
        ({"to": "h1", "model": None, "variant": "v"}, r"stages\[0\]: from and to name a part"),
    ],
)
def test_parts_that_make_no_whole_are_refused_with_what_would(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    write_transformer(tmp_path)
    first = {"name": "x", "model": "t.onnx", "to": "h1", "engine": "a"} | change
    second = {"name": "y", "model": "t.onnx", "from": "h1", "engine": "b"}
    with pytest.raises(InputError, match=said):
        resolved(pipeline(CPU, {k: v for k, v in first.items() if v is not None}, second), tmp_path)


def test_what_a_later_part_reads_passes_those_between_by() -> None:
    reads, gives = [["x", "m"], ["a"], ["b", "m"]], [["a", "o"], ["b"], ["c"]]
    assert carries(reads, gives, ["o", "c"]) == [["m"], ["m", "o"], ["o"]]


def write_gemm(folder: Path, rows: int | str = "n") -> None:
    rng = np.random.default_rng(0)
    stored = [numpy_helper.from_array(rng.standard_normal((6, 10), np.float32), "w")]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 10])],
        stored,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "g.onnx")


BANKS = {"n.bank0": {"backend": "onnxruntime"}, "n.bank1": {"backend": "onnxruntime"}}


def shared(by: str) -> Pipeline:
    return pipeline(BANKS, {"name": "s", "model": "g.onnx", "engines": [{"split": by, "on": ["n.bank0", "n.bank1"]}]})


@pytest.mark.parametrize("by", ["batch", "channel"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_two_banks_give_what_one_engine_gives(tmp_path: Path, by: str, rows: int) -> None:
    write_gemm(tmp_path)
    feeds = {"x": np.random.default_rng(1).standard_normal((rows, 6), np.float32)}
    whole = answers(pipeline(CPU, {"name": "w", "model": "g.onnx", "engine": "a"}), tmp_path, feeds)
    found = answers(shared(by), tmp_path, feeds)
    np.testing.assert_allclose(found["y"], whole["y"], rtol=1e-6, atol=1e-6)


def test_both_banks_work_and_what_joining_takes_is_told_apart(tmp_path: Path) -> None:
    write_gemm(tmp_path)
    engine = resolved(shared("channel"), tmp_path).engines["n.bank0+n.bank1"]
    session = open_backend("split").load(tmp_path / "g.onnx", engine)
    session.run({"x": np.ones((4, 6), np.float32)})
    assert session.hand_over_ns(0) > 0
    assert [info.shape for info in session.outputs] == [(None, 10)]
    assert session.describe()["device"] == "CPUExecutionProvider + CPUExecutionProvider"
    session.close()


def test_two_emulated_banks_have_sheets_of_their_halves(tmp_path: Path) -> None:
    write_gemm(tmp_path)
    banks = {
        name: {
            "backend": "twin",
            "device": "rockchip-rk3588-npu",
            "precision": "int8",
            "options": {"assume_supported": True},
        }
        for name in BANKS
    }
    given = pipeline(
        banks,
        {
            "name": "s",
            "model": "g.onnx",
            "engines": [{"split": "batch", "on": list(BANKS)}],
            "batch": {"n.bank0+n.bank1": {"size": 8, "pad_to": [8]}},
        },
    )
    engine = resolved(given, tmp_path, keeps_time=False).engines["n.bank0+n.bank1"]
    rows = [[one.rows for one in sheet.times] for part in engine.parts.values() for sheet in part.sheets.values()]
    assert rows == [[4], [4]]


@pytest.mark.parametrize(
    ("engines", "stage", "said"),
    [
        (
            BANKS,
            {"engines": ["n.bank0", {"split": "batch", "on": list(BANKS)}]},
            "shares this stage and serves another",
        ),
        (BANKS, {"engines": [{"split": "batch", "on": ["n.bank0", "n.bank9"]}]}, "'n.bank9' is not an engine"),
        (BANKS, {"engines": [{"split": "batch", "on": ["n.bank0", "n.bank0"]}]}, "two engines of the same"),
        (
            BANKS | {"n.bank1": {"backend": "onnxruntime", "isolation": "process"}},
            {"engines": [{"split": "batch", "on": list(BANKS)}]},
            "isolation: process is not for them",
        ),
    ],
)
def test_engines_that_cannot_share_are_refused(
    tmp_path: Path, engines: dict[str, Any], stage: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        pipeline(engines, {"name": "s", "model": "g.onnx"} | stage)


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    write_gemm(tmp_path, rows=4)
    with pytest.raises(InputError, match="built for one count of rows"):
        answers(shared("batch"), tmp_path, {"x": np.ones((4, 6), np.float32)})
    onnx.save(transformer(), tmp_path / "g.onnx")
    with pytest.raises(InputError, match=r"by channel two engines share one .* operators"):
        resolved(shared("channel"), tmp_path)
    with pytest.raises(InputError, match="not for a file to name"):
        open_backend("split").load(tmp_path / "g.onnx", Engine(backend="split"))
