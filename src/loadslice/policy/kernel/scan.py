"""The one look at every engine that each arrival takes, eight of them at a time.

A compiler left to itself looks at one after the other, which at 64 engines was a third of a decision.
"""

# numba is not typed, and of its stubs most is absent.
# mypy: disable-error-code="misc, untyped-decorator, attr-defined"

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numpy.typing import NDArray

from loadslice.policy.kernel.cells import Cells, apart

_WIDTH = 8
_VECTOR = ir.VectorType(cgutils.intp_t, _WIDTH)
_PLACES = ir.Constant(_VECTOR, list(range(_WIDTH)))
_MOST = (1 << 63) - 1


def first_least(
    now_ns: int, ends_ns: NDArray[np.int64], backlog_ns: NDArray[np.int64], quick_ns: NDArray[np.int64]
) -> int:
    """The first place where ``max(ends_ns, now_ns) + backlog_ns + quick_ns`` is least; rows of one length, not 0."""
    return int(np.argmin(np.maximum(ends_ns, now_ns) + backlog_ns + quick_ns))


@infer_global(first_least)
class _FirstLeast(AbstractTemplate):
    def generic(self, args: Any, _kws: Any) -> Any:
        rows = args[1:]
        is_known = len(rows) == 3 and all(isinstance(row, Cells) and row.ndim == 1 for row in rows)
        return signature(types.int64, types.int64, *rows) if is_known else None


@lower_builtin(first_least, types.Integer, Cells, Cells, Cells)
def _lower(_context: Any, builder: Any, sig: Any, args: Any) -> Any:
    now, kinds = args[0], sig.args[1:]
    rows = [builder.extract_value(row, 0) for row in args[1:]]
    length = builder.extract_value(args[3], 1)
    answer = cgutils.alloca_once(builder, cgutils.intp_t)

    def sums(place: Any, vector: bool) -> Any:
        """What is expected from this place on: of one engine, or of eight."""
        kind = _VECTOR if vector else cgutils.intp_t
        starts = [builder.bitcast(builder.gep(row, [place], inbounds=True), kind.as_pointer()) for row in rows]
        found = [
            apart(builder, builder.load(start, align=8), row.table) for start, row in zip(starts, kinds, strict=True)
        ]
        since = _splat(builder, now) if vector else now
        ends = builder.select(builder.icmp_signed(">", found[0], since), found[0], since)
        return builder.add(builder.add(ends, found[1]), found[2])

    def keep_less(least: Any, at: Any, value: Any, place: Any) -> None:
        is_less = builder.icmp_signed("<", value, builder.load(least))
        builder.store(builder.select(is_less, value, builder.load(least)), least)
        builder.store(builder.select(is_less, place, builder.load(at)), at)

    with builder.if_else(builder.icmp_signed("<", length, length.type(_WIDTH))) as (few, many):
        with few:
            least = cgutils.alloca_once_value(builder, length.type(_MOST))
            builder.store(length.type(0), answer)
            with cgutils.for_range(builder, length) as loop:
                keep_less(least, answer, sums(loop.index, vector=False), loop.index)
        with many:
            least = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [_MOST] * _WIDTH))
            at = cgutils.alloca_once_value(builder, _PLACES)
            last = builder.sub(length, length.type(_WIDTH))
            blocks = builder.sdiv(builder.add(length, length.type(_WIDTH - 1)), length.type(_WIDTH))
            with cgutils.for_range(builder, blocks) as loop:
                # The last eight overlap with those before, if they must: the same place twice does no harm.
                start = builder.mul(loop.index, length.type(_WIDTH))
                start = builder.select(builder.icmp_signed("<", start, last), start, last)
                keep_less(least, at, sums(start, vector=True), builder.add(_splat(builder, start), _PLACES))
            lanes = builder.load(least)
            is_least = builder.icmp_signed("==", lanes, _splat(builder, _smallest(builder, lanes)))
            places = builder.select(is_least, builder.load(at), ir.Constant(_VECTOR, [_MOST] * _WIDTH))
            builder.store(_smallest(builder, places), answer)
    return builder.load(answer)


def _splat(builder: Any, value: Any) -> Any:
    """Eight times the same."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), _WIDTH), [0] * _WIDTH)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), mask)


def _smallest(builder: Any, lanes: Any) -> Any:
    kind = ir.FunctionType(cgutils.intp_t, [_VECTOR])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.smin.v{_WIDTH}i64")
    return builder.call(reduce, [lanes])
