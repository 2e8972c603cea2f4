import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from loadslice.app import cli
from loadslice.evaluate.checks import serving


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    pl.DataFrame({"arrival_s": [0.01 * index for index in range(30)]}).write_parquet(path)
    return path


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "body"
    path.write_text("200|fine")
    return path


@pytest.mark.live
def test_replay_prints_one_document_and_keeps_its_files(
    trace: Path, body: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with serving() as server:
        code = cli.run(["replay", str(trace), f"{server.url}/work", "--body", str(body), "--json", "--out", str(out)])
    printed = json.loads(capsys.readouterr().out)
    assert code == 0
    assert printed["requests"] == printed["outcomes"]["completed"] == 30
    assert printed["basis"] == "measured"
    assert printed["accuracy"] is None
    assert json.loads((out / "replay.json").read_bytes()) == printed
    assert pl.read_parquet(out / "replay.parquet").height == 30


@pytest.mark.live
def test_a_server_that_dies_gives_a_partial_result_and_code_3(
    trace: Path, body: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(close_after=3) as server:
        code = cli.run(["replay", str(trace), f"{server.url}/work", "--body", str(body), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert code == 3
    assert not printed["complete"]
    assert sum(printed["outcomes"].values()) == 30
    assert printed["outcomes"]["failed"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://127.0.0.1:1/work"], "nothing to send"),
        (["http://127.0.0.1:1/work", "--body", "BODY"], "nobody answers there"),
        (["http://127.0.0.1:1/x", "--body", "nowhere"], "nowhere: cannot be read"),
        (["nonsense", "--body", "BODY"], "not like http"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    trace: Path, body: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.run(["replay", str(trace), *(str(body) if part == "BODY" else part for part in arguments)])
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.live
def test_a_body_is_sent_every_time_whatever_the_trace_calls_its_inputs(
    body: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "named.parquet"
    pl.DataFrame({"arrival_s": [0.0, 0.01], "input": ["page", None]}).write_parquet(trace)
    with serving() as server:
        code = cli.run(["replay", str(trace), f"{server.url}/work", "--body", str(body), "--json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["outcomes"]["completed"] == 2


@pytest.mark.live
def test_a_replay_that_is_mostly_refused_says_so_with_the_servers_words_and_code_3(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/good").write_text("200|fine")
    (tmp_path / "in/bad").write_text('415|{"error": "this pipeline takes tensors;\\n send them to /v2"}')
    names = ["good"] * 10 + ["bad"] * 20
    pl.read_parquet(trace).with_columns(input=pl.Series(names)).write_parquet(trace)
    with serving() as server:
        command = ["replay", str(trace), f"{server.url}/work", "--inputs", str(tmp_path / "in")]
        assert cli.run([*command, "--json"]) == 3
        document = json.loads(capsys.readouterr().out)
        assert cli.run(command) == 3
        text = capsys.readouterr().out
        assert cli.run([*command, "--limit", "20", "--json"]) == 0
    assert document["server_said"] == {
        "text": "this pipeline takes tensors; send them to /v2", "status": 415, "requests": 20,
    }  # fmt: skip
    assert document["answered"] is False
    assert text.count("this pipeline takes tensors") == 1
    assert "Only 10 of 30 requests completed: exit code 3" in text


@pytest.mark.live
def test_a_folder_of_npz_files_is_sent_as_tensors(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in/one.npz", x=np.ones((1, 4), np.float32))
    with serving() as server:
        cli.run(["replay", str(trace), f"{server.url}/work", "--inputs", str(tmp_path / "in"), "--limit", "1"])
    capsys.readouterr()
    assert "inference-header-content-length" in server.headers[0]


def test_a_password_in_the_url_is_refused_without_being_shown(
    trace: Path, body: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["replay", str(trace), "http://me:s3cret@127.0.0.1:1/work", "--body", str(body)]) == 2
    said = capsys.readouterr()
    assert "s3cret" not in said.err + said.out
    assert said.err.count("\n") == 1
