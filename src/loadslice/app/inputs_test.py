from pathlib import Path

import polars as pl

from loadslice.app.inputs import with_inputs
from loadslice.spec.pipeline import Engine, Pipeline, Stage

PIPELINE = Pipeline(
    version=1,
    pipeline="p",
    engines={"e": Engine(backend="python")},
    stages=[Stage(name="s", python="inp:samples", engine="e")],
    inputs="inp:samples",
)


def test_rows_are_named_by_the_module_only_where_every_size_is_known(tmp_path: Path) -> None:
    text = (
        "def samples():\n    return []\ndef assign(tokens):\n    return ['big' if t > 9 else 'small' for t in tokens]\n"
    )
    (tmp_path / "inp.py").write_text(text, encoding="utf-8")
    known = with_inputs(pl.DataFrame({"tokens_in": [1, 50]}), PIPELINE, tmp_path)
    assert known["input"].to_list() == ["small", "big"]
    assert "input" not in with_inputs(pl.DataFrame({"tokens_in": [1, None]}), PIPELINE, tmp_path).columns
