"""What becomes of the user's own document when its stages are squeezed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadslice.profiles import service_pipeline
from loadslice.profiles.service_pipeline import Tuned
from loadslice.profiles.service_stage import Option
from loadslice.spec.errors import OutputError
from loadslice.spec.pipeline import Engine, Pipeline, check
from loadslice.spec.service import Rate, StageCandidate
from loadslice.spec.variant import Scheme
from loadslice.variants.bench import Artefact, Proof
from loadslice.variants.exam import Marks

BEST = Rate(callers=2, streams=2, threads=1, requests_per_s=9.0, cpu_ms_per_request=1.0)


def tuned(path: Path, tool: str) -> Tuned:
    scheme = Scheme(weight_bits=8, activation_bits=8, tool=tool)
    artefact = Artefact("int8" if tool != "none" else "cpu-fp32", "cpu-int8", path, scheme)
    marks = Marks(1.0, None, 1.0)
    proof = Proof(artefact, Engine(backend="onnxruntime", threads=1), "int8", marks, marks)
    seen = StageCandidate(name=proof.name, backend="onnxruntime", cpu_ms=1, cpu_speedup=2, cosine=1, on_front=True)
    return Tuned(Option(proof, seen), [], "none", {"none": 1.0}, 1, {0: 1.0})


def source(**stage: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "pipeline": "p",
        "engines": {"ort": {"backend": "onnxruntime"}},
        "stages": [{"name": "look", "model": "m.onnx", "engine": "ort", **stage}],
    }


@pytest.mark.parametrize(("stage", "known"), [({}, "look"), ({"variant": "det"}, "det")])
def test_times_of_the_source_are_refused_for_a_stage_whose_file_is_another(tmp_path: Path, stage, known) -> None:
    (tmp_path / "int8.onnx").write_bytes(b"weights")
    chosen = {"look": tuned(tmp_path / "int8.onnx", "onnxruntime")}
    files = service_pipeline.keep(chosen, tmp_path / "out")
    made = service_pipeline.document(source(**stage), chosen, files, BEST, tmp_path)
    assert made["stages"][0]["variant"] == f"{known}-int8"
    assert made["stages"][0]["model"] == "out/look-int8.onnx"
    (squeezed,) = check(msgspec.convert(made, Pipeline), "squeezed.yaml").stages
    assert squeezed.variant_id == f"{known}-int8", "by which times are looked up"


def test_a_stage_whose_file_stays_keeps_its_times(tmp_path: Path) -> None:
    chosen = {"look": tuned(tmp_path / "m.onnx", "none")}
    made = service_pipeline.document(source(variant="det"), chosen, {}, BEST, tmp_path)
    assert made["stages"][0]["variant"] == "det"
    assert made["stages"][0]["model"] == "m.onnx"


def test_a_place_that_cannot_be_written_is_said_and_an_earlier_artefact_stays_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "look-int8.onnx").write_bytes(b"of before")
    with pytest.raises(OutputError, match="cannot be written"):
        service_pipeline.keep({"look": tuned(tmp_path / "absent.onnx", "onnxruntime")}, out)
    assert [one.read_bytes() for one in out.iterdir()] == [b"of before"]
