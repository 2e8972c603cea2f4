from pathlib import Path

import pytest

from loadslice.app.drill_field import Field
from loadslice.app.drill_versions import _copied, _models
from loadslice.spec import pipeline as pipelines

PIPELINE = """
version: 1
pipeline: p
engines: {cpu: {backend: onnxruntime}}
stages:
  - {name: find, model: "package:drilled/find/model.onnx", engine: cpu}
  - {name: read, model: "package:drilled/read/model.onnx", engine: cpu}
"""


def test_models_of_packages_keep_apart_though_their_files_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in ("find", "read"):
        model = tmp_path / "site" / "drilled" / name / "model.onnx"
        model.parent.mkdir(parents=True)
        model.write_text(name)
    (tmp_path / "site" / "drilled" / "__init__.py").touch()
    path = tmp_path / "mine" / "p.yaml"
    path.parent.mkdir()
    path.write_text(PIPELINE)
    copy = _copied(Field(path, pipelines.load(path), None, 0), tmp_path / "copy")
    stages = pipelines.load(copy / "pipeline.yaml").stages
    assert [(copy / str(stage.model)).read_text() for stage in stages] == ["find", "read"]


def test_the_version_that_is_altered_differs_in_its_last_model_for_earlier_ones_steer_the_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "pipeline.yaml").write_text(
        "version: 1\npipeline: p\nengines: {cpu: {backend: onnxruntime}}\n"
        "stages:\n  - {name: find, model: find.onnx, engine: cpu}\n  - {name: read, model: read.onnx, engine: cpu}\n"
    )
    for name in ("find", "read"):
        (tmp_path / f"{name}.onnx").touch()
    assert [path.name for path in _models(tmp_path)] == ["read.onnx", "find.onnx"]
