import threading
from array import array
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from loadslice.policy.events import EVENT_COLUMNS
from loadslice.serve import journal as writing
from loadslice.serve.journal import JournalWriter
from loadslice.serve.request import Passage, Request
from loadslice.spec import journal
from loadslice.spec.errors import InputError
from loadslice.spec.outcome import Outcome, Reason
from loadslice.spec.pipeline import Pipeline, check

PIPELINE = b"""
version: 1
pipeline: p
engines: {e: {backend: onnxruntime}}
stages: [{name: s, model: m.onnx, engine: e, buckets: [[3, 8], [3, 16]]}]
"""


@pytest.fixture
def pipeline() -> Pipeline:
    return check(msgspec.yaml.decode(PIPELINE, type=Pipeline), "p")


def ended(tag: int) -> Request:
    request = Request(None, 0, 1, 2**62, None, -1, 0, "id", "img-1", 10, [].append, tag=tag, arrival_ns=20)
    request.outcome, request.reason, request.end_ns = Outcome.EXPIRED, Reason.DEADLINE, 90
    request.passages = [Passage(0, 0, Reason.PREFERRED, 1, 4, 20)]
    return request


def close(writer: JournalWriter, events: array, count: int) -> None:
    writer.close(events, outcomes={Outcome.EXPIRED: count}, span_ns=100, effects_sha256="0" * 64)


def test_parts_are_joined_in_order_and_then_gone(tmp_path: Path, pipeline) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    for tag in range(3):
        writer.add(ended(tag))
        writer.flush(array("q", [0, tag] + [0] * (EVENT_COLUMNS - 2)))
    close(writer, array("q"), 3)
    kept = journal.load(tmp_path)
    assert kept.head.clean
    assert kept.head.outcomes["expired"] == kept.head.requests == 3
    assert kept.requests["tag"].to_list() == kept.events["now_ns"].to_list() == [0, 1, 2]
    assert kept.requests.row(0, named=True) == {
        "tag": 0,
        "id": "id",
        "arrival_ns": 20,
        "end_ns": 90,
        "outcome": "expired",
        "reason": "deadline",
        "class": "critical",
        "source": None,
        "input": "img-1",
        "hint_ns": None,
        "parse_ns": 10,
        "reply_ns": None,
        "tenant": None,
        "version": None,
    }
    stage = kept.stages.row(0, named=True)
    assert (stage["shape"], stage["items"], stage["done_ns"]) == ([3, 16], 4, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["journal.json", "requests.parquet", "stages.parquet", "events.parquet"]
    )


def test_a_run_without_requests_is_a_journal_too(tmp_path: Path, pipeline) -> None:
    close(JournalWriter(tmp_path, pipeline, None), array("q"), 0)
    assert len(journal.load(tmp_path).requests) == 0


def test_the_pipeline_in_the_head_reads_back_as_it_was(tmp_path: Path, pipeline) -> None:
    close(JournalWriter(tmp_path, pipeline, None), array("q"), 0)
    text = journal.load(tmp_path).head.pipeline_yaml
    assert check(msgspec.yaml.decode(text, type=Pipeline), "journal") == pipeline


def test_a_disk_that_fails_is_said_when_closing_and_the_journal_is_not_clean(tmp_path: Path, pipeline) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    (tmp_path / "parts").rmdir()
    (tmp_path / "parts").write_text("in the way")
    writer.add(ended(0))
    with pytest.raises(InputError, match="cannot be written"):
        close(writer, array("q"), 1)
    assert b'"clean": false' in (tmp_path / "journal.json").read_bytes()


def test_a_row_that_no_file_takes_is_said_once_and_the_journal_is_not_clean(tmp_path, pipeline, caplog) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    for tag in range(2):
        request = ended(tag)
        request.id = "\udcff"
        writer.add(request)
        writer.flush(array("q"))
    with pytest.raises(InputError, match="cannot be written"):
        close(writer, array("q"), 2)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert not writer.is_well
    assert b'"clean": false' in (tmp_path / "journal.json").read_bytes()


