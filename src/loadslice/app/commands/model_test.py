"""`loadslice model` on real models: added, verified, switched, rolled back; what is corrupt never becomes current."""

import contextlib
import errno
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loadslice.app import admin_client
from loadslice.app.cli import run
from loadslice.app.repository import check_safetensors
from loadslice.serve.golden import Golden, distance, relative_distance
from loadslice.serve.rollout_record import Record, write
from loadslice.serve.state_file import StateFile
from loadslice.spec.errors import InputError
from loadslice.spec.files import sha256_file

PIPELINE = """
version: 1
pipeline: m
engines: {ort: {backend: onnxruntime}, ov: {backend: openvino}}
stages: [{name: work, model: a.onnx, engines: [ort, ov]}]
"""


def write_model(folder: Path, factor: float, *, external: bool = False) -> None:
    """y = x @ w."""
    weights = np.full((4, 4), factor, np.float32) + np.eye(4, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "a.onnx", save_as_external_data=external, location="a.data", size_threshold=0)
    (folder / "pipeline.yaml").write_text(PIPELINE)


@pytest.fixture
def source(tmp_path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write_model(folder, 1.0)
    return folder


@pytest.fixture
def repo(tmp_path, source) -> Path:
    repo = tmp_path / "repo"
    for factor in (1.0, 1.5):
        write_model(source, factor)
        assert run(["model", "add", str(repo), str(source / "pipeline.yaml")]) == 0
    assert run(["model", "use", str(repo), "m", "1"]) == 0
    return repo


def said(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def current(repo: Path) -> str:
    return json.loads((repo / "m" / "current.json").read_text())["version"]


def test_versions_are_added_listed_used_and_rolled_back(repo, capsys) -> None:
    capsys.readouterr()
    assert run(["model", "use", str(repo), "m", "2", "--json"]) == 0
    assert said(capsys)["previous"] == ["1"]
    assert run(["model", "list", str(repo), "--json"]) == 0
    assert said(capsys)["models"] == [{"name": "m", "versions": ["1", "2"], "current": "2", "previous": ["1"]}]
    assert run(["model", "rollback", str(repo), "m"]) == 0
    assert current(repo) == "1"


@pytest.mark.parametrize("asked", ["the state file", "the server"])
def test_a_version_that_a_rollout_took_back_is_used_with_a_word(asked, repo, capsys, monkeypatch) -> None:
    record = Record(state="rolled_back", candidate="2", since="2026-11-30T10:15:01Z", why="answers otherwise")
    url = []
    if asked == "the server":
        url = ["--url", "http://127.0.0.1:8000"]
        told = {name: getattr(record, name) for name in ("state", "candidate", "since", "why")}
        monkeypatch.setattr(admin_client, "done", lambda *_: told)
    else:
        with contextlib.closing(StateFile(repo / "m" / ".state" / "server.sqlite")) as file:
            write(file, record, "").result()
    capsys.readouterr()
    assert run(["model", "use", str(repo), "m", "2", *url]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert "version 2 was rolled back by a rollout at 2026-11-30T10:15:01Z: answers otherwise" in line
    assert current(repo) == "2"
    assert run(["model", "use", str(repo), "m", "1", *url]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_candidate_gets_what_is_true_now() -> None:
    record = Record(state="rolled_back", candidate="2")
    assert [record.weight([0.05], serves) for serves in ("1", "2")] == [0.0, 1.0]
    assert Record(state="running", candidate="2", step=1).weight([0.05], "1") == 0.05
    assert Record(state="promoted").weight([0.05], None) == 1.0


def test_weights_in_a_file_beside_the_model_come_along(tmp_path, source) -> None:
    write_model(source, 2.0, external=True)
    repo = tmp_path / "other"
    assert run(["model", "add", str(repo), str(source / "pipeline.yaml")]) == 0
    assert (repo / "m" / "1" / "models" / "a.data").stat().st_size == 64
    assert run(["model", "verify", str(repo), "m", "1"]) == 0


def test_a_corrupt_version_is_not_used_and_the_old_one_stays(repo, capsys) -> None:
    path = repo / "m" / "2" / "models" / "a.onnx"
    path.write_bytes(path.read_bytes()[:-4])
    capsys.readouterr()
    assert run(["model", "use", str(repo), "m", "2", "--json"]) == 3
    answer = said(capsys)
    assert (answer["done"], answer["current"]) == (False, "1")
    assert "SHA-256" in answer["why"]
    assert current(repo) == "1"
    assert run(["model", "verify", str(repo), "m", "2"]) == 3


def test_a_version_that_answers_otherwise_than_it_did_is_not_used(repo, capsys) -> None:
    """As if its runtime had changed: every hash is right, the answers are those of another model."""
    folder = repo / "m" / "2"
    (folder / "golden.npz").write_bytes((repo / "m" / "1" / "golden.npz").read_bytes())
    head = json.loads((folder / "manifest.json").read_text())
    head["files"]["golden.npz"] = {
        "sha256": sha256_file(folder / "golden.npz"),
        "size_bytes": (folder / "golden.npz").stat().st_size,
    }
    (folder / "manifest.json").write_text(json.dumps(head))
    capsys.readouterr()
    assert run(["model", "use", str(repo), "m", "2", "--json"]) == 3
    assert "answered otherwise" in said(capsys)["why"]
    assert current(repo) == "1"


def test_a_model_whose_data_lies_outside_its_folder_is_not_added(tmp_path, source, capsys) -> None:
    write_model(source, 2.0, external=True)
    (tmp_path / "a.data").write_bytes((source / "a.data").read_bytes())
    model = onnx.load(source / "a.onnx", load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../a.data"
    (source / "a.onnx").write_bytes(model.SerializeToString())
    assert run(["model", "add", str(tmp_path / "other"), str(source / "pipeline.yaml")]) == 2
    assert "external data" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("what", ["copyfile", "mkdir"])
def test_a_disk_that_is_full_is_one_line_and_leaves_no_folder_behind(
    tmp_path, source, capsys, monkeypatch, what
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if what == "copyfile":
        monkeypatch.setattr(shutil, "copyfile", full)
    else:
        monkeypatch.setattr(tempfile, "mkdtemp", full)
    assert run(["model", "add", str(tmp_path / "new" / "repo"), str(source / "pipeline.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the disk is full" in line
    assert not (tmp_path / "new" / "repo").exists()


def test_a_version_is_never_overwritten(repo, source, capsys) -> None:
    before = sha256_file(repo / "m" / "1" / "manifest.json")
    assert run(["model", "add", str(repo), str(source / "pipeline.yaml"), "--version", "1"]) == 2
    assert sha256_file(repo / "m" / "1" / "manifest.json") == before


@pytest.mark.parametrize("name", ["..", "a/b", "/tmp", "%2e%2e"])
def test_names_that_are_paths_are_refused_by_every_verb(repo, source, name) -> None:
    for verb in (["verify", str(repo), name], ["use", str(repo), name, "1"], ["rollback", str(repo), name]):
        assert run(["model", *verb]) == 2
    assert run(["model", "use", str(repo), "m", name]) == 2
    assert run(["model", "add", str(repo), str(source / "pipeline.yaml"), "--version", name]) == 2


def test_golden_answers_of_another_kind_of_file_are_refused(tmp_path) -> None:
    path = tmp_path / "golden.npz"
    for data in (b"", b"PK\x03\x04", b"\x80\x04K\x01."):
        path.write_bytes(data)
        with pytest.raises(InputError, match="not golden answers"):
            Golden(path)
    np.savez(path, allow_pickle=True, **{"head.json": np.array([{"a": 1}], object)})
    with pytest.raises(InputError, match="not golden answers"):
        Golden(path)


def test_distances() -> None:
    kept = np.array([3.0, 4.0], np.float32)
    assert relative_distance(kept, kept) == 0
    assert relative_distance(kept * np.float32(1.02), kept) == pytest.approx(0.02, rel=1e-4)
    assert relative_distance(kept[:1], kept) == np.inf
    assert relative_distance(np.array([np.nan, 4]), np.array([np.nan, 4])) == 0
    assert relative_distance(np.array([np.nan, 4]), np.array([3.0, 4])) == np.inf
    assert relative_distance(np.array(["a"]), np.array(["b"])) == np.inf
    assert relative_distance(np.array([1]), np.array([2])) == np.inf
    assert distance({"y": kept}, {"z": kept}) == np.inf
    assert distance({"y": np.array(["a"], object)}, {"y": np.array(["a"])}) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a":{}}x',
        (38).to_bytes(8, "little") + b'{"a":{"data_offsets":[0,999999999999]}}'[:38],
        (36).to_bytes(8, "little") + b'{"a":{"data_offsets":[-9,4]}}       ' + b"1234",
    ],
)
def test_what_is_not_safetensors_is_refused(tmp_path, data) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError):
        check_safetensors(path)


def test_safetensors_are_known_by_their_head(tmp_path) -> None:
    head = b'{"__metadata__":{},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"1234")
    check_safetensors(path)
