import json
import shutil
from pathlib import Path

import msgspec
import polars as pl
import pytest

from loadslice.app import cli
from loadslice.sim import journal as sim_journal
from loadslice.sim import simulate
from loadslice.sim.parts_test import plan, profile, trace


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal")
    prepared = simulate.prepare(trace().head(200), plan(), profile(), seed=1)
    sim_journal.write(simulate.run(prepared, seed=1, journal=True), folder, msgspec.yaml.encode(plan()).decode(), None)
    return folder


def test_a_story_has_the_stages_in_order_and_ends_with_the_outcome(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = pl.read_parquet(journal / "requests.parquet").filter(pl.col("outcome") == "completed")
    tag = kept["tag"][0]
    assert cli.run(["story", str(journal), str(tag), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["stories"]
    assert (told["tag"], told["outcome"]) == (tag, "completed")
    times = [stage["enqueued_ms"] for stage in told["stages"]]
    assert times == sorted(times)
    assert told["stages"][-1]["done_ms"] <= told["took_ms"] + 1e-6
    assert told["stages"][0]["compute_ms"] is None
    assert cli.run(["story", str(journal), str(tag)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("completed")


@pytest.mark.parametrize("name", ["999999", "nobody", "-1", "9" * 30])
def test_a_request_that_is_not_there_is_one_line(journal: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["story", str(journal), "--", name]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no request has the id or tag" in said


def test_an_id_that_looks_like_a_tag_hides_no_request(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a replay names its requests: by their rows, which are not the order in which they arrived."""
    folder = tmp_path / "journal"
    shutil.copytree(journal, folder)
    kept = pl.read_parquet(folder / "requests.parquet")
    ids = pl.when(pl.col("tag") == 6).then(pl.lit("3")).otherwise(pl.lit("")).alias("id")
    kept.with_columns(ids).write_parquet(folder / "requests.parquet")
    for asked, tag, is_noted in ((["3"], 6, True), (["3", "--tag"], 3, False), (["4"], 4, False)):
        assert cli.run(["story", str(folder), *asked, "--json"]) == 0
        said = capsys.readouterr()
        assert [one["tag"] for one in json.loads(said.out)["stories"]] == [tag]
        assert ("add --tag" in said.err) is is_noted
