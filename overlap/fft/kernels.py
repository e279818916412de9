"""The sweeps of a batched 2-D transform: one set per worker, with the block size that is fastest here."""

from time import perf_counter

from ..arrays import length_of
from .engine.fftw import complex_of, empty, zeros
from .engine.kernels import ColumnSweep, RowSweep

BLOCK_NBYTES = (32 * 1024, 128 * 1024, 512 * 1024)
# One choice per problem and process: plans of one problem agree to the bit.
_block_rows_known: dict[tuple, int] = {}


class Kernels:
    """One worker's sweeps, both ways."""

    def __init__(self, slab, dtype, transposed, rows, effort):
        self.rows_forward = RowSweep(slab, dtype, True, rows, effort)
        self.rows_backward = RowSweep(slab, dtype, False, rows, effort)
        self.columns_forward = ColumnSweep(slab, dtype, True, transposed, effort)
        self.columns_backward = ColumnSweep(slab, dtype, False, transposed, effort)


class WorkersKernels(list):
    """One `Kernels` per worker.

    Attributes
    ----------
    rows : int
        Rows per block of the sweeps along x.
    """

    def __init__(self, kernels, rows):
        super().__init__(kernels)
        self.rows = rows


def block_rows(slab, dtype, effort):
    """Rows per block of the sweep along x: the fastest of a few cache-sized ones."""
    key = slab.my_rows, slab.mx, slab.nx, dtype, effort
    if key not in _block_rows_known:
        line_nbytes = slab.mx * complex_of(dtype).itemsize
        candidates = sorted({max(1, min(slab.my_rows, nbytes // line_nbytes))
                             for nbytes in BLOCK_NBYTES})
        _block_rows_known[key] = candidates[0] if len(candidates) == 1 else min(
            candidates, key=lambda rows: _sweep_seconds(slab, dtype, rows, effort))
    return _block_rows_known[key]


def _sweep_seconds(slab, dtype, rows, effort):
    """Time of one sweep along x over planes that are not in the cache."""
    sweep = RowSweep(slab, dtype, True, rows, effort)
    plane_nbytes = max(1, slab.my_rows * slab.mx * dtype.itemsize)
    planes = max(1, min(64, 2**24 // plane_nbytes))
    source = zeros((planes, slab.my_rows, slab.mx), dtype)
    pieces = [empty((slab.my_rows, length_of(part)), complex_of(dtype))
              for part in slab.columns]
    seconds = []
    for _ in range(3):
        started = perf_counter()
        for plane in source:
            sweep.forward(plane, pieces, 1.0)
        seconds.append(perf_counter() - started)
    return min(seconds)
