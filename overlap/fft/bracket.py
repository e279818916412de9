"""`Bracket`: the nonlinear term of flux-tube and two-dimensional fluid codes, whole planes per rank.

The Poisson bracket {a, f} = a_x f_y - a_y f_x of real fields given by their resolved Fourier modes,
pseudo-spectrally on a finer grid (2/3 rule). In spectral space ky is split over the ranks. Every slice
of f is redistributed as the GKV plasma code does it: one all-to-all turns (some ky, all planes) into
(all ky, some planes), each rank transforms its planes without further messages, and a second one
brings the result back. Only resolved modes travel; `FFT2.pointwise` sends both gradients, on the
finer grid in one direction. No message needs packing: planes come before ky.

Two identities spare work:

* f_x + i f_y is one complex field, with a factor i (kx + i ky) on the modes of f, negative ky included:
  a complex transform yields both gradients. With A = a_x + i a_y and F = f_x + i f_y the bracket is
  Im(conj(A) F).
* The brackets of two planes travel to Fourier space as real and imaginary part of one field.

Planes are paired by their number, and FFTW plans are for one pair and by default only estimated, the
same in every process: results are the same to the last bit on any number of ranks.
"""

from importlib.util import find_spec

import numpy as np

from ..arrays import block, chunks, length_of, mpi_type
from ..errors import ClosedError, InputError
from ..runtime import Runtime, parallel, stagger, worker_index
from .array_spec import ArraySpec
from .engine.fftw import fast_length, zeros
from .plan import WAITS, choice_problem, count_problem, integers
from .planning.settings import EFFORTS, Settings

PAIRS = 4  # per block: its modes stay in the cache
DEPTH = 8
EXTRA = "pip install 'overlap-mpi[gkv]'"


