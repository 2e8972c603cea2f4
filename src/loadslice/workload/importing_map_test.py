"""Tables, JSON lines and Parquet with anybody's names, read through a column map."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from loadslice.spec.errors import InputError
from loadslice.workload import importing
from loadslice.workload.importing import Options
from loadslice.workload.importing_test import AZURE, MOONCAKE, load


def test_a_csv_is_read_through_its_column_map(tmp_path: Path) -> None:
    text = 'when,n,who,"x, y"\n1715299200123,3,"a ""b""\nc",9\n1715299201123,4,,9\n'
    mapping = importing.column_map(("when=arrival_s", "items=n", "who=source"))
    found = load(tmp_path, text, mapping=mapping)
    assert found.frame.to_dict(as_series=False) == {
        "arrival_s": [0.0, 1.0],
        "items": [3, 4],
        "source": ['a "b"\nc', None],
    }
    assert found.meta["start_utc"] == "2024-05-10T00:00:00.123000+00:00"
    assert found.notes == ["columns not used: x, y"]


def test_a_csv_with_a_traces_own_names_needs_no_map(tmp_path: Path) -> None:
    found = load(tmp_path, "arrival_s,tokens_in,stage_ms.a\n0,1,0.5\n2.5,3.0,\n")
    assert found.frame["tokens_in"].to_list() == [1, 3]
    assert any("--time-unit" in note for note in found.notes)


def test_the_time_unit_may_be_stated(tmp_path: Path) -> None:
    found = load(tmp_path, "arrival_s\n0\n2500\n", time_unit="ms")
    assert found.frame["arrival_s"].to_list() == [0.0, 2.5]


@pytest.mark.parametrize("pairs", [("when",), ("when=colour",), ("a=items", "b=items"), ("=items",), ("a=blocks",)])
def test_a_wrong_map_is_refused(pairs: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="--map"):
        importing.column_map(pairs)


ODD_ROWS = [
    {"ts": 1764000000.0339704, "req": {"imgs": 4}, "dur_us": 19047, "code": 200, "retry": False},
    {"ts": 1764000000.5356266, "req": {"imgs": 2}, "dur_us": 15339.5, "code": 503, "retry": True},
    {"ts": 1764000001.1149957, "req": {}, "dur_us": None, "code": 200},
]


ODD = "".join(json.dumps(row) + "\n" for row in ODD_ROWS)


ODD_MAP = ("ts=arrival_s", "req.imgs=items", "dur_us=latency_ms:us", "code=status")


def odd(tmp_path: Path, pairs: tuple[str, ...], content: str = ODD) -> importing.Trace:
    options = {"mapping": importing.column_map(pairs), "units": importing.column_units(pairs), "spread": "none"}
    return load(tmp_path, content, **options)


def test_json_lines_with_anybodys_names_are_read_through_a_map(tmp_path: Path) -> None:
    found = odd(tmp_path, ODD_MAP)
    assert found.frame["arrival_s"].to_list() == pytest.approx([0, 0.5016562, 1.0810253], abs=1e-6)
    assert found.frame["items"].to_list() == [4, 2, None]
    assert found.frame["latency_ms"].to_list() == [pytest.approx(19.047), pytest.approx(15.3395), None]
    assert found.frame["status"].to_list() == [200, 503, 200]
    assert found.meta["start_utc"].startswith("2025-11-24T16:00:00.03397")
    assert any("columns not used: retry" in note for note in found.notes)


@pytest.mark.parametrize(
    ("pairs", "content", "message"),
    [
        (("when=arrival_s",), ODD, "no column 'when'; found ts, req, req.imgs, dur_us, code, retry"),
        (("ts=arrival_s", "req=items"), ODD, "line 1: 'req' is an object; name a key inside it with a dot"),
        (("ts=arrival_s", "code=items"), ODD.replace("503", '"much"'), "line 2: code: 'much' cannot be items"),
        (("ts=arrival_s",), ODD + '{"dur_us": 3}\n', "line 4: '' is not a time"),
        (("ts=arrival_s",), ODD + "[1]\n", "line 4: wants a mapping, not a list"),
    ],
)
def test_a_fault_in_json_lines_is_named_with_its_line(
    tmp_path: Path, pairs: tuple[str, ...], content: str, message: str
) -> None:
    with pytest.raises(InputError) as raised:
        odd(tmp_path, pairs, content)
    assert message in str(raised.value)


def test_parquet_with_anybodys_names_is_read_through_a_map(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "at": [datetime(2025, 11, 24, 16, tzinfo=UTC), datetime(2025, 11, 24, 16, 0, 1, 500, tzinfo=UTC)],
            "took": [timedelta(milliseconds=19), None],
            "who": pl.Series(["api", "web"], dtype=pl.Categorical),
            "n": [1.0, 3.0],
        }
    )
    frame.write_parquet(tmp_path / "odd.parquet")
    pairs = ("at=arrival_s", "took=latency_ms", "who=source", "n=items")
    options = Options(mapping=importing.column_map(pairs), units=importing.column_units(pairs), spread="none")
    found = importing.load(tmp_path / "odd.parquet", options=options)
    assert found.frame.rows(named=True) == [
        {"arrival_s": 0.0, "latency_ms": 19.0, "source": "api", "items": 1},
        {"arrival_s": 1.0005, "latency_ms": None, "source": "web", "items": 3},
    ]
    assert found.meta["start_utc"] == "2025-11-24T16:00:00+00:00"


@pytest.mark.parametrize(
    ("column", "field", "told"),
    [
        ("dur_us", "latency_ms", "latency_ms:us"),
        ("durationNanos", "stage_ms.model", "stage_ms.model:ns"),
        ("request_time (s)", "latency_ms", "latency_ms:s"),
        ("timeout_seconds", "deadline_ms", "deadline_ms:s"),
    ],
)
def test_a_duration_whose_name_says_another_unit_is_refused_with_what_converts_it(
    tmp_path: Path, column: str, field: str, told: str
) -> None:
    content = f'{{"arrival_s": 0, "{column}": 19047}}\n'
    with pytest.raises(InputError, match="to convert it") as raised:
        odd(tmp_path, (f"{column}={field}",), content)
    assert f"--map '{column}={told}'" in str(raised.value)
    assert odd(tmp_path, (f"{column}={field}:ms",), content).frame[field][0] == 19047
    assert odd(tmp_path, (f"{column}={told}",), content).frame[field][0] != 19047


def test_a_duration_of_which_nothing_says_the_unit_is_milliseconds_and_that_is_noted(tmp_path: Path) -> None:
    content = '{"arrival_s": 0, "took": 0.019, "wait_ms": 3}\n'
    found = odd(tmp_path, ("took=latency_ms", "wait_ms=stage_ms.wait"), content)
    (note,) = [note for note in found.notes if "milliseconds" in note]
    assert "'took' was read as milliseconds (median 0.019); say --map 'took=latency_ms:s'" in note
    assert "wait_ms" not in note


def test_times_whose_name_says_milliseconds_are_not_read_as_seconds(tmp_path: Path) -> None:
    content = "offset_ms,items\n0,1\n1500,2\n"
    with pytest.raises(InputError, match="--time-unit ms"):
        odd(tmp_path, ("offset_ms=arrival_s",), content)
    assert load(tmp_path, content, mapping={"offset_ms": "arrival_s"}, time_unit="ms").frame["arrival_s"][1] == 1.5


def test_a_map_to_an_absent_column_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column 'when'; found a, b"):
        load(tmp_path, "a,b\n1,2\n", mapping={"when": "arrival_s"})


def test_a_map_for_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--map is for tables"):
        load(tmp_path, MOONCAKE, "mooncake", mapping={"a": "items"})


def test_constants_must_be_text_columns(tmp_path: Path) -> None:
    found = load(tmp_path, AZURE)
    kept = importing.annotate(found, first=1, constants=("source=api",), source="here", licence="CC0")
    assert kept.frame["source"].to_list() == ["api"]
    assert kept.meta["licence"] == "CC0"
    again = importing.annotate(kept, first=None, constants=(), source=None, licence=None)
    assert again.meta == kept.meta
    assert kept.notes == ["the first 1 of 2 requests"]
    for pair in ("items=3", "source", "class=vip"):
        with pytest.raises(InputError, match="--set"):
            importing.annotate(found, first=None, constants=(pair,), source=None, licence=None)
