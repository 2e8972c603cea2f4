"""A repository is a folder that somebody else may have had in hands."""

import json
import os
from pathlib import Path

import pytest

from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file
from loadslice.spec.repository import Model, check_name, files_of, find_model

PIPELINE = """
version: 1
pipeline: m
engines: {ort: {backend: onnxruntime}}
stages: [{name: work, model: models/a.onnx, engine: ort}]
"""


def write_version(repo: Path, version: str, pipeline: str = PIPELINE, name: str = "m", **more: bytes) -> Path:
    folder = repo / name / version
    (folder / "models").mkdir(parents=True)
    (folder / "pipeline.yaml").write_text(pipeline)
    (folder / "models" / "a.onnx").write_bytes(b"weights of " + version.encode())
    (folder / "golden.npz").write_bytes(b"answers")
    for path, data in more.items():
        (folder / path.replace("__", "/")).write_bytes(data)
    files = {
        path.relative_to(folder).as_posix(): {"sha256": sha256_file(path), "size_bytes": path.stat().st_size}
        for path in folder.rglob("*")
        if path.is_file()
    }
    head = {"schema": "repository/1", "name": name, "version": version, "files": files}
    (folder / "manifest.json").write_text(json.dumps(head))
    return folder


@pytest.fixture
def model(tmp_path) -> Model:
    for version in ("1", "2", "10"):
        write_version(tmp_path, version)
    return Model(tmp_path / "m")


def test_versions_are_listed_as_numbers_count(model) -> None:
    (model.folder / ".adding-x").mkdir()
    (model.folder / "no manifest").mkdir()
    assert model.versions() == ["1", "2", "10"]


def test_a_switch_remembers_what_served_before_and_a_rollback_returns_to_it(model) -> None:
    assert model.current() is None
    for version in ("1", "2", "10", "10"):
        model.use(version)
    assert (model.current().version, model.current().previous) == ("10", ["1", "2"])
    assert model.roll_back().version == "2"
    assert Model(model.folder).roll_back().version == "1"
    with pytest.raises(InputError, match="no version before"):
        model.roll_back()


def test_a_switch_to_a_version_that_is_not_there_changes_nothing(model) -> None:
    model.use("1")
    with pytest.raises(InputError, match=r"no version '3' \(1, 2, 10\)"):
        model.use("3")
    assert model.current().version == "1"


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "",
        "a/../../b",
        "/etc",
        "%2e%2e/x",
        "a\0b",
        "\u2025",
        "\uff0e\uff0e",
        ".hidden",
        "a b",
        "x" * 65,
        "a\\b",
        "-rf",
        "a\n",
    ],
)
def test_a_name_is_never_a_path_on_any_verb(model, name) -> None:
    with pytest.raises(InputError, match="use 1 to 64"):
        check_name(name, "version")
    for verb in (model.use, model.manifest, model.version_folder, lambda one: model.verify(one, allow_code=True)):
        with pytest.raises(InputError):
            verb(name)
    assert model.current() is None


def test_a_whole_version_verifies(model) -> None:
    assert model.verify("2", allow_code=False).stages[0].name == "work"


def test_a_byte_that_changed_is_found(model) -> None:
    path = model.folder / "2" / "models" / "a.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"3")
    with pytest.raises(InputError, match=r"'models/a.onnx' is not the file that was added"):
        model.verify("2", allow_code=False)
    model.verify("1", allow_code=False)


def test_a_file_too_many_and_one_too_few_are_found(model) -> None:
    (model.folder / "2" / "extra.json").write_text("{}")
    with pytest.raises(InputError, match=r"'extra.json' is not in the manifest"):
        model.verify("2", allow_code=False)
    (model.folder / "1" / "models" / "a.onnx").unlink()
    with pytest.raises(InputError, match=r"'models/a.onnx' is missing"):
        model.verify("1", allow_code=False)


