"""Tables that somebody else wrote: other separators, clocks, words for classes, and logs of requests that ended."""

import json
from pathlib import Path

import pytest

from loadslice.spec.errors import InputError
from loadslice.workload import importing
from loadslice.workload.importing import Options
from loadslice.workload.readers.log_lines import Taken
from loadslice.workload.readers.said import classes_of
from loadslice.workload.readers.times import Clock
from loadslice.workload.trace import Trace


def load(folder: Path, content: str, *pairs: str, kind: str = "auto", **options: object) -> Trace:
    path = folder / "table"
    path.write_text(content)
    said = {"mapping": importing.column_map(pairs), "units": importing.column_units(pairs), **options}
    return importing.load(path, kind, Options(**said))  # type: ignore[arg-type]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_columns_may_be_separated_by_other_marks_and_numbers_have_a_comma(tmp_path: Path, separator: str) -> None:
    content = 'wann;"Dauer; s";wer\n0;0,25;"a;b"\n1,5;1,75;c\n'.replace(";", separator)
    found = load(tmp_path, content, "wann=arrival_s", f"Dauer{separator} s=latency_ms:s", "wer=tenant")
    assert found.frame.to_dict(as_series=False) == {
        "arrival_s": [0.0, 1.5],
        "latency_ms": [250.0, 1750.0],
        "tenant": [f"a{separator}b", "c"],
    }
    assert "numbers such as 0,25 were read as 0.25" in found.notes


def test_a_row_cut_off_is_named_whatever_separates_its_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3 has 1 fields, the header 2"):
        load(tmp_path, "when;n\n0;1\n2\n", "when=arrival_s")


@pytest.mark.parametrize(
    ("text", "form", "zone", "utc"),
    [
        ("2026-07-14 09:00:00", None, "+05:30", "2026-07-14T03:30:00+00:00"),
        ("2026-07-14 09:00:00", None, "-0400", "2026-07-14T13:00:00+00:00"),
        ("2026-07-14T09:00:00", None, "Europe/Berlin", "2026-07-14T07:00:00+00:00"),
        ("2026-01-14T09:00:00Z", None, "Europe/Berlin", "2026-01-14T09:00:00+00:00"),
        ("2026-10-25 02:30:00", None, "Europe/Berlin", "2026-10-25T00:30:00+00:00"),
        ("14.07.2026 09:00", "%d.%m.%Y %H:%M", None, "2026-07-14T09:00:00+00:00"),
        ("07/14/2026 09:00:00 PM", "%m/%d/%Y %I:%M:%S %p", "America/New_York", "2026-07-15T01:00:00+00:00"),
        ("14/Jul/2026:09:00:00 +0530", None, None, "2026-07-14T03:30:00+00:00"),
        ("14/07/26 09:00:00 +0530", "%d/%m/%y %H:%M:%S %z", None, "2026-07-14T03:30:00+00:00"),
        ("2026-07-14 09:00:00,250", None, None, "2026-07-14T09:00:00.250000+00:00"),
        ("14.07.2026 09:00:00.250", "%d.%m.%Y %H:%M:%S.%f", None, "2026-07-14T09:00:00.250000+00:00"),
    ],
)
def test_dates_are_read_as_their_clock_wrote_them(
    tmp_path: Path, text: str, form: str | None, zone: str | None, utc: str
) -> None:
    content = json.dumps({"at": text}) + "\n"
    assert load(tmp_path, content, "at=arrival_s", clock=Clock(form, zone)).meta["start_utc"] == utc


