"""How compiled code sees tables: by reference, with nothing that it would have to ask twice.

To numba a tuple of arrays is its forty arrays: each call that is not inlined copies them all, each index is asked
whether it is negative, and each store may have changed every other table. A NamedTuple that is `by_reference` is one
pointer instead, to a frame that stands still during a call from Python, and its arrays are `Cells`:

- a negative index counts from no end: no kernel has one;
- a length that is a constant of the source (``Annotated[Int64s, "E", columns]``: E rows of so many columns) is one of
  the machine code, and lengths of one name are one number: a place found in one array is found in all that are alike;
- no two tables overlap, and the compiler knows: to it the cells of each are a type of their own.

The decisions took two thirds of the time. With ``NUMBA_DISABLE_JIT=1`` nothing of this exists: the same functions run
on the NumPy arrays themselves.
"""

# numba is not typed, and of its stubs most is absent.
# mypy: disable-error-code="misc, untyped-decorator, attr-defined"

import operator
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.imputils import lower_builtin, lower_getattr, lower_getattr_generic
from numba.core.pythonapi import NativeValue, unbox
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.core.typing.typeof import typeof_impl
from numba.np.numpy_support import as_dtype

T = TypeVar("T")

# NumPy's array object and its dtype, by offset: both are part of its stable binary interface.
_DATA, _NDIM, _LENGTHS, _DTYPE, _FLAGS = 16, 24, 32, 56, 64
_DTYPE_BYTE_ORDER, _DTYPE_NUMBER = 26, 28
_CONTIGUOUS_AND_ALIGNED = 0x101


class Cells(types.Type):
    """An array of a table, or what an index into one leads to.

    Attributes:
        dtype: Of a cell.
        ndim: Dimensions.
        table: Which array of which tables.
        lengths: Of each dimension: a number or a name that the source gives it, or "".
    """

    def __init__(self, dtype: Any, ndim: int, table: str, lengths: tuple[int | str, ...]) -> None:
        """Describe it; the last ``lengths`` are those of the last dimensions, others have none."""
        self.dtype, self.ndim, self.table = dtype, ndim, table
        self.lengths = ("",) * (ndim - len(lengths)) + lengths
        super().__init__(name=f"Cells({dtype}, {ndim}, {table}, {self.lengths})")

    def beyond(self, depth: int) -> Any:
        """What so many indices lead to: a cell, or fewer dimensions."""
        if depth == self.ndim:
            return self.dtype
        return Cells(self.dtype, self.ndim - depth, self.table, self.lengths[depth:])


class Reference(types.Type):
    """Tables, passed as one pointer.

    Attributes:
        fields: Their types by name, in order.
    """

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        """Describe them."""
        self.fields = fields
        super().__init__(name=f"Reference({name})")

        self._first: dict[int | str, tuple[int, int]] = {}
        for position, field in enumerate(fields.values()):
            for axis, length in enumerate(field.lengths if isinstance(field, Cells) else ()):
                self._first.setdefault(length, (position, axis))

    @property
    def key(self) -> Any:
        """Who it is: its name alone stands in the names of all functions that take it."""
        return self.name, tuple(self.fields.items())

    def length_at(self, position: int, axis: int) -> tuple[int, int]:
        """Position and axis where a length is read: of those of one name the first."""
        length = list(self.fields.values())[position].lengths[axis]
        return self._first[length] if length else (position, axis)


@register_default(Cells)
class _CellsModel(models.StructModel):
    def __init__(self, manager: Any, kind: Cells) -> None:
        lengths = [(f"length{axis}", types.intp) for axis in range(kind.ndim)]
        super().__init__(manager, kind, [("data", types.CPointer(kind.dtype)), *lengths])


register_default(Reference)(models.OpaqueModel)


def by_reference(tables: type[T]) -> type[T]:
    """Have compiled code take a NamedTuple of arrays, numbers and other such tuples by reference.

    Tuples in a tuple lie in its frame, so that one pointer leads to all of them.

    All of its values must have arrays of one dtype, number of dimensions, layout (C) and, where the source states them,
    lengths, or calls raise `TypeError`.
    """
    if numba.config.DISABLE_JIT:
        return tables
    hints = get_type_hints(tables, include_extras=True)
    lengths = {name: get_args(hint)[1:] for name, hint in hints.items() if get_origin(hint) is Annotated}
    path = f"{tables.__module__}.{tables.__qualname__}"
    known: list[Reference] = []

    def field_type(name: str, value: Any, context: Any) -> Any:
        if isinstance(value, tuple):
            return typeof_impl(value, context)
        if not isinstance(value, np.ndarray):
            return {int: types.int64, float: types.float64}[hints[name]]
        return Cells(typeof_impl(value, context).dtype, value.ndim, f"{path}.{name}", lengths.get(name, ()))

    @typeof_impl.register(tables)
    def describe(value: Any, context: Any) -> Reference:
        if not known:
            fields = {name: field_type(name, field, context) for name, field in value._asdict().items()}
            known.append(Reference(path, fields))
        return known[0]

    return tables