def test_links_out_and_second_names_of_files_elsewhere_are_refused(model, tmp_path) -> None:
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(b"weights of 2")
    path = model.folder / "2" / "models" / "a.onnx"
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(InputError, match="is a link"):
        model.verify("2", allow_code=False)
    path.unlink()
    os.link(secret, path)
    with pytest.raises(InputError, match="hard link"):
        model.verify("2", allow_code=False)
    (model.folder / "1" / "models" / "a.onnx").unlink()
    (model.folder / "1" / "models").rmdir()
    (model.folder / "1" / "models").symlink_to(tmp_path)
    with pytest.raises(InputError, match="is a link"):
        model.verify("1", allow_code=False)


def test_a_pipe_is_no_file(model) -> None:
    os.mkfifo(model.folder / "1" / "pipe.json")
    with pytest.raises(InputError, match="no file"):
        files_of(model.folder / "1")


def test_code_is_refused_unless_it_is_allowed(tmp_path) -> None:
    text = PIPELINE.replace("model: models/a.onnx", "python: 'stages:work'").replace("onnxruntime", "python")
    folder = write_version(tmp_path, "1", text, **{"stages.py": b"print('loaded')"})
    model = Model(tmp_path / "m")
    with pytest.raises(InputError, match=r"'stages.py': a version holds ONNX"):
        model.verify("1", allow_code=False)
    assert model.verify("1", allow_code=True).stages[0].python == "stages:work"
    (folder / "stages.py").unlink()
    head = json.loads((folder / "manifest.json").read_text())
    del head["files"]["stages.py"]
    (folder / "manifest.json").write_text(json.dumps(head))
    with pytest.raises(InputError, match=r"stages\[0\].python"):
        model.verify("1", allow_code=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("models/a.onnx", "../1/models/a.onnx"),
        ("models/a.onnx", "/etc/passwd"),
        ("models/a.onnx", "package:onnx/backend/test/a.onnx"),
        ("models/a.onnx", "models/a.pt"),
        ("models/a.onnx", "models/a.pkl"),
        ("models/a.onnx", "models\\\\a.onnx"),
        ("backend: onnxruntime", "backend: twin, options: {times: ../../t.json}"),
        ("backend: onnxruntime", "backend: openvino, options: {CACHE_DIR: /tmp/elsewhere}"),
    ],
)
def test_a_pipeline_that_reaches_outside_its_version_is_refused(tmp_path, old, new) -> None:
    write_version(tmp_path, "1", PIPELINE.replace(old, new))
    with pytest.raises(InputError, match=r"outside the version's folder|neither ONNX nor safetensors"):
        Model(tmp_path / "m").verify("1", allow_code=True)


def test_the_manifest_of_another_version_is_refused(model) -> None:
    other = (model.folder / "1" / "manifest.json").read_bytes()
    (model.folder / "2" / "manifest.json").write_bytes(other)
    with pytest.raises(InputError, match="is that of 'm' version '1'"):
        model.verify("2", allow_code=False)


def test_files_of_other_kinds_are_refused_even_when_the_manifest_names_them(tmp_path) -> None:
    write_version(tmp_path, "1", **{"weights.pt": b"x"})
    with pytest.raises(InputError, match=r"not '.pt' files"):
        Model(tmp_path / "m").verify("1", allow_code=True)


def test_a_repository_with_one_model_means_that_model(model, tmp_path) -> None:
    with pytest.raises(InputError, match="no model here has a current version"):
        find_model(tmp_path)
    model.use("1")
    assert find_model(tmp_path).name == find_model(model.folder).name == "m"
    write_version(tmp_path, "1", name="n", pipeline=PIPELINE.replace("pipeline: m", "pipeline: n"))
    Model(tmp_path / "n").use("1")
    with pytest.raises(InputError, match="holds m, n"):
        find_model(tmp_path)
    assert find_model(tmp_path / "m" / "1" / "pipeline.yaml") is None


def test_a_damaged_pointer_is_one_line(model) -> None:
    model.use("1")
    (model.folder / "current.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        model.current()
