from pathlib import Path

import numpy as np
import pytest

from loadslice.backends.base import open_backend
from loadslice.backends.python_stage import open_python_stage
from loadslice.spec.errors import InputError
from loadslice.spec.work import StageError, StageInputError, Work

CODE = """
import numpy as np
from loadslice.spec.work import StageInputError, Work

def double(work):
    return Work({"x": work.tensors["x"] * 2}, context=work.context)

def refuse(work):
    raise StageInputError("not an image")

def fail(work):
    return {}["no such key"]

def forget(work):
    pass

def ragged(work):
    return Work({"x": np.zeros(2), "y": np.zeros(3)})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(CODE)
    return tmp_path


def test_a_stage_changes_tensors_and_keeps_context(folder: Path) -> None:
    result = open_python_stage("stages:double", folder)(Work({"x": np.ones(3)}, context="kept"))
    assert result.tensors["x"].tolist() == [2, 2, 2]
    assert result.context == "kept"


def test_what_the_stage_refuses_is_the_clients_fault(folder: Path) -> None:
    with pytest.raises(StageInputError, match="not an image"):
        open_python_stage("stages:refuse", folder)(Work())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fail", "stages:fail: KeyError: 'no such key'"),
        ("forget", "stages:forget: returned NoneType, not Work"),
        ("ragged", "stages:ragged: tensor 'y' has 3 rows"),
    ],
)
def test_anything_else_that_goes_wrong_is_ours_and_names_the_stage(folder: Path, name: str, message: str) -> None:
    with pytest.raises(StageError, match=message) as caught:
        open_python_stage(f"stages:{name}", folder)(Work())
    assert not caught.value.client_fault


def test_backends_that_are_unknown_or_load_no_models_are_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match="'tpu' is not known"):
        open_backend("tpu")
    with pytest.raises(InputError, match="give the stage `python: module:function`"):
        open_backend("python")
