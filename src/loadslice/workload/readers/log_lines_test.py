from pathlib import Path

import pytest

from loadslice.spec.errors import InputError
from loadslice.workload import importing
from loadslice.workload.importing import Options
from loadslice.workload.readers.log_lines import Taken
from loadslice.workload.trace import Trace

LINE = '10.0.0.1 - - [10/Oct/2024:13:55:{:02d} +0200] "{}" 200 23 "-" "curl/8.0 (x 9.999)" {}\n'


def log(folder: Path, *parts: str | bytes) -> Path:
    path = folder / "access.log"
    path.write_bytes(b"".join(part if isinstance(part, bytes) else part.encode() for part in parts))
    return path


def load(path: Path, **taken: object) -> Trace:
    return importing.load(path, "nginx", Options(lines=Taken(**taken)))  # type: ignore[arg-type]


def asked(second: int, request: str = "POST /ocr HTTP/1.1", rest: str = "rt=0.074") -> str:
    return LINE.format(second, request, rest)


@pytest.mark.parametrize(
    ("rest", "ms"),
    [
        ('"10.0.0.7" 0.003 0.074', 74.0),
        ("0.074 0.003", 74.0),
        ("rt=0.074 urt=0.003, 0.070", 74.0),
        ('"0.074" "-"', 74.0),
        ('"192.168.0.1"', None),
        ('"192.168.0.1" 0.074', 74.0),
        ("1.2345", None),
        ('1 "web@docker" "http://172.17.0.2:80" 74ms', 74.0),
        ("", None),
    ],
)
def test_the_longest_time_of_a_line_is_the_requests_and_an_address_is_none(
    tmp_path: Path, rest: str, ms: float | None
) -> None:
    found = load(log(tmp_path, asked(1, rest=rest)))
    assert found.frame["latency_ms"].to_list() == [ms] if ms is not None else "latency_ms" not in found.frame.columns


DAMAGE = (b"10.0.0.9 - - [10/Oct/20\n", b"\0\0\0\0\n", b"\xff\xfe \xe9\xe8\n")


def test_damaged_lines_are_left_out_as_many_as_are_allowed_and_counted(tmp_path: Path) -> None:
    path = log(tmp_path, asked(1), *DAMAGE, asked(2))
    found = load(path, skip_bad=3)
    assert found.frame.height == 2
    assert (
        "3 of 5 lines are not nginx combined format and were left out, the first line 2: '10.0.0.9 - - [10/Oct/20'"
        in found.notes
    )
    with pytest.raises(InputError, match=r"line 4 is not nginx .*, and 2 were left out before it\. Leave out up to N"):
        load(path, skip_bad=2)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_line_is_refused_where_none_may_be_left_out(tmp_path: Path, damage: bytes) -> None:
    with pytest.raises(InputError, match="line 2 "):
        load(log(tmp_path, asked(1), damage, asked(2)))


def test_only_requests_that_are_asked_for_are_taken_and_else_their_paths_are_told(tmp_path: Path) -> None:
    health = asked(2, "GET /health?x=1 HTTP/1.1", "rt=0.001")
    path = log(tmp_path, asked(1), health, asked(3), health, asked(4))
    assert load(path, only="^POST /ocr").frame["latency_ms"].to_list() == [74.0] * 3
    assert "2 of 5 lines were left out: --only '^POST /ocr'" in load(path, only="^POST /ocr").notes
    assert "of the first 5 requests /ocr 60%, /health 40%, all taken; --only REGEX takes some" in load(path).notes
    with pytest.raises(InputError, match="no requests in it"):
        load(path, only="nothing like it")


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--only '\(': no regular expression"):
        Taken(only="(")
    (tmp_path / "t.csv").write_text("arrival_s\n1\n")
    with pytest.raises(InputError, match="--skip-bad is for access logs and JSON lines, this is read as csv"):
        importing.load(tmp_path / "t.csv", "auto", Options(lines=Taken(skip_bad=1)))
