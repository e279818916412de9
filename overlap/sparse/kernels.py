"""Compiled kernels of sparse products and of vectors: no temporaries, no GIL; sums in one fixed order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import overload

from ..compiled import intrinsic, njit
from ..compiled.memory import FAR, fetched, prefetch

_RUN = 2048  # rows of a product by diagonals, which stay in the first-level cache


@njit
def csr(starts: Any, columns: Any, values: Any, x: Any, y: Any, first: Any, last: Any) -> None:
    """Compute rows `first` to `last` - 1 of y = A x."""
    for row in range(first, last):
        y[row] = row_sum(values, columns, x, starts[row], starts[row + 1])


@njit
def csr_transposed(starts: Any, columns: Any, values: Any, x: Any, y: Any, rows: Any) -> None:
    """Add A^T x to y."""
    for row in range(rows):
        factor = x[row]
        for entry in range(starts[row], starts[row + 1]):
            y[columns[entry]] += values[entry] * factor


@njit
def blocks(starts: Any, columns: Any, values: Any, x: Any, y: Any, first: Any, last: Any) -> None:
    """Do as `csr` for small square blocks: values (entries, b, b), vectors (rows, b)."""
    size = values.shape[1]
    for row in range(first, last):
        for i in range(size):
            y[row, i] = 0
        for entry in range(starts[row], starts[row + 1]):
            column = columns[entry]
            for i in range(size):
                total = y[row, i]
                for j in range(size):
                    total += values[entry, i, j] * x[column, j]
                y[row, i] = total


@njit(fastmath={"contract"})
def product_of_3(values: Any, entry: Any, u: Any, v: Any, w: Any) -> Any:
    """Multiply a 3 x 3 block by (u, v, w)."""
    return (
        values[entry, 0, 0] * u + values[entry, 0, 1] * v + values[entry, 0, 2] * w,
        values[entry, 1, 0] * u + values[entry, 1, 1] * v + values[entry, 1, 2] * w,
        values[entry, 2, 0] * u + values[entry, 2, 1] * v + values[entry, 2, 2] * w,
    )


@njit
def blocks_of_3(starts: Any, columns: Any, values: Any, x: Any, y: Any, first: Any, last: Any) -> None:
    """Do as `blocks` with b = 3; sums stay in registers."""
    for row in range(first, last):
        a = b = c = values.dtype.type(0)
        for entry in range(starts[row], starts[row + 1]):
            column = columns[entry]
            prefetch(values, 9 * entry + FAR)
            u, v, w = product_of_3(values, entry, x[column, 0], x[column, 1], x[column, 2])
            a, b, c = a + u, b + v, c + w
        y[row, 0] = a
        y[row, 1] = b
        y[row, 2] = c


@njit
def blocks_transposed(starts: Any, columns: Any, values: Any, x: Any, y: Any, rows: Any) -> None:
    """Add A^T x to y, for blocks."""
    size = values.shape[1]
    for row in range(rows):
        for entry in range(starts[row], starts[row + 1]):
            column = columns[entry]
            for i in range(size):
                factor = x[row, i]
                for j in range(size):
                    y[column, j] += values[entry, i, j] * factor


@njit
def diagonals(offsets: Any, values: Any, x: Any, y: Any, low: Any, first: Any, last: Any) -> None:
    """Compute rows of y = A x from diagonals: values[d, row] is in column row + offsets[d]; x[low] belongs to row 0."""
    for begin in range(first, last, _RUN):
        end = min(begin + _RUN, last)
        out = y[begin:end]  # in slices numba knows that no index is negative, so it vectorises loops
        shift = low + offsets[0]
        factors, entries = values[0, begin:end], x[shift + begin : shift + end]
        for place in range(len(out)):
            out[place] = factors[place] * entries[place]
        for number in range(1, len(offsets)):
            shift = low + offsets[number]
            factors, entries = values[number, begin:end], x[shift + begin : shift + end]
            for place in range(len(out)):
                out[place] += factors[place] * entries[place]


@njit
def symmetric_diagonals(offsets: Any, values: Any, x: Any, y: Any, low: Any, first: Any, last: Any) -> None:
    """Compute rows of y = A x for a symmetric A from its diagonals with offsets >= 0, the main one first.

    values[d, low + row] stands in (row, row + offsets[d]) and in its mirror image; rows from -low on.
    """
    for begin in range(first, last, _RUN):
        end = min(begin + _RUN, last)
        out, at = y[begin:end], low + begin
        length = end - begin
        factors, entries = values[0, at : at + length], x[at : at + length]
        for place in range(len(out)):
            out[place] = factors[place] * entries[place]
        for number in range(1, len(offsets)):
            offset = offsets[number]
            up, down = x[at + offset : at + offset + length], x[at - offset : at - offset + length]
            above, below = values[number, at : at + length], values[number, at - offset : at - offset + length]
            for place in range(len(out)):
                out[place] += above[place] * up[place] + below[place] * down[place]


@njit(fastmath={"reassoc", "contract"})
def dot(a: Any, b: Any) -> Any:
    """Return the sum of a b."""
    total = a.dtype.type(0)
    for place in range(len(a)):
        total += a[place] * b[place]
    return total


@njit
def step(alpha: Any, q: Any, r: Any) -> None:
    """Compute r -= alpha q."""
    for place in range(len(r)):
        r[place] -= alpha * q[place]


@njit(fastmath={"reassoc", "contract"})
def scaled_step(alpha: Any, q: Any, d: Any, r: Any, sums: Any) -> None:
    """Compute r -= alpha q, and the sums r.r and r.(d r)."""
    first = second = r.dtype.type(0)
    for place in range(len(r)):
        residual = r[place] - alpha * q[place]
        r[place] = residual
        first += residual * residual
        second += residual * residual * d[place]
    sums[0] = first
    sums[1] = second


@njit
def turn(alpha: Any, beta: Any, z: Any, x: Any, p: Any) -> None:
    """Compute x += alpha p; p = z + beta p, reading p once."""
    for place in range(len(p)):
        direction = p[place]
        x[place] += alpha * direction
        p[place] = z[place] + beta * direction


@njit
def scaled_turn(alpha: Any, beta: Any, d: Any, r: Any, x: Any, p: Any) -> None:
    """Compute x += alpha p; p = d r + beta p."""
    for place in range(len(p)):
        direction = p[place]
        x[place] += alpha * direction
        p[place] = d[place] * r[place] + beta * direction


@njit
def single_step(alpha: Any, beta: Any, u: Any, w: Any, p: Any, s: Any, x: Any, r: Any) -> None:
    """Compute p = u + beta p; s = w + beta s; x += alpha p; r -= alpha s."""
    for place in range(len(p)):
        p[place] = along = u[place] + beta * p[place]
        s[place] = change = w[place] + beta * s[place]
        x[place] += alpha * along
        r[place] -= alpha * change


@njit(fastmath={"reassoc", "contract"})
def pipelined_step(alpha: Any, beta: Any, n: Any, m: Any, directions: Any, vectors: Any, sums: Any) -> None:
    """Make a step of pipelined conjugate gradients, and compute this rank's part of the next sums.

    directions are z, q, s, p = n, m, w, u + beta (z, q, s, p); of vectors, x += alpha p and r, u, w -= alpha (s, q, z).
    sums become the real parts of u.r, u.w and r.r, u conjugated.
    """
    z, q, s, p = directions
    x, r, u, w = vectors
    first = second = third = sums[0] * 0
    for place in range(len(r)):
        z[place] = z_here = n[place] + beta * z[place]
        q[place] = q_here = m[place] + beta * q[place]
        s[place] = s_here = w[place] + beta * s[place]
        p[place] = p_here = u[place] + beta * p[place]
        x[place] += alpha * p_here
        r[place] = r_here = r[place] - alpha * s_here
        u[place] = u_here = u[place] - alpha * q_here
        w[place] = w_here = w[place] - alpha * z_here
        first += u_here.real * r_here.real + u_here.imag * r_here.imag
        second += u_here.real * w_here.real + u_here.imag * w_here.imag
        third += r_here.real * r_here.real + r_here.imag * r_here.imag
    sums[0] = first
    sums[1] = second
    sums[2] = third


@njit
def scale_blocks(inverses: Any, r: Any, z: Any) -> None:
    """Compute z = D r with a small dense block for each row; vectors (rows, b)."""
    size = inverses.shape[1]
    for row in range(len(inverses)):
        for i in range(size):
            total = inverses.dtype.type(0)
            for j in range(size):
                total += inverses[row, i, j] * r[row, j]
            z[row, i] = total


# ---- sums of rows --------------------------------------------------------------------------------
#
# Sums a sparse row eight numbers at a time, in vectors of four whose entries are loaded one by one.
#
# By itself a compiler adds the numbers of a row one by one, and each addition waits for the one before. Gather
# instructions, which load several entries at once, are slower than single loads on AMD's processors.

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


class ThreadPool:
    """Shares a range among threads, the caller's among them.

    The results must not depend on where the range is cut; they are then the same bits for any number of workers.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._others = ThreadPoolExecutor(workers - 1, "sparse worker") if workers > 1 else None

    def run(self, function: Callable[[int, int], object], first: int, last: int, least: int = 2) -> None:
        """Call ``function(begin, end)`` for parts of the range from `first` to `last` - 1; return when all parts are
        complete.

        A range shorter than `least` is not shared.
        """
        if self._others is None or last - first < least:
            function(first, last)
            return
        cuts = [first + (last - first) * number // self.workers for number in range(self.workers + 1)]
        parts = [self._others.submit(function, *cut) for cut in pairwise(cuts[1:])]
        try:
            function(*cuts[:2])
        finally:
            for part in parts:
                part.result()

    def close(self) -> None:
        """End the threads."""
        if self._others is not None:
            self._others.shutdown()
