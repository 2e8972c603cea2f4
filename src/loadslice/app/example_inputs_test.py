from pathlib import Path

import numpy as np
import pytest

from loadslice.app import example_inputs
from loadslice.app.drill_field import Field
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Pipeline, Stage, check

TENSORS_ONLY = check(
    Pipeline(
        version=1, pipeline="p", engines={"a": Engine(backend="onnxruntime")},
        stages=[Stage(name="s", model="m.onnx", engine="a")],
    ),
    "test",
)  # fmt: skip


def test_a_folder_gives_tensors_and_bodies_and_a_file_its_function(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in/one.npz", x=np.ones((2, 4), np.float32))
    (tmp_path / "in/two.txt").write_text("words")
    found = example_inputs.given(tmp_path / "in")
    assert list(found.samples) == ["one.npz", "two.txt"]
    assert found.samples["one.npz"].work().tensors["x"].shape == (2, 4)
    assert found.samples["two.txt"].content_type == "text/plain"
    (tmp_path / "mine.py").write_text(
        "from loadslice.spec.work import Sample\ndef samples():\n    return [Sample('a', 'text/plain', b'x')]\n"
    )
    assert list(example_inputs.given(tmp_path / "mine.py").samples) == ["a"]


def test_a_pipeline_of_tensors_without_inputs_is_drilled_on_a_folder_and_says_so_without_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.ones((2, 4), np.float32))
    assert Field(tmp_path / "p.yaml", TENSORS_ONLY, None, 1, examples=tmp_path).inputs().are_tensors
    with pytest.raises(InputError, match="--inputs DIR"):
        Field(tmp_path / "p.yaml", TENSORS_ONLY, None, 1).inputs()
