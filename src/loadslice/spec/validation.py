"""What msgspec finds wrong with a document, in words that name the key and what would be right."""

import contextlib
import difflib
import re
from typing import Any

import msgspec
from msgspec import inspect

_KINDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "null": "nothing",
    "array": "a list", "object": "a mapping",
}  # fmt: skip
"""What msgspec calls by names of JSON and Python."""
_LIMITS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
KEYS_NAMED = 24
VALUE_CHARACTERS = 60


def told(text: str, found: Any, kind: type[Any]) -> str:
    """One line for a fault.

    Args:
        text: The message of a `msgspec.ValidationError`.
        found: The document, as plain values; ``None``: not known, or nothing.
        kind: The type it should have.
    """
    return _with_plain_path(_in_words(_with_values(_with_keys(text, found, kind), kind), found, kind))


def _in_words(text: str, found: Any, kind: type[Any]) -> str:
    """Say in words what msgspec says by names of types, with the value that stands there where it is known."""
    text = text.replace(" - at `key` in `$", " as a key - at `$")
    message, marker, place = text.partition(" - at `$")
    path = place.rstrip("`")
    if missing := re.fullmatch("Object missing required field `(.*)`", message):
        return f"'{missing[1]}' is missing{marker}{place}"
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", message):
        return f"unknown key '{unknown[1]}'{_meant(unknown[1], path, kind)}{marker}{place}"
    expected = re.fullmatch("Expected `([^`]*)`(.*?)(?:, got `([^`]*)`)?( as a key)?", message)
    if expected is None:
        return text
    kinds = expected[1].split(" | ")
    wanted = " or ".join(_KINDS.get(one, one) for one in kinds if one != "int" or "float" not in kinds)
    given = _KINDS.get(expected[3], expected[3])
    if found is not None and not expected[4]:
        given = _shown(_at(found, path), is_kind_right=expected[3] is None)
    said = f"wants {wanted}{_bound(expected[2], kinds)}{expected[4] or ''}"
    if given:
        said += f", not {given}{_exponent(given) if 'float' in kinds else ''}"
    return f"{said}{marker}{place}"


def _exponent(given: str) -> str:
    """YAML 1.1 takes a number for a text where its exponent has no sign, or no point stands before it."""
    number = re.fullmatch(r"'([+-]?\d+)(\.\d*)?[eE]([+-]?)(\d+)'", given)
    if number is None:
        return ""
    return f" (YAML wants a point and a sign: write {number[1]}{number[2] or '.0'}e{number[3] or '+'}{number[4]})"


def _meant(key: str, path: str, kind: type[Any]) -> str:
    """What a key that is not known may have been meant for."""
    at = [inspect.type_info(kind)]
    for step in _steps(path):
        at = [below for one in at for below in _below(one, step)]
    structs = [member for one in at for member in _members(one) if isinstance(member, inspect.StructType)]
    known = list(dict.fromkeys(field.encode_name for struct in structs for field in struct.fields))
    close = difflib.get_close_matches(key, known, n=1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known are {', '.join(known)}" if 0 < len(known) <= KEYS_NAMED else ""


def _bound(text: str, kinds: list[str]) -> str:
    """What msgspec says of a size, after the type."""
    if length := re.fullmatch(r" of length (?:(>=|<=) )?(\d+)(?:, got \d+)?", text):
        many = f"{_LIMITS[length[1]]} {length[2]}" if length[1] else f"of {length[2]}"
        return f" {many} {'characters' if kinds == ['str'] else 'entries'}"
    if limit := re.fullmatch(r" (>=|<=|>|<) (\S+)", text):
        return f" {_LIMITS[limit[1]]} {limit[2].removesuffix('.0')}"
    if form := re.fullmatch(r" matching regex '(.*)'", text):
        return f" of the form {form[1]}"
    return text


def _shown(value: Any, *, is_kind_right: bool) -> str:
    """A value as its author would recognise it; of one that is only too short or too long, how long it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value[:VALUE_CHARACTERS]}'"
    if isinstance(value, int | float):
        return str(value)[:VALUE_CHARACTERS]
    if value is None:
        return _KINDS["null"]
    if is_kind_right:
        return str(len(value))
    return _KINDS["array" if isinstance(value, list | tuple) else "object"]


def _with_values(text: str, kind: type[Any]) -> str:
    """Say which values a key takes, where msgspec only says that this one is none of them."""
    message, marker, place = text.partition(" - at `$")
    value = message.removeprefix("Invalid enum value ")
    if value == message:
        return text
    at = [inspect.type_info(kind)]
    for step in _steps(place.rstrip("`")):
        at = [below for one in at for below in _below(one, step)]
    values = [repr(value) for one in at for inner in _members(one) for value in getattr(inner, "values", ())]
    if not values:
        return text
    return f"wants {'one of ' if len(values) > 1 else ''}{', '.join(values)}, not {value}{marker}{place}"


def _members(of: inspect.Type) -> tuple[inspect.Type, ...]:
    return of.types if isinstance(of, inspect.UnionType) else (of,)


def _below(of: inspect.Type, step: str | int) -> list[inspect.Type]:
    """Types that stand at a key or an index of a type."""
    found: list[inspect.Type] = []
    for one in _members(of):
        if isinstance(one, inspect.StructType):
            found += [field.type for field in one.fields if field.encode_name == step]
        elif isinstance(one, inspect.ListType):
            found.append(one.item_type)
        elif isinstance(one, inspect.DictType):
            found.append(one.value_type)
    return found


def _with_keys(text: str, found: Any, kind: type[Any]) -> str:
    """Put keys in the place of msgspec's ``[...]``, which stands for any value of a mapping.

    The key is found by leaving out the others: the fault is in the entry that brings the same message alone.
    """
    message, marker, place = text.partition(" - at `$")
    while "[...]" in place:
        before, _, after = place.partition("[...]")
        mapping = _at(found, before)
        if not isinstance(mapping, dict):
            return text
        for key in mapping:
            with contextlib.suppress(msgspec.ValidationError):
                msgspec.convert(_replaced(found, before, {key: mapping[key]}), type=kind)
                continue
            place = f"{before}.{key}{after}"
            break
        else:
            return text
    return f"{message}{marker}{place}"


def _steps(place: str) -> list[str | int]:
    """``.stages[0].batch`` as keys and indices."""
    return [int(index) if index else key for key, index in re.findall(r"\.?([^.\[\]]+)|\[(\d+)\]", place)]


def _at(found: Any, place: str) -> Any:
    for step in _steps(place):
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            return None
    return found


def _replaced(found: Any, place: str, value: Any) -> Any:
    """A copy with one mapping replaced; only what leads there is copied."""
    steps = _steps(place)
    if not steps:
        return value
    copied: Any = found.copy()
    inner = copied
    for step in steps[:-1]:
        inner[step] = inner[step].copy()
        inner = inner[step]
    inner[steps[-1]] = value
    return copied


def _with_plain_path(text: str) -> str:
    """Turn msgspec's ``... - at `$.stages[0].name``` into ``stages[0].name: ...``."""
    message, marker, place = text.partition(" - at `$")
    if not marker:
        return text
    place = place.rstrip("`").lstrip(".")
    return f"{place}: {message}" if place else message
