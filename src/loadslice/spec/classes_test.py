"""Which columns of texts are columns of classes."""

import polars as pl
import pytest

from loadslice.spec.classes import are_known
from loadslice.spec.pipeline import CLASSES


@pytest.mark.parametrize("texts", [[], [None], list(CLASSES), [*CLASSES, None, *CLASSES]])
def test_names_of_classes_are_known_and_what_is_missing_does_not_count(texts: list[str | None]) -> None:
    assert are_known(pl.Series(texts, dtype=pl.String))


@pytest.mark.parametrize("text", ["", "vip", "Critical", "criticaL", "critical_plux", "a text longer than any name"])
def test_one_text_that_is_no_name_is_found_whatever_its_length(text: str) -> None:
    assert not are_known(pl.Series([*CLASSES, text, None], dtype=pl.String))
