from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from loadslice.spec import validation


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    threads: Annotated[int, Meta(ge=1, le=64)] | None = None
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    name: Annotated[str, Meta(min_length=2)] = "ab"
    sides: Annotated[list[int], Meta(min_length=2, max_length=3)] = []
    pair: tuple[int, str] = (1, "")
    mixed: bool | int | float | None = None
    kind: Literal["a", "b"] = "a"


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    engines: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"threads": "two"}, "engines.cpu.threads: wants a whole number or nothing, not 'two'"),
        ({"threads": 0}, "engines.cpu.threads: wants a whole number of at least 1, not 0"),
        ({"threads": 65}, "engines.cpu.threads: wants a whole number of at most 64, not 65"),
        ({"share": 0}, "engines.cpu.share: wants a number above 0, not 0"),
        ({"share": 1.5}, "engines.cpu.share: wants a number below 1, not 1.5"),
        (
            {"share": "1e6"},
            "engines.cpu.share: wants a number, not '1e6' (YAML wants a point and a sign: write 1.0e+6)",
        ),
        ({"share": None}, "engines.cpu.share: wants a number, not nothing"),
        ({"name": "a"}, "engines.cpu.name: wants a text of at least 2 characters, not 'a'"),
        ({"name": True}, "engines.cpu.name: wants a text, not true"),
        ({"sides": [1]}, "engines.cpu.sides: wants a list of at least 2 entries, not 1"),
        ({"sides": {"a": 1}}, "engines.cpu.sides: wants a list, not a mapping"),
        ({"pair": [1]}, "engines.cpu.pair: wants a list of 2 entries, not 1"),
        ({"pair": [1, 2]}, "engines.cpu.pair[1]: wants a text, not 2"),
        ({"mixed": "x"}, "engines.cpu.mixed: wants true or false or a number or nothing, not 'x'"),
        ({"kind": "c"}, "engines.cpu.kind: wants one of 'a', 'b', not 'c'"),
        ({"treads": 2}, "engines.cpu: unknown key 'treads'; did you mean 'threads'?"),
        ({"colour": 2}, "engines.cpu: unknown key 'colour'; known are threads, share, name, sides, pair, mixed, kind"),
        ([], "engines.cpu: wants a mapping, not a list"),
    ],
)
def test_a_fault_names_its_key_what_is_wanted_and_what_stands_there(document: Any, said: str) -> None:
    assert told({"version": 1, "engines": {"cpu": document}}) == said


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "'version' is missing"),
        (None, "wants a mapping, not nothing"),
        ({"version": 1, "engines": {3: {}}}, "engines: wants a text as a key, not a whole number"),
    ],
)
def test_a_fault_at_the_top_has_no_path(document: Any, said: str) -> None:
    assert told(document) == said


def test_of_a_document_that_is_not_known_the_kind_of_the_value_is_said() -> None:
    text = "Expected `int | null`, got `str` - at `$.engines[...].threads`"
    assert validation.told(text, None, Outer) == "engines[...].threads: wants a whole number or nothing, not a text"


def test_what_has_no_words_here_stays_as_it_is() -> None:
    assert validation.told("Invalid RFC3339 encoded datetime", None, Outer) == "Invalid RFC3339 encoded datetime"


def told(document: Any) -> str:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, Outer)
    return validation.told(str(caught.value), document, Outer)
