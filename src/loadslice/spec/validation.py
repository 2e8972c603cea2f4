"""What msgspec finds wrong with a document, in words that name the key and what would be right."""

import contextlib
import re
from typing import Any

import msgspec
from msgspec import inspect


def told(text: str, found: Any, kind: type[Any]) -> str:
    """One line for a fault.

    Args:
        text: The message of a `msgspec.ValidationError`.
        found: The document, as plain values; ``None``: not known.
        kind: The type it should have.
    """
    return _with_plain_path(_with_values(_with_keys(text, found, kind), kind))


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
