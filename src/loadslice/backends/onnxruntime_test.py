from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.backends import checks
from loadslice.backends.base import open_backend
from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine


def test_onnxruntime_keeps_the_contract(tmp_path: Path) -> None:
    checks.run_all(open_backend("onnxruntime"), tmp_path)


def test_slots_of_many_threads_have_sessions_of_their_own(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    session = open_backend("onnxruntime").load(
        model, Engine(backend="onnxruntime", threads=2, max_inflight=checks.SLOTS)
    )
    checks.slots_do_not_mix(session)
    assert session.describe()["threads"] == 2


def test_an_execution_provider_that_is_absent_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"no device 'rocm' here \(there are .*CPUExecutionProvider"):
        open_backend("onnxruntime").load(model, Engine(backend="onnxruntime", device="rocm"))


def test_a_device_may_be_named_short_or_whole(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    for device in (None, "cpu", "CPU", "CPUExecutionProvider"):
        session = open_backend("onnxruntime").load(model, Engine(backend="onnxruntime", device=device))
        assert session.describe()["device"] == "CPUExecutionProvider"


def test_runtime_options_reach_the_runtime(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    backend = open_backend("onnxruntime")
    backend.load(model, Engine(backend="onnxruntime", options={"session.set_denormal_as_zero": "1"}))
    with pytest.raises(InputError, match=r"m\.onnx: onnxruntime cannot load"):
        backend.load(model, Engine(backend="onnxruntime", options={"session.set_denormal_as_zero": "1" * 100_000}))


def test_a_precision_that_the_runtime_would_not_compute_is_refused(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    with pytest.raises(InputError, match="has no bf16"):
        open_backend("onnxruntime").load(model, Engine(backend="onnxruntime", precision="bf16"))


def test_graph_optimisation_can_be_turned_down_and_an_unknown_level_is_refused(tmp_path: Path) -> None:
    model = checks.write_model(tmp_path / "m.onnx")
    for level in ("none", "basic", "extended", "all"):
        engine = Engine(backend="onnxruntime", options={"graph_optimization_level": level})
        open_backend("onnxruntime").load(model, engine).close()
    wrong = Engine(backend="onnxruntime", options={"graph_optimization_level": "most"})
    with pytest.raises(InputError, match="graph_optimization_level: 'most' is none of none, basic, extended, all"):
        open_backend("onnxruntime").load(model, wrong)