@pytest.mark.parametrize(
    ("form", "zone", "says"),
    [
        ("%H:%M:%S", None, "no form of a date"),
        ("%Q", None, "no form of a date"),
        ("soon", None, "no form of a date"),
        (None, "Mars/Olympus", "--zone Mars/Olympus: no zone; expected a name such as Europe/Berlin, or "),
    ],
)
def test_what_is_no_form_of_a_date_or_no_zone_is_refused(form: str | None, zone: str | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Clock(form, zone)


def test_a_time_that_no_clock_of_the_zone_showed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'2026-03-29 02:30:00' is not a time"):
        load(tmp_path, "at\n2026-03-29 02:30:00\n", "at=arrival_s", clock=Clock(None, "Europe/Berlin"))


def test_a_date_of_another_form_is_refused_with_how_to_say_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'14\.07\.2026 09:00:00' is not a time; .*--time-format '%d\.%m\.%Y"):
        load(tmp_path, "at\n14.07.2026 09:00:00\n", "at=arrival_s")
    with pytest.raises(InputError, match="'14/07/2026' is not a time; expected the form '%Y-%m-%d'"):
        load(tmp_path, "at\n14/07/2026\n", "at=arrival_s", clock=Clock("%Y-%m-%d"))
    with pytest.raises(InputError, match="--zone and --time-format are for dates, not '1764000000'"):
        load(tmp_path, "at\n1764000000\n", "at=arrival_s", clock=Clock(None, "UTC"))


ENDED = "at,took_ms\n2026-07-14 09:00:02.5Z,2000\n2026-07-14 09:00:02Z,250\n"


def test_of_times_when_requests_ended_arrivals_are_so_much_earlier(tmp_path: Path) -> None:
    found = load(tmp_path, ENDED, "at=arrival_s", "took_ms=latency_ms", ended=True)
    assert found.frame["arrival_s"].to_list() == pytest.approx([0.0, 1.25])
    assert found.frame["latency_ms"].to_list() == [2000.0, 250.0]
    assert any("(--ended)" in note for note in found.notes)
    with pytest.raises(InputError, match="add --map COLUMN=latency_ms"):
        load(tmp_path, ENDED, "at=arrival_s", ended=True)


def test_only_some_rows_of_a_table_are_requests(tmp_path: Path) -> None:
    rows = [{"at": second, "uri": uri} for second, uri in enumerate(("/predict", "/healthz", "/predict?x", None))]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    found = load(tmp_path, content, "at=arrival_s", lines=Taken(only="uri=^/predict"))
    assert found.frame["arrival_s"].to_list() == [0.0, 2.0]
    assert "2 of 4 rows were left out: --only 'uri=^/predict'" in found.notes
    for only, says in (
        ("^/predict", "COLUMN=REGEX"),
        ("url=x", "no column 'url'; found at, uri"),
        ("uri=none", "no req"),
    ):
        with pytest.raises(InputError, match=says):
            load(tmp_path, content, "at=arrival_s", lines=Taken(only=only))


CLASSES = "at,tier\n0,gold\n1,\n2,free\n3,critical\n"


def test_words_for_classes_are_translated(tmp_path: Path) -> None:
    words = classes_of(("gold=critical", "free=sheddable"))
    found = load(tmp_path, CLASSES, "at=arrival_s", "tier=class", classes=words)
    assert found.frame["class"].to_list() == ["critical", None, "sheddable", "critical"]
    with pytest.raises(
        InputError, match=r"line 4: tier: 'free' is none of .*gold. Say which .* --class 'free=sheddable'"
    ):
        load(tmp_path, CLASSES, "at=arrival_s", "tier=class", classes=classes_of(("gold=critical",)))


@pytest.mark.parametrize("pairs", [("gold",), ("gold=vip",), ("=critical",), ("a=critical", "a=sheddable")])
def test_a_wrong_word_for_a_class_is_refused(pairs: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="--class"):
        classes_of(pairs)


def test_columns_that_have_a_traces_name_by_chance_are_left_out_and_named(tmp_path: Path) -> None:
    content = "at,class,status,items\n0,gold,OK,3\n1,free,OK,4\n"
    found = load(tmp_path, content, "at=arrival_s")
    assert found.frame.columns == ["arrival_s", "items"]
    assert any(note.startswith("column 'class' was not used: 'gold' is none of critical_plus") for note in found.notes)
    assert "column 'status' was not used: 'OK' cannot be status" in found.notes
    with pytest.raises(InputError, match="line 4: items: 'x' cannot be items"):
        load(tmp_path, content + "2,gold,OK,x\n", "at=arrival_s")
    with pytest.raises(InputError, match="line 2: status: 'OK' cannot be status"):
        load(tmp_path, content, "at=arrival_s", "status=status")


NOT_JSON = 'starting up\n{"at": 0}\n\nTraceback\n{"at": 1}\n{"at": 2}\n{"at": 3, "n": "x"}\n{"at'


def test_lines_among_json_that_are_none_may_be_left_out(tmp_path: Path) -> None:
    found = load(tmp_path, NOT_JSON, "at=arrival_s", lines=Taken(skip_bad=3))
    assert found.frame["arrival_s"].to_list() == [0.0, 1.0, 2.0, 3.0]
    assert "3 lines are not JSON and were left out, the first line 1: 'starting up'" in found.notes
    with pytest.raises(InputError, match=r"line 8: not valid JSON .*--skip-bad N"):
        load(tmp_path, NOT_JSON, "at=arrival_s", lines=Taken(skip_bad=2))
    with pytest.raises(InputError, match="line 7: n: 'x' cannot be items"):
        load(tmp_path, NOT_JSON, "at=arrival_s", "n=items", lines=Taken(skip_bad=3))


def test_nginx_calls_seconds_request_time_and_a_silent_name_shows_what_it_was_taken_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'request_time' seems to hold seconds"):
        load(tmp_path, '{"at": 0, "request_time": "0.121"}\n', "at=arrival_s", "request_time=latency_ms")
    found = load(tmp_path, '{"at": 0, "took": "0.121"}\n', "at=arrival_s", "took=latency_ms")
    assert "'took' was read as milliseconds (median 0.121); say --map 'took=latency_ms:s'" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clock": Clock(None, "UTC")}, "--zone and --time-format are for tables, this is read as azure-llm"),
        ({"ended": True}, "--ended is for tables"),
        ({"classes": {"a": "critical"}}, "--class is for tables"),
        ({"lines": Taken(only="x")}, "--only is for access logs and tables"),
        ({"lines": Taken(skip_bad=1)}, "--skip-bad is for access logs and JSON lines"),
    ],
)
def test_what_another_kind_of_file_would_not_hear_is_refused(
    tmp_path: Path, options: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        load(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808,10\n", **options)
