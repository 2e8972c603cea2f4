"""Warming with a pipeline's own examples: a module that is broken is one readable line, not a traceback."""

from pathlib import Path

import pytest

from loadslice.serve.warm import run_examples
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Pipeline, Stage


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('boom')", "ValueError: boom"),
        ("return None", "gives NoneType"),
        ("raise SystemExit(0)", "fails"),
    ],
)
def test_an_inputs_function_that_fails_is_one_readable_line(tmp_path: Path, body: str, says: str) -> None:
    (tmp_path / "inp.py").write_text(f"def samples():\n    {body}\n", encoding="utf-8")
    pipeline = Pipeline(
        version=1,
        pipeline="p",
        engines={"e": Engine(backend="python")},
        stages=[Stage(name="s", python="inp:samples", engine="e")],
        inputs="inp:samples",
    )
    with pytest.raises(InputError, match=says):
        run_examples(pipeline, tmp_path, [])