def test_a_disk_that_stands_still_holds_no_more_than_so_many_parts(
    tmp_path, pipeline, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    frame = writing._frame

    def slow(*arguments: Any) -> pl.DataFrame:
        assert goes_on.wait(20)
        return frame(*arguments)

    monkeypatch.setattr(writing, "_frame", slow)
    writer = JournalWriter(tmp_path, pipeline, None)
    for tag in range(writing.WAITING_MAX + 5):
        writer.add(ended(tag))
        writer.flush(array("q"))
    assert not writer.is_well
    assert writer._queue.qsize() <= writing.WAITING_MAX
    goes_on.set()
    with pytest.raises(InputError, match="slower than what is to be kept"):
        close(writer, array("q"), writing.WAITING_MAX + 5)
    assert len(caplog.records) == 1
    assert not journal.load_head(tmp_path).clean


def test_a_journal_that_lacks_a_request_is_not_clean(tmp_path: Path, pipeline) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    writer.add(ended(0))
    with pytest.raises(InputError, match="2 requests ended, 1 were kept"):
        close(writer, array("q"), 2)
    assert b'"clean": false' in (tmp_path / "journal.json").read_bytes()


def test_parts_that_have_vanished_are_missed(tmp_path: Path, pipeline) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    writer.add(ended(0))
    writer.flush(array("q"))
    writer._queue.put(None)
    writer._thread.join()
    for part in (tmp_path / "parts").iterdir():
        part.unlink()
    with pytest.raises(InputError, match="1 rows of requests were written, 0 are there"):
        close(writer, array("q"), 1)
    assert b'"clean": false' in (tmp_path / "journal.json").read_bytes()


def test_a_journal_from_before_tenants_and_versions_were_kept_has_none_of_either(tmp_path, pipeline) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    writer.add(ended(0))
    close(writer, array("q"), 1)
    path = tmp_path / "requests.parquet"
    pl.read_parquet(path).drop(journal.LATER_COLUMNS).write_parquet(path)
    kept = journal.load(tmp_path)
    assert kept.requests.schema == journal.REQUEST_COLUMNS
    assert kept.requests.row(0, named=True)["tenant"] is None


def test_whose_a_request_was_and_which_version_served_it_is_kept(tmp_path, pipeline) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    for tag, version in enumerate((None, 0, 1)):
        request = ended(tag)
        request.tenant, request.version = "gold", version
        writer.add(request)
    close(writer, array("q"), 3)
    kept = journal.load(tmp_path).requests
    assert kept["version"].to_list() == [None, "stable", "canary"]
    assert kept["tenant"].to_list() == ["gold"] * 3


def test_what_a_killed_run_has_written_can_be_read(tmp_path: Path, pipeline) -> None:
    writer = JournalWriter(tmp_path, pipeline, None)
    for tag in range(2):
        writer.add(ended(tag))
        writer.flush(array("q", [0, tag] + [0] * (EVENT_COLUMNS - 2)))
    writer._queue.put(None)
    writer._thread.join()
    left = journal.load(tmp_path)
    assert not left.head.clean
    assert left.requests["tag"].to_list() == left.events["now_ns"].to_list() == [0, 1]
    assert left.requests.schema == journal.REQUEST_COLUMNS


def test_what_a_full_disk_did_not_take_is_written_once_it_does(
    tmp_path, pipeline, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "AGAIN_S", 0.001)
    failed = threading.Event()
    log = writing.log.error
    monkeypatch.setattr(writing.log, "error", lambda *said: (log(*said), failed.set()))
    writer = JournalWriter(tmp_path, pipeline, None)
    (tmp_path / "parts").rmdir()
    (tmp_path / "parts").write_text("in the way")
    for tag in range(2):
        writer.add(ended(tag))
        writer.flush(array("q", [0, tag] + [0] * (EVENT_COLUMNS - 2)))
    assert failed.wait(20)
    assert not writer.is_well
    (tmp_path / "parts").unlink()
    close(writer, array("q"), 2)
    assert writer.is_well
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert journal.load(tmp_path).requests["tag"].to_list() == [0, 1]
