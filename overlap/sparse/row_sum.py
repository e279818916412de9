"""Sums a sparse row eight numbers at a time, in vectors of four whose entries are loaded one by one.

By itself a compiler adds the numbers of a row one by one, and each addition waits for the one before. Gather
instructions, which load several entries at once, are slower than single loads on AMD's processors.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import overload

from ..compiled import intrinsic
from .prefetch import FAR, fetched

_LANES, _VECTORS = 4, 2
_STEP = _LANES * _VECTORS
_INDEX, _LANE = ir.IntType(64), ir.IntType(32)


def row_sum(values: Any, columns: Any, x: Any, first: Any, last: Any) -> Any:
    """Sum values[i] x[columns[i]] for i from `first` to `last` - 1; for compiled code."""
    raise NotImplementedError


@overload(row_sum, jit_options={"fastmath": {"contract"}})
def _compiled(values: Any, columns: Any, x: Any, first: Any, last: Any) -> Any:
    if (
        isinstance(values.dtype, types.Float)
        and values.dtype == x.dtype
        and values.layout == columns.layout == x.layout == "C"
    ):

        def by_vectors(values: Any, columns: Any, x: Any, first: Any, last: Any) -> Any:  # numba compares signatures
            return _by_vectors(values, columns, x, first, last)

        return by_vectors

    def by_fours(values: Any, columns: Any, x: Any, first: Any, last: Any) -> Any:
        factors, places = values[first:last], columns[first:last]
        a = b = c = d = values.dtype.type(0)
        rest = len(factors) % 4
        for entry in range(rest, len(factors), 4):
            a += factors[entry] * x[places[entry]]
            b += factors[entry + 1] * x[places[entry + 1]]
            c += factors[entry + 2] * x[places[entry + 2]]
            d += factors[entry + 3] * x[places[entry + 3]]
        for entry in range(rest):
            a += factors[entry] * x[places[entry]]
        return (a + b) + (c + d)

    return by_fours


@intrinsic
def _by_vectors(typingctx: Any, values: Any, columns: Any, x: Any, first: Any, last: Any) -> Any:
    """Sum real numbers: eight at a time in two vectors, then four in one vector, then the last ones singly."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        factors, places, entries = (
            context.make_array(kind)(context, builder, array).data for kind, array in zip(signature.args[:3], arguments)
        )
        first, last = arguments[3:]
        number = factors.type.pointee
        vector = ir.VectorType(number, _LANES)
        zeros = ir.Constant(vector, [0.0] * _LANES)
        sums = [cgutils.alloca_once(builder, vector) for _ in range(_VECTORS)]
        rest = cgutils.alloca_once(builder, number)
        for each in sums:
            builder.store(zeros, each)
        builder.store(ir.Constant(number, 0.0), rest)

        def add(total: Any, factor: Any, entry: Any) -> None:
            product = builder.fmul(factor, entry, flags=["contract"])
            builder.store(builder.fadd(builder.load(total), product, flags=["contract"]), total)

        def entry_of(at: Any) -> Any:
            return builder.load(builder.gep(entries, [builder.zext(builder.load(builder.gep(places, [at])), _INDEX)]))

        def add_vector(total: Any, at: Any) -> None:
            picked = ir.Constant(vector, ir.Undefined)
            for lane in range(_LANES):
                picked = builder.insert_element(picked, entry_of(builder.add(at, _INDEX(lane))), _LANE(lane))
            address = builder.bitcast(builder.gep(factors, [at]), vector.as_pointer())
            add(total, builder.load(address, align=context.get_abi_sizeof(number)), picked)

        def whole(begin: Any, step: Any) -> Any:
            """Return the end of the last complete step."""
            return builder.add(begin, builder.and_(builder.sub(last, begin), _INDEX(-step)))

        fetched(builder, builder.gep(factors, [builder.add(first, _INDEX(FAR))]))
        middle = whole(first, _STEP)
        with cgutils.for_range_slice(builder, first, middle, _INDEX(_STEP)) as (at, _):
            fetched(builder, builder.gep(factors, [builder.add(at, _INDEX(FAR + _STEP))]))
            for place, each in enumerate(sums):
                add_vector(each, builder.add(at, _INDEX(place * _LANES)))
        end = whole(middle, _LANES)
        with cgutils.for_range_slice(builder, middle, end, _INDEX(_LANES)) as (at, _):
            add_vector(sums[0], at)
        with cgutils.for_range_slice(builder, end, last, _INDEX(1)) as (at, _):
            add(rest, builder.load(builder.gep(factors, [at])), entry_of(at))
        total = builder.fadd(builder.load(sums[0]), builder.load(sums[1]))
        a, b, c, d = (builder.extract_element(total, _LANE(lane)) for lane in range(_LANES))
        return builder.fadd(builder.fadd(builder.fadd(a, b), builder.fadd(c, d)), builder.load(rest))

    return values.dtype(values, columns, x, types.int64, types.int64), codegen
