"""`BracketTransform`: the slice program of `Bracket`. Two exchanges with whole planes worked on in between.

A slice is redistributed from (some ky, all planes) to (all ky, some planes) and back. Messages go
straight from and to the user's arrays on the side where all planes are; a rank's own piece does not
travel, and is read and written where it is.
"""

from __future__ import annotations

from ..arrays import RemotePieces, block, chunks, length_of
from ..runtime import parallel, stagger, worker_index
from .engine.fftw import zeros
from .engine.planes import Planes
from .transform import Transform

PAIRS = 4  # per block: its modes stay in the cache


class Redistribution:
    """Who holds which modes of a slice before the first exchange and between the two.

    Parameters
    ----------
    shape : (int, int, int)
        Global ``(planes, nky, nkx)``.
    rank, size : int
    weights : tuple of numbers, optional
        One per rank, what its ky and its planes are in proportion to.

    Attributes
    ----------
    shape : (int, int, int)
    rank : int
    all_rows : list of slice
        Every rank's ky, outside of the exchanges.
    rows, share : slice
        This rank's ky, and its planes between the exchanges: whole pairs.
    held, worked : RemotePieces
        What this rank has before the first exchange, and between the two.
    """

    def __init__(self, shape, rank, size, weights=None):
        planes, nky, nkx = self.shape = tuple(shape)
        self.rank = rank
        self.all_rows = block(nky, size, weights)
        self.rows = self.all_rows[rank]
        shares = [slice(min(2 * pairs.start, planes), min(2 * pairs.stop, planes))
                  for pairs in block(-(-planes // 2), size, weights)]
        self.share = shares[rank]
        share, mine = length_of(self.share), length_of(self.rows)
        self.held = RemotePieces([(length_of(part), mine, nkx) for part in shares], rank,
                                 [part.start * mine * nkx for part in shares])
        self.worked = RemotePieces([(share, length_of(part), nkx) for part in self.all_rows], rank)

    @property
    def share_of_planes(self) -> float:
        """This rank's part of the planes, 0 to 1."""
        return length_of(self.share) / self.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of one slice's buffers on this rank, in bytes."""
        return 2 * 16 * self.worked.size


class SliceBuffers:
    """One slice's modes that other ranks hold: received, and to be sent back."""

    def __init__(self, redistribution):
        pieces = redistribution.worked
        self.received, self.results = zeros((2, pieces.size), complex)
        self.received_pieces, self.results_pieces = map(pieces.views, (self.received, self.results))


class BracketTransform(Transform):
    """Brackets of a batch with one advecting field; see `Bracket`.

    Parameters
    ----------
    comm : AsyncComm
    redistribution : Redistribution
    spectrum : ArraySpec
    grid : tuple
        ``(spacing, points)``, as of `Bracket`.
    requested : Settings
        Planned when the transform is called first: until then these are its `settings`.
    planning : callable
        Makes a context in which FFTW plans are made.
    choose : callable
        ``choose(transform)`` configures it with settings for what was left open.

    Attributes
    ----------
    gradient : ndarray of complex
        a_x + i a_y on this rank's planes.
    """

    def __init__(self, comm, redistribution, spectrum, grid, requested, planning, choose):
        super().__init__(comm.runtime, spectrum.slices)
        self.inputs = self.outputs = (spectrum,)
        self.exchange_dtype = spectrum.dtype
        self.settings = requested
        self.nbytes_in_flight = 0
        self._comm, self._pieces = comm, redistribution
        self._planning, self._choose = planning, choose
        self._grid, self._effort = grid, requested.effort
        share = length_of(redistribution.share)
        self.replan()
        self._blocks = [slice(2 * part.start, min(2 * part.stop, share))
                        for part in chunks(-(-share // 2), PAIRS)]
        self.gradient = zeros((share, *grid[1]), complex)

    def replan(self):
        """Make what computes, anew."""
        spacing, points = self._grid
        _, *modes = self._pieces.shape
        with self._planning():
            self._planes = [Planes(PAIRS, tuple(modes), spacing, points, self._pieces.all_rows, self._effort)
                            for _ in range(self.runtime.workers)]

    def release(self):
        super().release()
        self._planes = self.gradient = None

    def kernels_of(self, settings):
        return self._planes

    def nbytes_per_slice(self):
        return self._pieces.nbytes

    def make_slots(self, depth, sizes):
        self.nbytes_in_flight = depth * self._pieces.nbytes
        return [SliceBuffers(self._pieces) for _ in range(depth)]

    def tune(self, budget_s=30.0, progress=None):
        self.plan()
        return super().tune(budget_s, progress)

    def _call(self, what, arrays, out):
        self.plan()
        return super()._call(what, arrays, out)

    def plan(self):
        """Choose what was left open, the first time."""
        self.check_in_use()
        if self._pipelines is None:
            self._choose(self)

    def prepare(self, inputs, outputs):
        return inputs[0], outputs[0]

    async def run(self, part, slot, compute, comm, f, out):
        await stagger(part.start, self._depth)
        await self.apply(f[part.start], out[part.start], slot, compute, comm and self._comm)

    async def apply(self, f, out, slot, compute, comm):
        """One slice's bracket; without computing or, if `comm` is None, exchanges."""
        pieces = self._pieces
        if comm is not None:
            await comm.Alltoallv(pieces.held.message(f), pieces.worked.message(slot.received))
        if compute:
            for part in self._blocks:
                self._bracket(part, self._views(slot.received_pieces, f, part),
                              self._views(slot.results_pieces, out, part))
        if comm is not None:
            await comm.Alltoallv(pieces.worked.message(slot.results), pieces.held.message(out))

    async def take(self, a, slot):
        """Take a slice of modes as the advecting field; returns the largest gradient here."""
        pieces = self._pieces
        await self._comm.Alltoallv(pieces.held.message(a), pieces.worked.message(slot.received))
        squares = [0.0]

        def transform(part):
            kernels = self._planes[worker_index()]
            kernels.load(self._views(slot.received_pieces, a, part))
            for pair, planes in _pairs(part):
                gradient = self.gradient[planes]
                gradient[...] = kernels.transform(pair)[:length_of(planes)]
                squares.append(float((gradient.real**2 + gradient.imag**2).max()))

        await parallel(transform, self._blocks)
        return max(squares)**0.5

    def _views(self, views, own, part):
        """Some planes of each rank's piece: what came, or goes; of this rank's own in place."""
        own = own[self._pieces.share]
        return [(own if rank == self._pieces.rank else view)[part]
                for rank, view in enumerate(views)]

    def _bracket(self, part, source, target):
        kernels = self._planes[worker_index()]
        kernels.load(source)
        kernels.brackets(self.gradient[part])
        kernels.store(target)


def _pairs(part):
    """Number and planes of each pair in a block of planes; the last one may be a single plane."""
    for number, first in enumerate(range(part.start, part.stop, 2)):
        yield number, slice(first, min(first + 2, part.stop))
