import json
from pathlib import Path

import msgspec
import pytest

from loadslice.app.batch_journal import Journal, Result
from loadslice.app.batch_rows import Inputs, look
from loadslice.spec.errors import InputError


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    (tmp_path / "in.jsonl").write_text('{"inputs": []}\n' * 3)
    return look(tmp_path / "in.jsonl")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def done(row: int) -> Result:
    return Result(row, f"line {row + 1}", outcome="completed", status=200, outputs=msgspec.Raw(b"[%d]" % row))


def test_rows_come_out_in_order_of_the_file_whatever_order_they_ended_in(inputs: Inputs, results: Path) -> None:
    with Journal(results, inputs) as journal:
        for row in (2, 0, 1):
            journal.add(done(row))
        journal.finish()
    assert [json.loads(line)["outputs"] for line in results.read_text().splitlines()] == [[0], [1], [2]]
    assert not journal.path.exists()


@pytest.mark.parametrize("torn", [b"", b'{"row": 1, "outco', b"\x00\x00\x00", b'{"row": 1}\n', b"\n"])
def test_a_killed_run_goes_on_and_what_was_half_written_is_cut_off(inputs: Inputs, results: Path, torn: bytes) -> None:
    with Journal(results, inputs) as journal:
        journal.add(done(1))
        journal.add(Result(0, "line 1", outcome="failed", status=400, error="bad"))
    with journal.path.open("ab") as stream:
        stream.write(torn)
    with Journal(results, inputs) as again:
        assert (again.resumed, 0 in again, 2 in again) == (2, True, False)
        assert again.outcomes == {"completed": 1, "failed": 1}
        assert again.failed[0].error == "bad"
        again.add(done(2))
        again.finish()
    assert [json.loads(line)["row"] for line in results.read_text().splitlines()] == [0, 1, 2]


@pytest.mark.parametrize("written", [0, 1, 20, 60])
def test_a_run_killed_in_its_first_line_begins_anew(inputs: Inputs, results: Path, written: int) -> None:
    with Journal(results, inputs) as journal:
        whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[:written])
    with Journal(results, inputs) as again:
        assert again.resumed == 0
    assert again.path.read_bytes() == whole


@pytest.mark.parametrize("theirs", [b"hello", b"\x89PNG" + bytes(10_000), b'{"type": "batch/1", "finger'])
def test_a_file_of_somebody_else_is_left_as_it_is(inputs: Inputs, results: Path, theirs: bytes) -> None:
    path = results.with_name("out.jsonl.part")
    path.write_bytes(theirs)
    with pytest.raises(InputError, match="is not a journal"):
        Journal(results, inputs)
    assert path.read_bytes() == theirs


def test_other_inputs_other_files_finished_results_and_two_runs_at_once_are_refused(
    inputs: Inputs, results: Path, tmp_path: Path
) -> None:
    with Journal(results, inputs), pytest.raises(InputError, match="another run"):
        Journal(results, inputs)
    (tmp_path / "in.jsonl").write_text('{"inputs": [1]}\n' * 3)
    with pytest.raises(InputError, match="belongs to other inputs"):
        Journal(results, look(tmp_path / "in.jsonl"))
    results.with_name("out.jsonl.part").write_text("hello\n")
    with pytest.raises(InputError, match="is not a journal"):
        Journal(results, inputs)
    results.write_text("")
    with pytest.raises(InputError, match="is there already"):
        Journal(results, inputs)


def test_a_journal_with_a_row_twice_is_refused(inputs: Inputs, results: Path) -> None:
    with Journal(results, inputs) as journal:
        journal.add(done(1))
    line = msgspec.json.encode(done(1)) + b"\n"
    with journal.path.open("ab") as stream:
        stream.write(line)
    with pytest.raises(InputError, match="row 1 stands twice"):
        Journal(results, inputs)
