"""What a server remembers, over restarts, kills and damaged disks."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from loadslice.serve.access import Access, Usage
from loadslice.serve.state_file import HISTORY_MAX, StateFile
from loadslice.serve.usage import UsageKeeper
from loadslice.spec.errors import InputError


def test_no_file_is_made_before_there_is_something_to_remember(tmp_path) -> None:
    path = tmp_path / "folder" / "state.sqlite"
    file = StateFile(path)
    assert (file.read("rollout"), file.history(), file.usage()) == (None, [], [])
    file.close()
    assert not path.parent.exists()


def test_values_and_usage_come_back(tmp_path) -> None:
    path = tmp_path / "folder" / "state.sqlite"
    file = StateFile(path)
    file.write("rollout", b"first", "now", "started", "2").result()
    file.write("rollout", b"second").result()
    file.write_usage([Usage("a", 1, 2, 3, 4)]).result()
    file.write_usage([Usage("b", 5, 6, 7, 8)]).result()
    file.close()
    again = StateFile(path)
    assert again.read("rollout") == b"second"
    assert again.history() == [("now", "started", "2")]
    assert again.usage() == [Usage("b", 5, 6, 7, 8)]
    again.close()


def test_what_a_killed_server_had_written_is_there(tmp_path) -> None:
    path = tmp_path / "state.sqlite"
    file = StateFile(path)
    file.write("rollout", b"kept", "now", "started", "").result()
    copy = tmp_path / "copy.sqlite"  # as the disk would be, with its log, had the process ended here
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    other = StateFile(copy)
    assert other.read("rollout") == b"kept"
    other.close()
    file.close()


def test_the_history_is_bounded(tmp_path) -> None:
    file = StateFile(tmp_path / "state.sqlite")
    for number in range(HISTORY_MAX + 5):
        written = file.write("rollout", b"", "now", "step", str(number))
    written.result()
    rows = file.history()
    assert (len(rows), rows[0][2], rows[-1][2]) == (HISTORY_MAX, "5", str(HISTORY_MAX + 4))
    file.close()


def test_a_damaged_file_is_one_line_and_is_not_written_over(tmp_path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"no database" * 100)
    file = StateFile(path)
    with pytest.raises(InputError, match="cannot be used") as refused:
        file.read("rollout")
    assert "\n" not in str(refused.value)
    with pytest.raises(sqlite3.Error):
        file.write("rollout", b"x").result()
    file.close()
    assert path.read_bytes() == b"no database" * 100


def test_what_was_in_the_way_of_a_file_and_is_gone_is_in_nobodys_way(tmp_path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"no database" * 100)
    file = StateFile(path)
    with pytest.raises(sqlite3.Error):
        file.write("rollout", b"x").result()
    path.unlink()
    file.write("rollout", b"y").result()
    assert file.read("rollout") == b"y"
    file.close()


def test_usage_that_cannot_be_written_is_said_once_and_so_is_its_return(tmp_path, caplog) -> None:
    path = tmp_path / "state.sqlite"
    path.mkdir()
    file = StateFile(path)

    async def write_on() -> None:
        keeper = UsageKeeper(file, Access(None))
        for _ in range(3):
            keeper.start()
            keeper.stop()
        assert file.write("behind them", b"").exception() is not None
        path.rmdir()
        keeper.start()
        keeper.stop()

    asyncio.run(write_on())
    file.close()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
