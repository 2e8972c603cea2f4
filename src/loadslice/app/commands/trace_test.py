import json
from pathlib import Path

import pytest

from loadslice.app import cli
from loadslice.workload import trace

LOG = '10.0.0.1 - - [10/Oct/2024:13:{:02d}:{:02d} +0000] "POST /ocr HTTP/1.1" 200 23 "-" "curl" 0.250\n'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text("".join(LOG.format(second // 60, second % 60) * 3 for second in range(600)))
    return path


def test_a_log_becomes_a_trace_a_portrait_a_sample_and_a_synthetic_trace(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = tmp_path / "t.parquet"
    assert cli.run(["trace", "import", str(log), "-o", str(imported), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["requests"] == 1800
    assert "read as nginx" in err
    assert trace.read(imported).meta["tick_ms"] == 1000.0

    assert cli.run(["portrait", str(imported), "--json", "--out", str(tmp_path / "out")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["requests"] == 1800
    assert "ticks" in {finding["code"] for finding in document["findings"]}

    assert cli.run(["trace", "sample", str(imported), "--n", "50", "-o", str(tmp_path / "s.jsonl")]) == 0
    assert trace.read(tmp_path / "s.jsonl").frame.height == 50
    capsys.readouterr()

    portrait = str(tmp_path / "out" / "portrait.json")
    drawn = str(tmp_path / "y.parquet")
    assert cli.run(["trace", "synth", portrait, "--hours", "1", "--scale", "2", "-o", drawn, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == pytest.approx(2 * 3 * 3600, rel=0.05)

    assert cli.run(["trace", "info", str(log)]) == 0
    assert "1,800 requests" in capsys.readouterr().out


def test_the_portrait_reads_a_log_as_it_is(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["portrait", str(log), "--latency-ms", "300"]) == 0
    assert "1,800 requests over 10.0 minutes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trace", "import", "{folder}/absent", "-o", "{folder}/t.parquet"], "no such file"),
        (["trace", "import", "{log}", "-o", "{folder}/t.csv"], "named .parquet or .jsonl"),
        (["trace", "import", "{log}", "-o", "{log}/t.parquet"], "cannot be written"),
        (["trace", "import", "{log}", "--format", "otlp", "-o", "{folder}/t.parquet"], "line 1"),
        (["trace", "synth", "{log}", "--hours", "1", "-o", "{folder}/t.parquet"], "access.log"),
        (["portrait", "{folder}"], "a folder without part"),
        (["portrait", "{log}", "--utilisation", "{log}"], "needs a column time"),
        (["portrait", "{log}", "--model", "{log}"], "access.log"),
        (["portrait", "{log}", "--model", "{log}", "--shape", "x=0"], "--shape x=0"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    before = sorted(tmp_path.iterdir())
    assert cli.run([text.format(folder=tmp_path, log=log) for text in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if "read as" not in line]
    assert line.startswith("loadslice: ")
    assert says in line
    assert sorted(tmp_path.iterdir()) == before


def test_the_examples_traffic_is_what_its_page_says() -> None:
    path = Path(__file__).parents[4] / "examples/ocr/traffic.parquet"
    if not path.exists():
        pytest.skip("installed without the examples")
    found = trace.read(path)
    assert found.frame.height == 2000
    assert set(found.frame.columns) == {"arrival_s", "tokens_in", "tokens_out", "source"}
    assert "github.com/Azure/AzurePublicDataset" in found.meta["source"]
    assert found.meta["licence"].startswith("CC-BY 4.0")
