import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadslice.workload.readers import times


@pytest.mark.parametrize(
    ("text", "unit", "absolute", "ns"),
    [
        ("2023-11-16 18:17:03.9799600", "iso", True, 1_700_158_623_979_960_000),
        ("2024-05-10 00:00:00.009930+00:00", "iso", True, 1_715_299_200_009_930_000),
        ("2024-05-10T02:00:00+02:00", "iso", True, 1_715_299_200_000_000_000),
        ("2024-05-10T00:00:00Z", "iso", True, 1_715_299_200_000_000_000),
        ("1715299200", "s", True, 1_715_299_200_000_000_000),
        ("1715299200123", "ms", True, 1_715_299_200_123_000_000),
        ("1715299200123456", "us", True, 1_715_299_200_123_456_000),
        ("1715299200123456789", "ns", True, 1_715_299_200_123_456_789),
        ("12.5", "s", False, 12_500_000_000),
        ("0", "s", False, 0),
        ("-3", "s", False, -3_000_000_000),
    ],
)
def test_times_are_read_as_people_write_them(text: str, unit: str, absolute: bool, ns: int) -> None:
    assert times.guess_unit(text) == (unit, absolute)
    assert times.to_ns(pl.Series([text]), times.guess_unit(text)[0]).to_list() == [ns]


def test_offsets_may_be_on_some_rows_only() -> None:
    mixed = pl.Series(["2024-05-10 00:00:00", "2024-05-10 00:00:01.5+00:00"])
    assert times.to_ns(mixed, "iso").to_list() == [1_715_299_200_000_000_000, 1_715_299_201_500_000_000]


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "9" * 30, "", "soon", "1_000", "0x10", None])
def test_what_is_no_finite_time_becomes_null(text: str | None) -> None:
    for unit in ("iso", "s", "ns"):
        assert times.to_ns(pl.Series([text], dtype=pl.String), unit).to_list() == [None]


@given(texts=st.lists(st.one_of(st.text(max_size=30), st.floats().map(str), st.integers().map(str)), min_size=1))
def test_any_text_gives_a_number_or_null(texts: list[str]) -> None:
    for unit in ("iso", "s", "ms", "us", "ns"):
        found = times.to_ns(pl.Series(texts, dtype=pl.String), unit)
        assert found.dtype == pl.Int64
        assert len(found) == len(texts)


@pytest.mark.parametrize(
    ("text", "zoned"),
    [
        ("2026-03-28 23:30:00", False),
        ("2026-03-28", False),
        ("2026-03-28T23:30:00Z", True),
        ("2026-03-28 23:30:00.5+01:00", True),
        ("2026-03-28 23:30:00-0500", True),
    ],
)
def test_a_time_says_its_zone_or_does_not(text: str, zoned: bool) -> None:
    assert times.Clock().says_zone(text) is zoned
