"""The local sweeps of one plane: move data once, transform where it is hot.

Along x a block of rows is loaded into scratch memory that stays in the second-level cache,
transformed there and copied to where it is sent from (going back: the other way round). Along y the
plane is transformed in place, where it was received or where it will be sent from; only a result
on another grid, or one that FFTW cannot take in place, goes through scratch memory as well.

One FFTW plan per sweep, whatever the number of slices per message: a plane's result has the same
bits in every mode, depth and chunk. Kernels belong to one worker: they own their scratch memory.
"""

import numpy as np

from ...arrays import complement, length_of
from .fftw import InPlace, Scratch, complex_of, fits, strided_effort, zeros


def copy(target, source, scale=1.0):
    """Copy, times `scale`; without the multiplication where it is one."""
    if scale == 1.0:
        np.copyto(target, source)
    else:
        np.multiply(source, scale, out=target)


class RowSweep:
    """FFTs along x of one plane's local rows, between real space and pieces by columns.

    Parameters
    ----------
    slab : Slab
    dtype : dtype
        Type in real space.
    forward : bool
    rows : int
        Rows per block.
    effort : str
        FFTW planning effort.
    """

    def __init__(self, slab, dtype, forward, rows, effort):
        self._blocks = []
        made = {}
        for start in range(0, slab.my_rows, rows):
            count = min(rows, slab.my_rows - start)
            if count not in made:
                made[count] = Scratch((count, slab.mx), 1, dtype, forward, effort)
            self._blocks.append((slice(start, start + count), made[count]))
        self._segments = slab.column_segments
        fine = sorted((pair[1] for pairs in slab.column_segments for pair in pairs),
                      key=lambda part: part.start)
        self._fine_gaps = complement(fine, slab.fine_columns)
        self._gaps = [complement([pair[0] for pair in pairs], length_of(part))
                      for pairs, part in zip(slab.column_segments, slab.columns)]

    def forward(self, source, pieces, scale):
        """Transform `source` (rows, mx) into `pieces`, one (rows, columns of p) per rank."""
        for rows, scratch in self._blocks:
            copy(scratch.physical, source[rows], scale)
            scratch.execute()
            for piece, segments, gaps in zip(pieces, self._segments, self._gaps):
                for resolved, fine in segments:
                    np.copyto(piece[rows, resolved], scratch.spectral[:, fine])
                for gap in gaps:
                    piece[rows, gap] = 0

    def backward(self, pieces, target, scale):
        """Transform `pieces` into `target` (rows, mx)."""
        for rows, scratch in self._blocks:
            for piece, segments in zip(pieces, self._segments):
                for resolved, fine in segments:
                    np.copyto(scratch.spectral[:, fine], piece[rows, resolved])
            for gap in self._fine_gaps:
                scratch.spectral[:, gap] = 0
            scratch.execute()
            copy(target[rows], scratch.physical, scale)


class ColumnSweep:
    """FFTs along y of one plane's local columns, between pieces by rows and the spectrum.

    The spectrum's plane is (ny, columns), or (columns, ny) if `transposed`.
    """

    def __init__(self, slab, dtype, forward, transposed, effort):
        dtype = complex_of(dtype)
        shape = slab.my, slab.my_columns
        self.shape = shape
        self._rows = slab.rows
        self._segments = slab.row_segments
        self._gaps = complement([pair[0] for pair in self._segments], slab.ny)
        self._fine_gaps = complement([pair[1] for pair in self._segments], slab.my)
        self._padded = slab.padded
        self._transposed = transposed
        self._natural = InPlace(shape, 0, dtype, forward,
                                strided_effort(effort, shape[0] * shape[1]))
        # A transposed result is contiguous along y.
        self._in_place = (InPlace(shape[::-1], 1, dtype, forward, effort)
                          if forward and transposed else self._natural)
        self._work = zeros(shape, dtype)

    def in_place(self, spectrum):
        """Whether `forward` can transform in place in all planes of `spectrum`."""
        return not self._padded and fits(spectrum)

    def forward(self, pieces, target, in_place):
        """Transform `pieces`, one (rows of p, columns) per rank, into the plane `target`.

        ``pieces=None``: they are in `target` already, in its natural order.
        """
        natural = target.T if self._transposed else target
        if in_place:
            if pieces is not None:
                for piece, rows in zip(pieces, self._rows):
                    np.copyto(natural[rows], piece)
            self._in_place.execute(target)
            return
        work = self._work
        for piece, rows in zip(pieces, self._rows):
            np.copyto(work[rows], piece)
        self._natural.execute(work)
        for resolved, fine in self._segments:
            np.copyto(natural[resolved], work[fine])
        for gap in self._gaps:
            natural[gap] = 0

    def backward_in(self, work, source):
        """Transform the plane `source` in `work`, a contiguous (my, columns) plane of its own."""
        self._load(work, source)
        self._natural.execute(work)

    def backward(self, source, pieces):
        """Transform the plane `source` into `pieces`."""
        work = self._work
        self.backward_in(work, source)
        for piece, rows in zip(pieces, self._rows):
            np.copyto(piece, work[rows])

    def _load(self, work, source):
        natural = source.T if self._transposed else source
        for resolved, fine in self._segments:
            np.copyto(work[fine], natural[resolved])
        for gap in self._fine_gaps:
            work[gap] = 0
