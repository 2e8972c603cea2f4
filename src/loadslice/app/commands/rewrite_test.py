import json
from pathlib import Path

import onnx
import pytest

from loadslice.app.cli import run
from loadslice.graph.rewrites.rewrites_test import transformer_block


@pytest.fixture
def block(tmp_path: Path) -> Path:
    onnx.save(transformer_block(), tmp_path / "block.onnx")
    return tmp_path / "block.onnx"


def test_a_rewritten_model_is_written_with_its_proof(
    block: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "out" / "fused.onnx"
    asked = ["--pass", "lift-opset-20+fuse-gelu", "--pass", "fuse-layer-norm", "-o", str(out), "--json"]
    assert run(["rewrite", str(block), *asked]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [step["rewrite"] for step in report["steps"]] == ["lift-opset-20", "fuse-gelu", "fuse-layer-norm"]
    assert all(step["proof"]["relative"] <= step["tolerance"] for step in report["steps"])
    assert report["steps"][-1]["nodes_after"] == len(onnx.load(out).graph.node)


def test_the_list_names_every_rewrite(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rewrite", "--list", "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert names[0] == "static-shapes"
    assert "fuse-gelu" in names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["MODEL"], "needs MODEL, --pass and -o"),
        (["MODEL", "--pass", "fuse-gelu", "-o", "OUT"], "lift it first"),
        (["MODEL", "--pass", "fuse-magic", "-o", "OUT"], "no such rewrite"),
        (["MODEL", "--pass", "fuse-gelu", "-o", "MODEL"], "is the model itself"),
        (["MODEL", "--pass", "fold-constants", "--shape", "z=1x2", "-o", "OUT"], "no such input"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    block: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    before = block.read_bytes()
    places = {"MODEL": str(block), "OUT": str(tmp_path / "out.onnx")}
    assert run(["rewrite", *(places.get(part, part) for part in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert words in printed.err
    assert block.read_bytes() == before
    assert not (tmp_path / "out.onnx").exists()
