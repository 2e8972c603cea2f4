import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadslice.spec.errors import InputError
from loadslice.workload.readers import source


def write(folder: Path, content: bytes) -> Path:
    path = folder / "log"
    path.write_bytes(content)
    return path


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8"), max_size=20), min_size=1))
def test_blocks_hold_every_line_once_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = write(tmp_path_factory.mktemp("blocks"), ("x" + "\n".join(lines)).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", 7)
        found = list(source.blocks(path))
    assert [line for block in found for line in block.lines()] == ("x" + "\n".join(lines)).removesuffix("\n").split(
        "\n"
    )
    assert [block.first_line for block in found] == [
        1 + sum(len(before.lines()) for before in found[:at]) for at in range(len(found))
    ]


def test_a_quoted_newline_does_not_end_a_record(tmp_path: Path) -> None:
    path = write(tmp_path, b'a,"b\nc"\nd,e\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", 10)
        assert [block.data for block in source.blocks(path, quoted=True)] == [b'a,"b\nc"\n', b"d,e\n"]


def test_gzip_and_a_byte_order_mark_are_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"\xef\xbb\xbfone\r\ntwo"))
    assert [line for block in source.blocks(path) for line in block.lines()] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a\nb".encode("utf-16"), "UTF-16"),
        (b"ok\nna\xefve\n", "line 2 is not UTF-8 (byte 0xef)"),
        (b"ok\n\0\n", "line 2 holds binary data"),
        (b"ok\n" + b"a" * (source.LINE_BYTES_MAX + 1), "line 2 is longer than 1048576 bytes"),
        (b"ok\n" + b"a" * (source.LINE_BYTES_MAX + 1) + b"\nok\n", "line 2 is longer than 1048576 bytes"),
        # Without a time in its header: the content names the test, and every worker must find the same names.
        (gzip.compress(b"line\n" * 10_000, mtime=0)[:-20], "damaged or cut off"),
        (b"\x1f\x8b" + b"nonsense", "damaged or cut off"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"PK\x03\x04....", "zip archive"),
    ],
)
def test_what_is_not_text_is_refused_with_its_line(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(InputError) as caught:
        list(source.blocks(write(tmp_path, content)))
    assert says in str(caught.value)


def test_an_endless_line_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as stream:
        for _ in range(200):
            stream.write(b"a" * (1 << 20))
    with pytest.raises(InputError, match="line 1 is longer"):
        list(source.blocks(path))


def test_a_folder_and_an_absent_file_are_refused(tmp_path: Path) -> None:
    for path, says in ((tmp_path, "a folder"), (tmp_path / "absent", "no such file")):
        with pytest.raises(InputError, match=says):
            list(source.blocks(path))
