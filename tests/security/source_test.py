"""What no reader should have to look for: nothing that runs what it reads, and no limit that is none."""

import ast
import math
import re
from dataclasses import fields
from pathlib import Path

import msgspec
import onnx
import pytest

import loadslice
from loadslice.serve.limits import Limits
from loadslice.spec.access import Token
from loadslice.spec.pipeline import Batch, Breaker, Pipeline, Queue, Retry
from loadslice.spec.rollout import LatencyRule, MetricRule, OutputRule, RolloutPlan

SOURCE = Path(loadslice.__file__).parent
ROOT = Path(__file__).parents[2]
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_test.py")]

RUNS_WHAT_IT_READS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "torch"}
CALLS = {"eval", "exec", "compile", "__import__"}


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def test_nothing_that_runs_what_it_reads_is_imported() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): wrong
        for path in FILES
        if (wrong := imported(ast.parse(path.read_text(encoding="utf-8"))) & RUNS_WHAT_IT_READS)
    }
    assert found == {}


def test_nothing_evaluates_text_and_arrays_are_read_without_pickle() -> None:
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            place = f"{path.relative_to(SOURCE)}:{node.lineno}"
            # Text that stands in the source is no text that was read.
            is_literal = (
                all(isinstance(argument, ast.Constant) for argument in node.args) and ast.unparse(node.func) == "exec"
            )
            if isinstance(node.func, ast.Name) and node.func.id in CALLS and not is_literal:
                wrong.append(place)
            name = ast.unparse(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if name in ("np.load", "numpy.load") and keywords.get("allow_pickle", "False") != "False":
                wrong.append(place)
            if name == "yaml.load" and not keywords.get("Loader", "").startswith(("_UniqueKeys", "yaml.CSafeLoader")):
                wrong.append(place)
            if name.startswith("subprocess.") and keywords.get("shell", "False") != "False":
                wrong.append(place)
    assert wrong == []


def test_external_data_is_read_by_an_onnx_that_checks_it() -> None:
    assert tuple(int(part) for part in onnx.__version__.split(".")[:2]) >= (1, 21)


@pytest.mark.parametrize("field", [field.name for field in fields(Limits)])
def test_every_limit_of_the_front_is_a_number(field) -> None:
    value = getattr(Limits(), field)
    assert math.isfinite(value)
    assert 0 < value < 2**40


@pytest.mark.parametrize(
    ("kind", "unbounded"),
    [
        (Queue, {"overflow_at", "wait_limit_ms"}),  # when it overflows, not how long it may get
        (Batch, set()),
        (Breaker, {"slow_ms"}),
        (Retry, set()),
        (Token, set()),
        (RolloutPlan, set()),
        (OutputRule, set()),
        (LatencyRule, set()),
        (MetricRule, set()),
    ],
)
def test_no_default_means_unlimited(kind, unbounded) -> None:
    for field in msgspec.structs.fields(kind):
        if field.name in unbounded or field.default is msgspec.NODEFAULT:
            continue
        assert field.default is not None
        if isinstance(field.default, (int, float)):
            assert math.isfinite(field.default)
            assert field.default >= 0
    assert {field.name: field.default for field in msgspec.structs.fields(Pipeline)}["max_requests"] == 1024
    assert Queue().limit == 64


def test_every_test_that_the_security_page_names_is_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/.]+_test\.py)::(\w+)`", page)
    assert len(named) >= 30
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
