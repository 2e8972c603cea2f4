"""Files and replies that somebody made to do harm: each is refused in one line, by whoever reads it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import polars as pl
import pytest

from loadslice.app import cli, watch_run
from loadslice.app.batch_journal import outputs_of
from loadslice.evaluate import accuracy, answers
from loadslice.plan.sweep import Ledger
from loadslice.spec import journal
from loadslice.spec.errors import InputError

DEEP = b'{"a":' * 100_000
BOMB = (
    "version: 1\npipeline: p\nx0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 9))
    + "engines: {}\nstages: []\n"
)


@pytest.mark.parametrize("text", [BOMB, "[" * 50_000, "a: \x00", "version: 1\nversion: 2\n", "a" * (2 << 20), "null"])
def test_the_pipeline_that_a_journal_holds_is_read_as_carefully_as_a_file(text: str, tmp_path: Path) -> None:
    head = journal.JournalHead(
        schema=journal.SCHEMA_VERSION, pipeline="p", basis="measured", requests=0, outcomes={}, clean=True, span_ns=0,
        pipeline_yaml=text,
    )  # fmt: skip
    (tmp_path / "journal.json").write_bytes(msgspec.json.encode(head))
    for name, columns in (
        ("requests", journal.REQUEST_COLUMNS), ("stages", journal.STAGE_COLUMNS), ("events", journal.EVENT_COLUMNS),
    ):  # fmt: skip
        pl.DataFrame(schema=columns).write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"journal\.json: pipeline_yaml") as refused:
        journal.pipeline_of(journal.load(tmp_path), tmp_path)
    assert len(str(refused.value)) < 1000


def test_nesting_without_an_end_is_bad_input_in_replies_and_in_files_of_our_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        outputs_of(b'{"outputs": ' + DEEP)
    assert accuracy.texts_of(DEEP) is None
    assert answers.outputs(DEEP) is None
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes(DEEP + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match="not a file of samples"):
        watch_run.load_samples(kept)
    assert Ledger(kept, "key").found == 0, "a search goes on without what it cannot read"


STRANGE = (
    b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{", b"HTTP/1.1 \xff\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\xff\r\n", b"",
)  # fmt: skip


@pytest.fixture(params=STRANGE)
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of somebody who speaks another language, or stops in mid-sentence."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                client.recv(1 << 16)
                client.sendall(request.param)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


ASKED = [
    ["diagnose", "URL", "--for-s", "0"],
    ["rollout", "status", "--url", "URL"],
    ["watch", "baseline", "URL", "--for-s", "0", "--out", "well"],
    ["replay", "t.jsonl", "URL", "--body", "t.jsonl"],
]


def one_line(arguments: list[str], url: str, folder: Path, capsys, monkeypatch) -> str:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LOADSLICE_ADMIN_TOKEN", "ls_x")
    (folder / "t.jsonl").write_text('{"arrival_s": 0.0}\n')
    code = cli.run([url if one == "URL" else one for one in arguments])
    said = capsys.readouterr().err.splitlines()
    assert code == 2, said
    assert len([line for line in said if line.startswith("loadslice:")]) == 1
    return said[-1]


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_a_server_of_another_kind_is_said_to_be_one(arguments, stranger, tmp_path, capsys, monkeypatch) -> None:
    one_line(arguments, stranger, tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:x", "http://a b", "http://127.0.0.1:1/\n", "http://",
     "http://127.0.0.1:1/é", "http://ü.invalid:1", "ftp://127.0.0.1", "file:///etc/passwd", "http://u:secret@127.0.0.1:1"],
)  # fmt: skip
def test_what_is_no_address_is_said_to_be_none(arguments, url, tmp_path, capsys, monkeypatch) -> None:
    assert "secret" not in one_line(arguments, url, tmp_path, capsys, monkeypatch)
