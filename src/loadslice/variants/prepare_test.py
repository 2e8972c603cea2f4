from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'squeeze' is not installed")

from loadslice.backends.base import open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine
from loadslice.variants import prepare, specimen


def run(path: Path, feeds: dict) -> dict:
    session = open_backend("onnxruntime").load(path, Engine(backend="onnxruntime"))
    return session.run(feeds)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return specimen.write_model(tmp_path / "m.onnx")


def test_the_prepared_model_answers_as_the_source_and_names_its_heavy_nodes(model: Path, tmp_path: Path) -> None:
    made = prepare.prepare(model, tmp_path / "p.onnx")
    assert sorted(made.kinds.values()) == ["Conv", "Conv", "Conv", "MatMul"]
    assert not made.attention
    assert made.product_share == pytest.approx(80 / (16 * 27 + 2 * 16 * 144 + 80))
    for feeds in specimen.inputs(3):
        np.testing.assert_allclose(run(made.path, feeds)["scores"], run(model, feeds)["scores"], atol=1e-6)


def test_a_fixed_copy_has_one_shape_and_the_same_answers(model: Path, tmp_path: Path) -> None:
    prepare.fix_shapes(model, tmp_path / "f.onnx", {"image": [1, 3, 16, 16]})
    dims = onnx.load(tmp_path / "f.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 3, 16, 16]
    feeds = {"image": np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype=np.float32)}
    np.testing.assert_allclose(run(tmp_path / "f.onnx", feeds)["scores"], run(model, feeds)["scores"], atol=1e-6)


@pytest.mark.parametrize(("shape", "message"), [([1, 4, 16, 16], "fixed at 3, given 4"), ([1, 3], "rank 4")])
def test_a_shape_that_contradicts_the_model_is_refused(
    model: Path, tmp_path: Path, shape: list[int], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        prepare.fix_shapes(model, tmp_path / "f.onnx", {"image": shape})
    assert not (tmp_path / "f.onnx").exists()


def test_layers_are_ranked_before_the_softmax(model: Path, tmp_path: Path) -> None:
    logits = prepare.before_saturation(model, tmp_path / "l.onnx")
    feeds = specimen.inputs(1)[0]
    (found,) = run(logits, feeds).values()
    scores = run(model, feeds)["scores"]
    np.testing.assert_allclose(np.exp(found) / np.exp(found).sum(), scores, rtol=1e-5)


def test_a_model_that_does_not_fit_into_memory_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.probe, "memory_limit_bytes", lambda: 1000)
    with pytest.raises(InputError, match=r"bytes of memory, 1000 are free"):
        prepare.check_memory(model)
