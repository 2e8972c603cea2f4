"""How compiled code sees the tables: by reference, with nothing that it would have to ask twice.

To numba a tuple of arrays is its forty arrays: every call that is not inlined copies them all, every index is looked at
for being negative, every store may have changed every other table. Here a table set (`by_reference`) is one pointer to a
frame that stands still during a call from Python, and its arrays are `Cells`:

- a negative index is not one from the end: there is no such index in a kernel;
- a count of columns that is a constant of the code is one of the machine code too;
- two tables never overlap, and the compiler is told so (type-based alias analysis: each table's cells are a type).

With ``NUMBA_DISABLE_JIT=1`` nothing of this exists: the same functions run on the NumPy arrays themselves.
"""

import operator
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, Annotated

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.imputils import lower_builtin, lower_getattr, lower_getattr_generic
from numba.core.pythonapi import NativeValue, unbox
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.core.typing.typeof import typeof_impl

T = TypeVar("T")

_ARRAY_DATA, _ARRAY_DIMENSIONS = 16, 32
"""Where NumPy's array object keeps its data and its shape: part of its stable binary interface."""


class Cells(types.Type):
    """An array of a table, or a part of it that begins at an index."""

    def __init__(self, dtype: Any, ndim: int, table: str, columns: int) -> None:
        """Describe it.

        Args:
            dtype: Of a cell.
            ndim: Dimensions.
            table: Cells of different tables do not overlap.
            columns: Length of the last dimension where that is known to the code; 0: it is not.
        """
        self.dtype, self.ndim, self.table, self.columns = dtype, ndim, table, columns
        super().__init__(name=f"Cells({dtype}, {ndim}, {table}, {columns})")

    def within(self, depth: int) -> Any:
        """What so many indices lead to."""
        return self.dtype if depth == self.ndim else Cells(self.dtype, self.ndim - depth, self.table, self.columns)


class Reference(types.Type):
    """A set of tables, passed as one pointer."""

    def __init__(self, kind: str, fields: tuple[tuple[str, Any], ...]) -> None:
        """Describe it by its class and its fields in order."""
        self.fields = dict(fields)
        super().__init__(name=f"Reference({kind}, {fields})")


@register_default(Cells)
class _CellsModel(models.StructModel):
    def __init__(self, manager: Any, kind: Cells) -> None:
        members = [("data", types.CPointer(kind.dtype))] + [(f"length{axis}", types.intp) for axis in range(kind.ndim)]
        super().__init__(manager, kind, members)


register_default(Reference)(models.OpaqueModel)


def by_reference(kind: type[T]) -> type[T]:
    """Have compiled code take a NamedTuple of arrays and numbers by reference."""
    if numba.config.DISABLE_JIT:
        return kind
    hints = get_type_hints(kind, include_extras=True)
    columns = {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}

    known: list[Reference] = []

    @typeof_impl.register(kind)
    def describe(value: Any, context: Any) -> Reference:
        if known:
            return known[0]
        fields = []
        for name, field in zip(value._fields, value, strict=True):
            described = typeof_impl(field, context)
            if isinstance(field, np.ndarray):
                assert described.layout == "C"
                assert name not in columns or field.shape[-1] == columns[name], name
                described = Cells(described.dtype, described.ndim, f"{kind.__module__}.{kind.__name__}.{name}", columns.get(name, 0))
            elif isinstance(described, types.Integer):
                described = types.int64
            fields.append((name, described))
        known.append(Reference(f"{kind.__module__}.{kind.__name__}", tuple(fields)))
        return known[0]

    return kind


def _frame(context: Any, kind: Reference) -> Any:
    return ir.LiteralStructType([context.get_value_type(field) for field in kind.fields.values()])


@unbox(Reference)
def _unbox_reference(kind: Reference, value: Any, c: Any) -> NativeValue:
    builder = c.builder
    frame = cgutils.alloca_once(builder, _frame(c.context, kind))
    failed = cgutils.alloca_once_value(builder, cgutils.false_bit)
    for position, field in enumerate(kind.fields.values()):
        native = c.unbox(field, c.pyapi.tuple_getitem(value, position))
        builder.store(native.value, cgutils.gep_inbounds(builder, frame, 0, position))
        if not isinstance(field, Cells):
            builder.store(builder.or_(builder.load(failed), native.is_error), failed)
    return NativeValue(builder.bitcast(frame, cgutils.voidptr_t), is_error=builder.load(failed))


@unbox(Cells)
def _unbox_cells(kind: Cells, value: Any, c: Any) -> NativeValue:
    builder = c.builder

    def at(offset: int, of: Any) -> Any:
        start = builder.gep(builder.bitcast(value, cgutils.voidptr_t), [ir.Constant(cgutils.intp_t, offset)])
        return builder.load(builder.bitcast(start, of.as_pointer()))

    data = at(_ARRAY_DATA, c.context.get_value_type(types.CPointer(kind.dtype)))
    lengths = at(_ARRAY_DIMENSIONS, cgutils.intp_t.as_pointer())
    members = [data] + [builder.load(cgutils.gep_inbounds(builder, lengths, axis)) for axis in range(kind.ndim)]
    return NativeValue(_struct(c.context, builder, kind, members))