def _frame(context: Any, kind: Reference) -> Any:
    return ir.LiteralStructType(
        [
            _frame(context, field) if isinstance(field, Reference) else context.get_value_type(field)
            for field in kind.fields.values()
        ]
    )


@unbox(Reference)
def _unbox_reference(kind: Reference, value: Any, c: Any) -> NativeValue:
    frame = cgutils.alloca_once(c.builder, _frame(c.context, kind))
    is_error = _fill(kind, value, frame, c)
    return NativeValue(c.builder.bitcast(frame, cgutils.voidptr_t), is_error=is_error)


def _fill(kind: Reference, value: Any, frame: Any, c: Any) -> Any:
    """Fill a frame from a tuple; whether anything in it is wrong."""
    is_error = cgutils.false_bit
    values: list[Any] = []
    for position, field in enumerate(kind.fields.values()):
        item, place = c.pyapi.tuple_getitem(value, position), cgutils.gep_inbounds(c.builder, frame, 0, position)
        if isinstance(field, Reference):
            values.append(None)
            is_error = c.builder.or_(is_error, _fill(field, item, place, c))
            continue
        native = c.unbox(field, item)
        values.append(native.value)
        c.builder.store(native.value, place)
        is_error = c.builder.or_(is_error, native.is_error)
        for axis in range(field.ndim if isinstance(field, Cells) else 0):
            first, first_axis = kind.length_at(position, axis)
            found, wanted = (
                c.builder.extract_value(values[at], 1 + along) for at, along in ((position, axis), (first, first_axis))
            )
            is_wrong = c.builder.and_(c.builder.not_(is_error), c.builder.icmp_signed("!=", found, wanted))
            with c.builder.if_then(is_wrong, likely=False):
                text = f"{field.table} has %zd cells in dimension {axis}, not %zd as {list(kind.fields)[first]}."
                c.pyapi.err_format("PyExc_TypeError", text, found, wanted)
            is_error = c.builder.or_(is_error, is_wrong)
    return is_error


@unbox(Cells)
def _unbox_cells(kind: Cells, value: Any, c: Any) -> NativeValue:
    builder = c.builder

    def at(thing: Any, offset: int, read_as: Any) -> Any:
        place = cgutils.pointer_add(builder, thing, ir.Constant(cgutils.intp_t, offset), read_as.as_pointer())
        return builder.load(place)

    dtype = at(value, _DTYPE, cgutils.voidptr_t)
    is_other = cgutils.false_bit
    for found, wanted in (
        (at(value, _NDIM, cgutils.int32_t), kind.ndim),
        (builder.and_(at(value, _FLAGS, cgutils.int32_t), cgutils.int32_t(_CONTIGUOUS_AND_ALIGNED)), 0x101),
        (at(dtype, _DTYPE_NUMBER, cgutils.int32_t), as_dtype(kind.dtype).num),
        (at(dtype, _DTYPE_BYTE_ORDER, ir.IntType(8)), ord("=")),
    ):
        is_other = builder.or_(is_other, builder.icmp_signed("!=", found, found.type(wanted)))
    with builder.if_then(is_other, likely=False):
        text = f"{kind.table} is not a C-contiguous array of {kind.dtype} in {kind.ndim} dimensions."
        c.pyapi.err_set_string("PyExc_TypeError", text)
    data = at(value, _DATA, c.context.get_value_type(types.CPointer(kind.dtype)))
    lengths = at(value, _LENGTHS, cgutils.intp_t.as_pointer())
    for axis, length in enumerate(kind.lengths):
        if isinstance(length, int):
            # Machine code goes from row to row by this number; by another it would read and write beside the table.
            found = builder.load(cgutils.gep_inbounds(builder, lengths, axis))
            is_wrong = builder.and_(builder.not_(is_other), builder.icmp_signed("!=", found, found.type(length)))
            with builder.if_then(is_wrong, likely=False):
                text = f"{kind.table} has rows of %zd columns, not of {length}."
                if axis + 1 < kind.ndim:
                    text = f"{kind.table} has %zd cells in dimension {axis}, not {length}."
                c.pyapi.err_format("PyExc_TypeError", text, found)
            is_other = builder.or_(is_other, is_wrong)
    members = [data] + [builder.load(cgutils.gep_inbounds(builder, lengths, axis)) for axis in range(kind.ndim)]
    return NativeValue(_struct(c.context, builder, kind, members), is_error=is_other)


