import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest

pytest.importorskip("nncf", reason="the extra 'squeeze' is not installed")
pytest.importorskip("onnxslim", reason="the extra 'squeeze' is not installed")
pytest.importorskip("openvino", reason="the extra 'squeeze' is not installed")

from loadslice.app.cli import run
from loadslice.variants import specimen

CONTRACT = {
    "name", "target", "path", "sha256", "speedup_vs_untuned", "metric", "sqnr_db", "kept_layers", "shipped", "why",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    specimen.write_model(tmp_path / "m.onnx")
    specimen.write_inputs(tmp_path / "in", 12)
    return tmp_path


def test_json_has_the_keys_of_the_contract_and_exit_3_says_nothing_shipped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["squeeze", "m.onnx", "--data", "in", "--target", "gpu-fp16", "--seconds", "1", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 3
    (variant,) = document["variants"]
    assert variant.keys() >= CONTRACT
    assert variant["metric"].keys() >= {"name", "source", "variant"}
    assert json.loads(Path("out/squeeze/m/squeeze.json").read_text()) == document


def test_a_trace_weighs_the_inputs_it_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["in-000"] * 9 + ["in-001", "in-002", "in-003"]
    pl.DataFrame({"arrival_s": [float(i) for i in range(12)], "input": names}).write_parquet("t.parquet")
    arguments = ["squeeze", "m.onnx", "--target", "gpu-fp16", "--seconds", "1"]
    assert run([*arguments, "--data", "t.parquet"]) == 2
    assert "Add --inputs DIR" in capsys.readouterr().err
    assert run([*arguments, "--data", "t.parquet", "--inputs", "in", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["variants"][0]["metric"]["inputs"] == 2


def test_a_pipelines_own_examples_are_the_inputs_of_its_stage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "import numpy as np\nfrom loadslice.spec.work import Sample\n"
        "def samples():\n"
        "    draw = np.random.default_rng(0)\n"
        "    rows = [draw.standard_normal((2, 3, 16, 16), dtype=np.float32) for _ in range(4)]\n"
        "    return [Sample(f's{i}', 'x', b'', tensors={'image': one}) for i, one in enumerate(rows)]\n"
    )
    Path("p.yaml").write_text(
        "version: 1\npipeline: p\ninputs: mine:samples\nengines: {cpu: {backend: onnxruntime}}\n"
        "stages: [{name: look, model: m.onnx, engine: cpu}]\n"
    )
    assert run(["squeeze", "m.onnx", "--data", "p.yaml", "--target", "gpu-fp16", "--seconds", "1", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["variants"][0]["metric"]["inputs"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "absent"], "--data absent: no such file or folder"),
        (["--data", "in", "--floor", "cosine"], "is not like 'cosine>=0.99'"),
        (["--data", "in", "--floor", "bleu>=1"], "metric 'bleu' is not known"),
        (["--data", "in", "--metric", "score"], "is not like 'metrics.py:accuracy'"),
        (["--data", "in", "--metric", "absent.py:score"], "no such file"),
        (["--data", "bad"], "NaN or infinite"),
        (["--data", "flat"], "everywhere in all 3 files"),
        (["--data", "narrow"], "has shape 1x2x16x16, it must be ?x3x?x?"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    arrays = {
        "bad": np.full((1, 3, 16, 16), np.nan, np.float32),
        "flat": np.ones((1, 3, 16, 16), np.float32),
        "narrow": np.zeros((1, 2, 16, 16), np.float32),
    }
    for name, array in arrays.items():
        Path(name).mkdir()
        for index in range(3):
            np.savez(Path(name) / f"{index}.npz", image=array)
    assert run(["squeeze", "m.onnx", "--target", "cpu-fp32", "--out", "kept", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert not list(Path("kept").glob("**/*")) if Path("kept").exists() else True


def test_a_person_gets_a_table_with_the_setting_to_paste(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["squeeze", "m.onnx", "--data", "in", "--target", "cpu-fp32", "--seconds", "1"])
    text = capsys.readouterr().out
    assert text.startswith("untuned: ONNX Runtime as it comes")
    assert "m-fp32-fused-onnxruntime" in text
    assert ("engine: {backend: " in text) == (code == 0)
    assert "front: nothing else that was timed is both faster and better." in text
    last = text.splitlines()[-1]
    assert last.startswith("Serve m-" if code == 0 else "Keep the model as it is: ")
    assert json.loads(Path("out/squeeze/m/squeeze.json").read_text())["conclusion"] == last
    picture = ElementTree.parse("out/squeeze/m/squeeze.svg").getroot()
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}circle")) == 2


def test_what_calibration_sets_are_worth_is_a_table_and_a_picture(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specimen.write_inputs(Path("more"), 20)
    run(["squeeze", "m.onnx", "--data", "more", "--target", "cpu-int8", "--seconds", "1"])
    text = capsys.readouterr().out
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("calibrated on"))
    assert "Best by number of inputs, dB: 4: " in lines[start]
    assert [line.split()[:2] for line in lines[start + 2 : start + 5]] == [
        ["4", "coverage"], ["4", "random"], ["5", "coverage"],
    ]  # fmt: skip
    assert "inputs: 5 to calibrate on, 5 to choose by, 10 that judge what was chosen" in lines
    picture = ElementTree.parse("out/squeeze/m/calibration.svg").getroot()
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}circle")) == 3


@pytest.mark.parametrize("absent", ["nncf", "onnxslim"])
def test_a_missing_tool_is_one_line_that_names_the_extra(folder: Path, absent: str) -> None:
    code = (
        f"import sys; sys.modules['{absent}'] = None; from loadslice.app.cli import run; "
        "sys.exit(run(['squeeze', 'm.onnx', '--data', 'in', '--target', 'gpu-fp16']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert ended.returncode == 2
    last = ended.stderr.strip().splitlines()[-1]
    assert absent in last
    assert "needs the extra 'squeeze': run `python -m pip install -e '.[squeeze]'`" in last