def _struct(context: Any, builder: Any, kind: Any, members: list[Any]) -> Any:
    value = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for position, member in enumerate(members):
        value = builder.insert_value(value, member, position)
    return value


def _apart(builder: Any, instruction: Any, place: str) -> Any:
    """Mark a load or store as one of a place that no other place overlaps."""
    module = builder.module
    root = module.add_metadata([ir.MetaDataString(module, "loadslice")])
    node = module.add_metadata([ir.MetaDataString(module, place), root, ir.Constant(ir.IntType(64), 0)])
    instruction.set_metadata("tbaa", module.add_metadata([node, node, ir.Constant(ir.IntType(64), 0)]))
    return instruction


@infer_getattr
class _FieldOfReference(AttributeTemplate):
    key = Reference

    def generic_resolve(self, kind: Reference, name: str) -> Any:
        return kind.fields.get(name)


@lower_getattr_generic(Reference)
def _get_field(context: Any, builder: Any, kind: Reference, value: Any, name: str) -> Any:
    frame = builder.bitcast(value, _frame(context, kind).as_pointer())
    position = list(kind.fields).index(name)
    field = kind.fields[name]
    if not isinstance(field, Cells):
        return _apart(builder, builder.load(cgutils.gep_inbounds(builder, frame, 0, position)), "frame")
    members = [
        _apart(builder, builder.load(cgutils.gep_inbounds(builder, frame, 0, position, member)), "frame")
        for member in range(1 + field.ndim)
    ]
    if field.columns:
        members[-1] = ir.Constant(cgutils.intp_t, field.columns)
    return _struct(context, builder, field, members)


@infer_getattr
class _ShapeOfCells(AttributeTemplate):
    key = Cells

    def resolve_shape(self, kind: Cells) -> Any:
        return types.UniTuple(types.intp, kind.ndim)


@lower_getattr(Cells, "shape")
def _get_shape(context: Any, builder: Any, kind: Cells, value: Any) -> Any:
    lengths = [_length(builder, kind, value, axis) for axis in range(kind.ndim)]
    return context.make_tuple(builder, types.UniTuple(types.intp, kind.ndim), lengths)


def _length(builder: Any, kind: Cells, value: Any, axis: int) -> Any:
    if kind.columns and axis == kind.ndim - 1:
        return ir.Constant(cgutils.intp_t, kind.columns)
    return builder.extract_value(value, 1 + axis)


def _depth(kind: Any, index: Any) -> int | None:
    """How many indices there are; ``None``: it is no index of cells."""
    parts = index.types if isinstance(index, types.BaseTuple) else (index,)
    whole = all(isinstance(types.unliteral(part), types.Integer) for part in parts)
    return len(parts) if isinstance(kind, Cells) and whole and len(parts) <= kind.ndim else None


def _address(context: Any, builder: Any, kind: Cells, value: Any, index_type: Any, index: Any) -> Any:
    """Where an index leads to."""
    if isinstance(index_type, types.BaseTuple):
        parts = list(zip(index_type.types, cgutils.unpack_tuple(builder, index), strict=True))
    else:
        parts = [(index_type, index)]
    offset = ir.Constant(cgutils.intp_t, 0)
    for axis in range(kind.ndim):
        if axis > 0:
            offset = builder.mul(offset, _length(builder, kind, value, axis), flags=("nsw",))
        if axis < len(parts):
            offset = builder.add(offset, context.cast(builder, parts[axis][1], parts[axis][0], types.intp), flags=("nsw",))
    return builder.gep(builder.extract_value(value, 0), [offset], inbounds=True)


@infer_global(operator.getitem)
class _GetCell(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        kind, index = args
        depth = _depth(kind, index)
        return None if depth is None else signature(kind.within(depth), kind, index)


@infer_global(operator.setitem)
class _SetCell(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        kind, index, _ = args
        return signature(types.none, kind, index, kind.dtype) if _depth(kind, index) == getattr(kind, "ndim", 0) else None


@lower_builtin(operator.getitem, Cells, types.Any)
def _get_cell(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_type = sig.args
    value, index = args
    address = _address(context, builder, kind, value, index_type, index)
    if not isinstance(sig.return_type, Cells):
        return _apart(builder, builder.load(address), kind.table)
    depth = kind.ndim - sig.return_type.ndim
    lengths = [_length(builder, kind, value, axis) for axis in range(depth, kind.ndim)]
    return _struct(context, builder, sig.return_type, [address, *lengths])


@lower_builtin(operator.setitem, Cells, types.Any, types.Any)
def _set_cell(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_type, _ = sig.args
    value, index, new = args
    address = _address(context, builder, kind, value, index_type, index)
    _apart(builder, builder.store(new, address), kind.table)
    return context.get_dummy_value()
