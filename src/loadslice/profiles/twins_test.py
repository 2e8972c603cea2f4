from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="the extra 'onnxruntime' is not installed")

from loadslice.backends import checks
from loadslice.profiles.measure import measure
from loadslice.spec.pipeline import Accept, Batch, Engine, Pipeline, Stage
from loadslice.spec.twin import TwinEngine, TwinSheet, TwinTime
from loadslice.spec.work import Sample

STAGE = Stage(
    name="s",
    model="checks.onnx",
    engines=["npu", "cpu"],
    buckets=[[3, 4], [3, 8]],
    accept={"npu": Accept(shape=[4, 3, 8])},
    batch={"npu": Batch(size=4, pad_to=[4])},
)


def pipeline(folder: Path, stage: Stage = STAGE) -> Pipeline:
    model = checks.write_model(folder / "checks.onnx")
    sheet = TwinSheet(
        device="npu-test",
        precision="fp32",
        static_shapes=True,
        unsupported=[],
        operators="a table",
        needs_bytes=None,
        memory_bytes=None,
        compile_ms=0.0,
        times=[TwinTime(rows=4, shape=(3, 8), ms=0.25, energy_j=0.001)],
        times_basis="modelled",
        times_source="roofline",
    )
    npu = TwinEngine(backend="twin", device="npu-test", sheets={str(model): sheet})
    return Pipeline(version=1, pipeline="p", engines={"npu": npu, "cpu": Engine(backend="onnxruntime")}, stages=[stage])


SAMPLES = [Sample("one", "application/octet-stream", b"", tensors={"x": np.ones((1, 3, 4), np.float32)})]


def test_a_twins_times_and_energy_are_its_sheets_and_nothing_of_it_is_timed(tmp_path: Path) -> None:
    table = measure(pipeline(tmp_path), tmp_path, SAMPLES, seconds=0, repeats=1)
    emulated = [entry for entry in table.entries if entry.engine == "npu"]
    assert [(entry.batch, entry.shape, entry.latency_ms.p99) for entry in emulated] == [
        (4, [3, 4], 0.25),
        (4, [3, 8], 0.25),
    ]
    assert {(entry.basis, entry.energy_j, entry.n) for entry in emulated} == {("emulated", 0.001, None)}
    assert {entry.source for entry in emulated} == {"twin of npu-test at fp32; modelled: roofline"}
    assert {entry.basis for entry in table.entries if entry.engine == "cpu"} == {"measured"}


def test_a_pipeline_of_twins_alone_has_a_profile(tmp_path: Path) -> None:
    table = measure(pipeline(tmp_path), tmp_path, SAMPLES, seconds=0, repeats=1, on=["npu"])
    assert {entry.engine for entry in table.entries} == {"npu"}


def test_engines_beside_a_twin_are_asked_for_without_it(tmp_path: Path) -> None:
    table = measure(pipeline(tmp_path), tmp_path, SAMPLES, seconds=0, repeats=1, on=["cpu"])
    assert {entry.engine for entry in table.entries} == {"cpu"}
