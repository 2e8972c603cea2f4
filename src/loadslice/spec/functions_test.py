import sys
from pathlib import Path

import pytest

from loadslice.spec.errors import InputError
from loadslice.spec.functions import load_function


def test_a_function_is_found_beside_the_file_with_its_neighbours_and_leaves_sys_path_alone(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_answers.py").write_text("VALUE = 42\n")
    (tmp_path / "answers.py").write_text("from neighbour_of_answers import VALUE\ndef answer():\n    return VALUE\n")
    before = list(sys.path)
    assert load_function("answers:answer", tmp_path)() == 42
    assert sys.path == before


def test_a_module_is_loaded_once_and_folders_do_not_share_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stages.py").write_text(f"def who():\n    return '{name}'\n")
    first = load_function("stages:who", tmp_path / "a")
    assert load_function("stages:who", tmp_path / "a") is first
    assert load_function("stages:who", tmp_path / "b")() == "b"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("answers", "is not like 'module:function'"),
        ("../answers:f", "is not like 'module:function'"),
        ("absent:f", "no such file"),
        ("answers:absent", "has no function 'absent'"),
        ("answers:VALUE", "has no function 'VALUE'"),
        ("broken:f", "cannot be imported: SyntaxError"),
    ],
)
def test_a_reference_that_leads_nowhere_is_one_readable_line(tmp_path: Path, reference: str, message: str) -> None:
    (tmp_path / "answers.py").write_text("VALUE = 1\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(InputError, match=message):
        load_function(reference, tmp_path)
