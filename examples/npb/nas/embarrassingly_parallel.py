"""EP: pairs of Gaussian random numbers, counted by square annuli.

With --balance a free rank draws the next batches: they form numbered pieces, long ones first. A rank begins with the
piece of its own number, and then draws the number of the next one from a counter in rank 0's memory by remote
fetch-and-add. Even and weighted shares are contiguous batches.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from mpi4py import MPI
from numba import types
from numba.extending import intrinsic

from overlap.arrays import block
from overlap.compiled import njit

from .kernel import DRAWN, Advance, Check, Kernel, Waiting, Weights
from .random_numbers import MASK, SCALE, jumped, power

SEED = 271828183
BATCH, BLOCK = 2**16, 2**11  # pairs; a block stays in the second-level cache
EXPONENTS = {"S": 24, "W": 25, "A": 28, "B": 30, "C": 32}
SUMS = {
    "S": (-3.247834652034740e3, -6.958407078382297e3),
    "W": (-2.863319731645753e3, -6.320053679109499e3),
    "A": (-4.295875165629892e3, -1.580732573678431e4),
    "B": (4.033815542441498e4, -2.660669192809235e4),
    "C": (4.764367927995374e4, -8.084072988043731e4),
}
COUNTS = {
    "S": (6140517, 5865300, 1100361, 68546, 1648, 17, 0),
    "W": (12281576, 11729692, 2202726, 137368, 3371, 36, 0),
    "A": (98257395, 93827014, 17611549, 1110028, 26536, 245, 0),
    "B": (393058470, 375280898, 70460742, 4438852, 105691, 948, 5),
    "C": (1572172634, 1501108549, 281805648, 17761221, 424017, 3821, 13),
}
ANNULI = 10

_ONE, _TWO = power(1), power(2)
_NEXT_BLOCK, _MASK = int(power(2 * BLOCK)), int(MASK)  # signed integers: products wrap around in the same way
_LN2 = float(np.log(2))
_MANTISSA, _ONE_BITS, _TWO_52_BITS = 2**52 - 1, 1023 << 52, 1075 << 52


@intrinsic
def _bits(typing, number):
    """Return the bits of a number."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _number(typing, bits):
    """Return the number with some bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@njit(inline="always")
def _float(small):
    """Convert an integer from 0 to 2^52 to a number by its bits, because many processors cannot convert 64-bit integers
    in vectors."""
    return _number(small | _TWO_52_BITS) - 2.0**52


@njit(fastmath={"contract"})
def _coordinates(states, x):
    """Map states to (-1, 1), and advance them to the next block."""
    for place in range(len(x)):
        x[place] = 2.0 * SCALE * _float(states[place]) - 1.0
        states[place] = (states[place] * _NEXT_BLOCK) & _MASK


@njit(fastmath={"contract"})
def _factors(x, y, factors):
    """Compute sqrt(-2 ln t / t) if t = x^2 + y^2 <= 1, else 0, without a branch, so that the loop is vectorised.

    With t = 2^e m, m near 1, ln t = e ln 2 + 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172; the series is cut after
    s^21.
    """
    for place in range(len(x)):
        t = x[place] * x[place] + y[place] * y[place]
        t = t if t <= 1.0 else 1.0
        bits = _bits(t)
        exponent = _float(bits >> 52) - 1023.0
        m = _number((bits & _MANTISSA) | _ONE_BITS)
        large = m > 1.4142135623730951
        m = 0.5 * m if large else m
        exponent = exponent + 1.0 if large else exponent
        s = (m - 1.0) / (m + 1.0)
        z = s * s
        z2 = z * z
        z4 = z2 * z2
        low = (1 / 3 + z * (1 / 5)) + z2 * (1 / 7 + z * (1 / 9))
        middle = (1 / 11 + z * (1 / 13)) + z2 * (1 / 15 + z * (1 / 17))
        high = 1 / 19 + z * (1 / 21)
        series = low + z4 * (middle + z4 * high)
        factors[place] = np.sqrt((exponent * (-2.0 * _LN2) - 4.0 * s * (1.0 + z * series)) / t)


@njit(fastmath={"reassoc", "contract"})
def _tally(x, y, factors, largest, sums, counts):
    """Add a block of pairs to the sums and the counts."""
    sum_x = sum_y = 0.0
    accepted = beyond_1 = beyond_2 = beyond_3 = beyond_4 = 0
    for place in range(len(x)):
        gauss_x, gauss_y = x[place] * factors[place], y[place] * factors[place]
        sum_x += gauss_x
        sum_y += gauss_y
        far_x, far_y = abs(gauss_x), abs(gauss_y)
        far = far_x if far_x > far_y else far_y
        largest[place] = far
        accepted += 1 if x[place] * x[place] + y[place] * y[place] <= 1.0 else 0
        beyond_1 += 1 if far >= 1.0 else 0
        beyond_2 += 1 if far >= 2.0 else 0
        beyond_3 += 1 if far >= 3.0 else 0
        beyond_4 += 1 if far >= 4.0 else 0
    sums[0] += sum_x
    sums[1] += sum_y
    counts[0] += accepted - beyond_1
    counts[1] += beyond_1 - beyond_2
    counts[2] += beyond_2 - beyond_3
    counts[3] += beyond_3 - beyond_4
    if beyond_4:  # true for a few in a hundred thousand
        for place in range(len(x)):
            if largest[place] >= 4.0:
                counts[int(largest[place])] += 1


@njit
def batch(state, pairs, sums, counts):
    """Add the pairs that follow a state to the sums of X and Y and to the counts of annuli; `pairs` is a multiple of
    the block.
    """
    first, second = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    x, y, factors, largest = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    for place in range(BLOCK):
        first[place] = (state * _ONE) & MASK
        state = (state * _TWO) & MASK
        second[place] = state
    for _ in range(0, pairs, BLOCK):
        _coordinates(first, x)
        _coordinates(second, y)
        _factors(x, y, factors)
        _tally(x, y, factors, largest, sums, counts)


def pieces(batches: int, ranks: int) -> np.ndarray:
    """Return the starts of the pieces that ranks draw: each is a quarter of a rank's part of the rest, and at least one
    batch.
    """
    edges = [0]
    while edges[-1] < batches:
        edges.append(edges[-1] + max(1, (batches - edges[-1]) // (4 * ranks)))
    return np.array(edges)


class EP(Kernel):
    """The kernel EP; see `Kernel`. With weights `DRAWN` ranks draw their batches."""

    name, title, operation, unit = "ep", "EP", "Random numbers generated", "batches"
    iterations = 0

    def __init__(self, comm: MPI.Intracomm, letter: str, weights: Weights, advance: Advance, hide: bool = True) -> None:
        super().__init__(comm, letter, weights, advance, hide)
        self._batches = 2 ** EXPONENTS[letter] // BATCH
        self._mine = None if weights == DRAWN else block(self._batches, comm.size, weights)[comm.rank]
        self._sums, self._counts = np.zeros(2), np.zeros(ANNULI, np.int64)
        self._pieces = pieces(self._batches, comm.size)
        self._counter = MPI.Win.Allocate(8 if comm.rank == 0 else 0, 8, comm=comm)
        self._counter.Lock_all()
        self._drawn, self._one = np.zeros(1, np.int64), np.ones(1, np.int64)

    @property
    def size(self) -> str:
        return str(2 ** (EXPONENTS[self.letter] + 1))

    @property
    def mop(self) -> float:
        return 2 ** (EXPONENTS[self.letter] + 1) / 1e6

    def warm_up(self) -> None:
        for number in range(16):
            batch(jumped(SEED, number), BATCH, np.zeros(2), np.zeros(ANNULI, np.int64))
        if self.comm.rank == 0:
            self._counter.Accumulate(np.array([self.comm.size]), 0, op=MPI.REPLACE)
            self._counter.Flush(0)

    def run(self) -> None:
        self._sums[:], self._counts[:] = 0, 0
        self.waited_s, self.share, self.messages = 0.0, 0, 0
        if self._mine is not None:
            self._compute(self._mine.start, self._mine.stop)
        else:
            piece = self.comm.rank
            while piece < len(self._pieces) - 1:
                self._compute(self._pieces[piece], self._pieces[piece + 1])
                piece = self._next()
        with Waiting(self):
            self.comm.Allreduce(MPI.IN_PLACE, self._sums)
            self.comm.Allreduce(MPI.IN_PLACE, self._counts)

    def _next(self):
        """Draw the number of a piece."""
        with Waiting(self):
            self._counter.Fetch_and_op(self._one, self._drawn, 0)
            self._counter.Flush(0)
        self.messages += self.comm.rank != 0
        return int(self._drawn[0])

    def _compute(self, first, last):
        for number in range(first, last):
            batch(jumped(SEED, number * 2 * BATCH), BATCH, self._sums, self._counts)
            self.share += 1
            self.comm.Iprobe()  # lets MPI progress, if other ranks' access to this rank's memory needs that
            self.advance(number + 1, self._batches)

    def checks(self) -> list[Check]:
        found = [
            Check(name, float(value), expected, 1e-8)
            for name, value, expected in zip(("sx", "sy"), self._sums, SUMS[self.letter])
        ]
        counts = (*COUNTS[self.letter], 0, 0, 0)
        return found + [
            Check(f"q{annulus}", int(value), counts[annulus], 0.0) for annulus, value in enumerate(self._counts)
        ]

    def close(self) -> None:
        self._counter.Unlock_all()
        self._counter.Free()