def _struct(context: Any, builder: Any, kind: Cells, members: list[Any]) -> Any:
    """Cells from where they begin and their lengths."""
    value = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for position, member in enumerate(members):
        value = builder.insert_value(value, member, position)
    return value


def apart(builder: Any, access: Any, place: str) -> Any:
    """Say of a load or a store that its place overlaps with no other place (LLVM's type-based alias analysis)."""
    module, zero = builder.module, ir.Constant(ir.IntType(64), 0)
    root = module.add_metadata([ir.MetaDataString(module, "loadslice")])
    node = module.add_metadata([ir.MetaDataString(module, place), root, zero])
    access.set_metadata("tbaa", module.add_metadata([node, node, zero]))
    return access


@infer_getattr
class _Field(AttributeTemplate):
    key = Reference

    def generic_resolve(self, kind: Reference, name: str) -> Any:
        return kind.fields.get(name)


@lower_getattr_generic(Reference)
def _get_field(context: Any, builder: Any, kind: Reference, value: Any, name: str) -> Any:
    frame = builder.bitcast(value, _frame(context, kind).as_pointer())
    position, field = list(kind.fields).index(name), kind.fields[name]
    if isinstance(field, Reference):
        return builder.bitcast(cgutils.gep_inbounds(builder, frame, 0, position), cgutils.voidptr_t)

    def member(*path: int) -> Any:
        found = apart(builder, builder.load(cgutils.gep_inbounds(builder, frame, 0, *path)), "frame")
        found.set_metadata("invariant.load", builder.module.add_metadata([]))
        return found

    if not isinstance(field, Cells):
        return member(position)
    places = [kind.length_at(position, axis) for axis in range(field.ndim)]
    return _struct(context, builder, field, [member(position, 0), *(member(at, 1 + axis) for at, axis in places)])


@infer_getattr
class _Shape(AttributeTemplate):
    key = Cells

    def resolve_shape(self, kind: Cells) -> Any:
        return types.UniTuple(types.intp, kind.ndim)


@lower_getattr(Cells, "shape")
def _get_shape(context: Any, builder: Any, kind: Cells, value: Any) -> Any:
    lengths = [_length(builder, kind, value, axis) for axis in range(kind.ndim)]
    return context.make_tuple(builder, types.UniTuple(types.intp, kind.ndim), lengths)


def _length(builder: Any, kind: Cells, value: Any, axis: int) -> Any:
    if isinstance(kind.lengths[axis], int):
        return ir.Constant(cgutils.intp_t, kind.lengths[axis])
    return builder.extract_value(value, 1 + axis)


def _depth(kind: Any, index: Any) -> int | None:
    """How many indices there are; ``None``: they are no indices into cells."""
    parts = index.types if isinstance(index, types.BaseTuple) else (index,)
    whole = all(isinstance(types.unliteral(part), types.Integer) for part in parts)
    return len(parts) if isinstance(kind, Cells) and whole and len(parts) <= kind.ndim else None


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        kind, index = args
        depth = _depth(kind, index)
        return None if depth is None else signature(kind.beyond(depth), kind, index)


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        kind, index, _ = args
        depth = _depth(kind, index)
        return signature(types.none, kind, index, kind.dtype) if depth is not None and depth == kind.ndim else None


def _address(context: Any, builder: Any, kind: Cells, value: Any, index_type: Any, index: Any) -> Any:
    """Where an index leads to."""
    parts = [(index_type, index)]
    if isinstance(index_type, types.BaseTuple):
        parts = list(zip(index_type.types, cgutils.unpack_tuple(builder, index), strict=True))
    offset = ir.Constant(cgutils.intp_t, 0)
    for axis in range(kind.ndim):
        offset = builder.mul(offset, _length(builder, kind, value, axis), flags=("nsw",))
        if axis < len(parts):
            place = context.cast(builder, parts[axis][1], parts[axis][0], types.intp)
            offset = builder.add(offset, place, flags=("nsw",))
    return builder.gep(builder.extract_value(value, 0), [offset], inbounds=True)


@lower_builtin(operator.getitem, Cells, types.Any)
def _get_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_type = sig.args
    value, index = args
    address = _address(context, builder, kind, value, index_type, index)
    if not isinstance(sig.return_type, Cells):
        return apart(builder, builder.load(address), kind.table)
    lengths = [_length(builder, kind, value, axis) for axis in range(kind.ndim - sig.return_type.ndim, kind.ndim)]
    return _struct(context, builder, sig.return_type, [address, *lengths])


@lower_builtin(operator.setitem, Cells, types.Any, types.Any)
def _set_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_type, _ = sig.args
    value, index, new = args
    address = _address(context, builder, kind, value, index_type, index)
    apart(builder, builder.store(new, address), kind.table)
    return context.get_dummy_value()