class Bracket:
    """A plan for Poisson brackets {a, f} of real fields given by resolved modes, over MPI ranks.

    Making and calling a plan is collective. Within a slice program of your own, await `of`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The ranks over which ky is split: those of the runtime, or some of them.
    shape : (int, int, int, int)
        Global ``(slices, planes, nky, nkx)``: modes ky = 0 ... nky - 1 (the others follow from
        f(-k) = conj f(k)) and kx = -K ... K, ascending, nkx = 2 K + 1, in units of `spacing`. A
        slice, of `planes` planes, is one message and one step of the pipeline.
    spacing : (float, float)
        dky and dkx.
    points : (int, int), optional
        Points of the real-space grid in y and x, at least 3 K + 1 for modes up to K; by default
        the next lengths that FFTW is fast at.
    wait : {"auto", "off", "block", "poll"}
        As `Runtime`'s `wait`; with ``"auto"`` the first call runs all ways.
    depth : int
        Slices in flight.
    effort : {"estimate", "measure", "patient"}
        FFTW's planning effort. More may save a tenth, and gives other last bits in every process.
    workers, deadline_s, trace
        As of `Runtime`, if the plan makes its own.
    runtime : Runtime, optional
        Share this one; otherwise the plan makes its own and closes it.

    Attributes
    ----------
    spectrum : ArraySpec
        The arrays of a batch's modes: what this rank holds, and ``empty()`` ones.
    points : (int, int)
    ranks : int
    rows : slice
        This rank's ky.
    speed : float
        Largest \\|grad a\\| on this rank's planes of the advecting field.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad or differs between ranks.
    """

    def __init__(self, comm, shape, spacing=(1.0, 1.0), *, points=None, wait="auto",
                 depth=DEPTH, effort="estimate", workers=1, deadline_s=60.0, trace=None,
                 runtime=None):
        self._owns_runtime = runtime is None
        self.runtime = runtime or Runtime(comm, workers=workers, deadline_s=deadline_s, trace=trace)
        self.runtime.check_open()
        try:
            # Other ranks of the runtime may work on other shapes.
            members = self.runtime.control.ranks_of(comm)
            shapes = [shape for theirs, shape in self.runtime.control.allgather((members, shape))
                      if theirs == members]
            self.runtime.preflight(
                _problem(shape, spacing, points, wait, depth, effort) or _disagreement(shapes),
                plan="Bracket", spacing=spacing, points=points, wait=wait, depth=depth,
                effort=effort)
        except InputError:
            self._close_runtime()
            raise
        same = self.runtime.comm.same_ranks(comm)
        self._comm = self.runtime.comm if same else self.runtime.wrap(comm)
        self.ranks = comm.size
        self.shape = tuple(map(int, shape))
        self.slices, self.planes, nky, nkx = self.shape
        self.points = tuple(map(int, points or (fast_length(3 * (nky - 1) + 1),
                                                fast_length(3 * (nkx // 2) + 1))))
        self.speed = 0.0
        rank, ranks = self._comm.rank, self._comm.size
        rows = block(nky, ranks)
        self.rows = rows[rank]
        self.spectrum = ArraySpec(comm, self.shape[:2], (nky, nkx), {-2: self.rows}, complex)
        # Each rank's planes between the exchanges: whole pairs.
        shares = [slice(min(2 * pairs.start, self.planes), min(2 * pairs.stop, self.planes))
                  for pairs in block(-(-self.planes // 2), ranks)]
        self._share = shares[rank]
        share, mine = length_of(self._share), length_of(self.rows)
        # What a rank has of a slice before the first exchange and after it.
        self._held = _Pieces([(length_of(part), mine, nkx) for part in shares], rank,
                             [part.start * mine * nkx for part in shares])
        self._worked = _Pieces([(share, length_of(part), nkx) for part in rows], rank)
        from .engine.planes import Planes  # numba comes with an extra
        self._kernels = [Planes(PAIRS, (nky, nkx), spacing, self.points, rows, effort)
                         for _ in range(self.runtime.workers)]
        self._blocks = [slice(2 * part.start, min(2 * part.stop, share))
                        for part in chunks(-(-share // 2), PAIRS)]
        self._advecting = zeros((share, *self.points), complex)
        self._depth, self._wait = depth, wait
        self._pipelines = None  # of whole batches: made when asked for
        self._advect = self.runtime.pipelined(
            self._take, buffers=self.buffers, depth=1,
            wait="off" if self.runtime.workers == 1 else "poll")

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def close(self):
        """Free what the plan holds (collective); closes the runtime if the plan made it."""
        if self._kernels is not None:
            self._kernels = self._advecting = self._advect = self._pipelines = None
            self._close_runtime()

    def _close_runtime(self):
        if self._owns_runtime:
            self.runtime.close()

    @property
    def settings(self):
        """How a call runs, a `Settings`; "auto" before the first one."""
        wait = self._wait if self._pipelines is None else self._pipelines["whole"].wait
        depth = 1 if wait == "off" else self._depth
        return Settings(wait, depth, 1, depth)

    @property
    def nbytes_per_slot(self):
        """Memory of one slot on this rank, in bytes."""
        return 2 * 16 * self._worked.size

    @property
    def nbytes_in_flight(self):
        """Memory of the slots of a call on this rank, in bytes."""
        return self.settings.depth * self.nbytes_per_slot

    @property
    def nbytes(self):
        """Memory of the advecting field's gradient on this rank, in bytes."""
        return self._advecting.nbytes

    def describe(self):
        """The plan's choices and memory, as text."""
        return (f"Bracket of {self.slices} slices of {self.planes} planes, modes {self.shape[2:]} "
                f"on {self.points[0]} x {self.points[1]} points, over {self._comm.size} rank(s), "
                f"{self.runtime.workers} worker(s) each: {self.settings}; "
                f"{self.nbytes_in_flight / 2**20:.1f} MiB in flight, "
                f"{self.nbytes / 2**20:.1f} MiB of gradients")

    # ---- calls -----------------------------------------------------------------------------------

    def advect(self, a):
        """Set the advecting field a for all that follows (collective).

        Parameters
        ----------
        a : ndarray of complex
            This rank's modes, C-contiguous ``(planes, my ky, nkx)``.
        """
        self._check_in_use()
        self._advect((0,), a, problem=self._array_problem(a, self.spectrum.shape[1:], "a"))

    def __call__(self, f, out=None):
        """The brackets {a, f} of a batch, as one pipeline (collective).

        Parameters
        ----------
        f : ndarray of complex
            This rank's modes, C-contiguous ``(slices, planes, my ky, nkx)``.
        out : ndarray, optional
            Like `f`, where to put the brackets.

        Returns
        -------
        ndarray

        Raises
        ------
        InputError, SliceError
            As of `Transform`.
        """
        return self._run("whole", f, out)

    def compute(self, f, out=None):
        """All local work of the call and none of its communication; the result means nothing."""
        return self._run("compute", f, out)

    def communicate(self, f, out=None):
        """The call's exchanges, one after another, and nothing else; no result."""
        return self._run("exchange", f, out)

    def _run(self, what, f, out):
        self._check_in_use()
        if out is None:
            out = self.spectrum.empty()
        problem = (self._array_problem(f, self.spectrum.shape, "f")
                   or self._array_problem(out, self.spectrum.shape, "out"))
        if problem is None and np.may_share_memory(f, out):
            problem = "expected out to share no memory with f, received arrays that do"
        if self._pipelines is None:
            self._make_pipelines()
        pipeline = self._pipelines[what]
        pipeline(range(self.slices), f, out, problem=problem)
        while pipeline.wait == "auto":  # again, until all ways have been compared
            pipeline(range(self.slices), f, out)
        return out

    def _make_pipelines(self):
        depth = 1 if self._wait == "off" else self._depth
        slots = [self.buffers() for _ in range(depth)]

        def pipeline(wait, compute, exchange):
            async def program(z, slot, f, out):
                await stagger(z, depth)
                await self.of(f[z], out[z], slot, compute, exchange)

            async def skeleton(z, slot, f, out):
                await stagger(z, depth)
                await self.of(f[z], out[z], slot, False, exchange)

            program.__qualname__ = "Bracket"
            return self.runtime.pipelined(program, skeleton=skeleton, buffers=iter(slots).__next__,
                                          depth=depth, wait=wait)

        alone = "off" if self.runtime.workers == 1 else "poll"
        self._pipelines = {"whole": pipeline(self._wait, True, True),
                           "compute": pipeline(alone, True, False),
                           "exchange": pipeline("off", False, True)}

    def _check_in_use(self):
        if self._kernels is None:
            raise ClosedError("expected a plan in use, received one that was closed")

    @staticmethod
    def _array_problem(array, shape, name):
        if not isinstance(array, np.ndarray):
            return f"expected {name} to be a numpy array, received {type(array).__name__}"
        if array.shape != shape or array.dtype != complex or not array.flags.c_contiguous:
            return (f"expected {name} of local shape {shape}, complex128 and C-contiguous, received "
                    f"{array.shape}, {array.dtype} and strides {array.strides}")
        return None

    # ---- slices ----------------------------------------------------------------------------------

    def buffers(self):
        """The buffers of one slice in flight."""
        return BracketBuffers(self._worked)

    async def of(self, f, out, slot, compute=True, exchange=True):
        """One slice's bracket, for slice programs: it awaits two all-to-alls; see `stagger`.

        Parameters
        ----------
        f, out : ndarray of complex
            This rank's modes, C-contiguous ``(planes, my ky, nkx)``.
        slot : object
            As `buffers` makes it.
        compute, exchange : bool
            What is done of it.
        """
        if exchange:
            await self._comm.Alltoallv(self._held.message(f), self._worked.message(slot.received))
        if compute:
            for part in self._blocks:
                self._bracket(part, self._pieces(slot.received_pieces, f, part),
                              self._pieces(slot.results_pieces, out, part))
        if exchange:
            await self._comm.Alltoallv(self._worked.message(slot.results), self._held.message(out))

    async def _take(self, _, slot, a):
        await self._comm.Alltoallv(self._held.message(a), self._worked.message(slot.received))
        squares = [0.0]

        def transform(part):
            kernels = self._kernels[worker_index()]
            kernels.load(self._pieces(slot.received_pieces, a, part))
            for pair, planes in _pairs(part):
                gradient = self._advecting[planes]
                gradient[...] = kernels.transform(pair)[:length_of(planes)]
                squares.append(float((gradient.real**2 + gradient.imag**2).max()))

        await parallel(transform, self._blocks)
        self.speed = max(squares)**0.5

    def _pieces(self, pieces, own, part):
        """Some planes of each rank's piece: what came, or goes; of this rank's own in place."""
        own = own[self._share]
        return [(own if rank == self._comm.rank else piece)[part]
                for rank, piece in enumerate(pieces)]

    def _bracket(self, part, source, target):
        kernels = self._kernels[worker_index()]
        kernels.load(source)
        for pair, planes in _pairs(part):
            kernels.transform(pair)
            kernels.bracket(pair, self._advecting[planes])
        kernels.store(target)


class _Pieces:
    """One side of the exchange, in elements: the pieces of all ranks, and which of them travel."""

    def __init__(self, shapes, rank, starts=None):
        sizes = [int(np.prod(shape)) for shape in shapes]
        self._shapes, self._rank = shapes, rank
        self._counts = [0 if other == rank else size for other, size in enumerate(sizes)]
        self.size = sum(self._counts)
        self._starts = starts or [sum(self._counts[:other]) for other in range(len(sizes))]

    def message(self, buffer):
        """mpi4py's buffer argument for all pieces that travel."""
        return [buffer, (self._counts, self._starts), mpi_type(buffer.dtype)]

    def views(self, buffer):
        """The pieces inside a one-dimensional buffer; None for the one that stays."""
        return [None if other == self._rank else buffer[start:start + count].reshape(shape)
                for other, (start, count, shape) in enumerate(
                    zip(self._starts, self._counts, self._shapes))]


class BracketBuffers:
    """Modes that other ranks hold: received, and to be sent back."""

    def __init__(self, pieces):
        self.received, self.results = zeros((2, pieces.size), complex)
        self.received_pieces, self.results_pieces = map(pieces.views, (self.received, self.results))


def _pairs(part):
    """Number and planes of each pair in a block of planes; the last one may be a single plane."""
    for number, first in enumerate(range(part.start, part.stop, 2)):
        yield number, slice(first, min(first + 2, part.stop))


def _disagreement(shapes):
    """What is wrong with the shapes of all ranks, or None."""
    if any(shape != shapes[0] for shape in shapes):
        return f"shape: expected the same on all ranks, received {', '.join(map(repr, shapes))}"
    return None


def _problem(shape, spacing, points, wait, depth, effort):
    """What is wrong with the arguments or the installation, or None."""
    if find_spec("numba") is None:
        return f"expected numba to be installed, found none: {EXTRA}"
    sizes = integers(shape)
    if sizes is None or len(sizes) != 4 or min(sizes) < 1 or sizes[3] % 2 == 0:
        return ("expected shape (slices, planes, nky, nkx) of positive integers with an odd nkx, "
                f"received {shape!r}")
    try:
        good = len(spacing) == 2 and all(0 < step < np.inf for step in spacing)
    except TypeError:
        good = False
    if not good:
        return f"expected spacing (dky, dkx) of two positive numbers, received {spacing!r}"
    if points is not None:
        least = 3 * (sizes[2] - 1) + 1, 3 * (sizes[3] // 2) + 1
        grid = integers(points)
        if grid is None or len(grid) != 2 or grid[0] < least[0] or grid[1] < least[1]:
            return (f"expected points of at least 3 K + 1 for modes up to K, {least}, "
                    f"received {points!r}")
    return (choice_problem(wait=(wait, WAITS), effort=(effort, EFFORTS))
            or count_problem(depth=depth))
