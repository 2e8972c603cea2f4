"""A document of any of our types, every field filled, to be damaged: no type is left out for want of a sample."""

from typing import Any

from msgspec import inspect

DEEPEST = 12
"""Types that hold themselves end here."""


def filled(kind: Any) -> Any:
    """A value of a type, as JSON has it; plain, and not always one that is allowed together with others."""
    return _of(inspect.type_info(kind), 0)


def _of(info: inspect.Type, depth: int) -> Any:
    if isinstance(info, inspect.StructType):
        return {field.encode_name: _of(field.type, depth + 1) for field in info.fields}
    if isinstance(info, inspect.UnionType):
        # The richest of what is possible: a list or a struct rather than null.
        return _of(max(info.types, key=_richness), depth + 1)
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    if isinstance(info, inspect.ListType | inspect.VarTupleType | inspect.CollectionType):
        return [] if depth > DEEPEST else [_of(info.item_type, depth + 1)] * 2
    if isinstance(info, inspect.TupleType):
        return [_of(one, depth + 1) for one in info.item_types]
    if isinstance(info, inspect.DictType):
        return {} if depth > DEEPEST else {_key(info.key_type): _of(info.value_type, depth + 1)}
    return _scalar(info)


def _richness(info: inspect.Type) -> int:
    if isinstance(info, inspect.NoneType):
        return 0
    return 2 if isinstance(info, inspect.StructType | inspect.ListType | inspect.DictType) else 1


def _key(info: inspect.Type) -> str:
    return str(_scalar(info)) if not isinstance(info, inspect.LiteralType) else str(info.values[0])


def _scalar(info: inspect.Type) -> Any:
    plain: dict[type[inspect.Type], Any] = {
        inspect.BoolType: True, inspect.IntType: 2, inspect.FloatType: 1.5, inspect.NoneType: None
    }  # fmt: skip
    if isinstance(info, inspect.EnumType):
        return next(iter(info.cls)).value
    return plain.get(type(info), "a")
