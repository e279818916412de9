"""`FFT3`: three-dimensional FFTs on slabs and pencils, as pipelines that hide their exchanges."""

import weakref

import numpy as np

from ..arrays import Layout, Swap, subcomms
from ..errors import ClosedError, InputError
from ..runtime import Runtime
from .array_spec import ArraySpec
from .engine.fftw import complex_of
from .engine.passage import Passage
from .engine.sweep import Line
from .function import Function, fine_points
from .plan import (
    NORMS,
    ORDERS,
    Plan,
    choice_problem,
    comm_problem,
    dtype_problem,
    integers,
)
from .planning.grids import near_grids
from .planning.search import choose
from .planning.settings import Settings, settings_problem
from .planning.trials import median_seconds
from .volume import Volume
from .volume_pointwise import VolumePointwise

Z, Y, X = 1, 2, 3  # axes of a field, after the batch's
DEALIAS = (None, "3/2")


class FFT3(Plan):
    """A plan for 3-D FFTs of the last three axes of arrays ``(..., nz, ny, nx)`` over MPI ranks.

    The ranks form a P x Q grid. In real space y is split over P and z over Q, in spectral space x
    over P and y over Q (Takahashi's volumetric FFT); with P or Q of 1 these are slabs, with one
    exchange instead of two. The first ranks hold one more where a split is uneven, and ranks may
    hold nothing. Making, calling and closing a plan is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    shape : tuple of int
        Global shape ``(..., nz, ny, nx)`` of the resolved grid; the leading axes are the batch.
    dtype : dtype
        Of real space: ``complex64``/``complex128``, or ``float32``/``float64`` for transforms to
        half the spectrum, ``nx // 2 + 1`` modes along x.
    grid : (int, int), optional
        P and Q. By default what the volumetric FFT's equation (7) finds, with the latency and the
        bandwidth of `comm`; where a slab and a pencil come close, the faster forward transform.
        Plans of one shape and runtime then have the same.
    wait : {"auto", "off", "block", "poll"}
        How exchanges are hidden; see `Runtime`. ``"off"`` is the reference, to the last bit, of
        the others. ``"auto"`` takes what a short measured run finds the fastest.
    workers : int
        Worker threads per rank, if the plan makes its own runtime.
    depth, chunk, in_flight : int, optional
        Slots, units per message and exchanges in flight; see `Settings`. A unit is what
        `describe` tells: one plane, or some.
    late : float, optional
        Share of the last field, 0 to 1, whose exchange waits until all is transformed that it
        needs, so that little is left to do when it ends; forward on slabs (P = 1)
        in natural order; elsewhere it means nothing. It takes work memory. By default ``"auto"``
        finds it.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`.
    order : {"natural", "transposed"}
        Axes of the spectrum: ``(..., nz, ny, nx)``, or ``(..., ny, nx, nz)``.
    restore : bool
        The spectrum is split as real space is, at the price of as many exchanges again.
    dealias : {None, "3/2"}
        ``"3/2"``: real space has ceil(3 n / 2) points per direction; modes beyond the resolved
        ones, and the Nyquist modes of even n, are dropped. Values are those of the same function.
    effort : {None, "estimate", "measure", "patient"}
        FFTW's planning effort; None is "patient" for strided transforms, "measure" elsewhere.
    runtime : Runtime, optional
        Share this one; otherwise the plan makes its own and closes it.
    deadline_s, trace
        As of `Runtime`, if the plan makes its own.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: what this rank holds, and ``empty()`` ones.
    forward, backward : Volume
        Call them: ``spectrum = plan.forward(u, out=None)``, ``u = plan.backward(spectrum)``.
    grid : (int, int)

    Raises
    ------
    InputError
        On all ranks, when an argument is bad or differs between ranks.
    """

    def __init__(self, comm, shape, dtype=complex, *, grid=None, wait="auto", workers=1,
                 depth=None, chunk=None, in_flight=None, late=None, norm=None, order="natural",
                 restore=False, dealias=None, effort=None, runtime=None, deadline_s=60.0,
                 trace=None):
        self._owns_runtime = runtime is None
        self.runtime = runtime or Runtime(
            comm, workers=workers, deadline_s=deadline_s, trace=trace)
        self.runtime.check_open()
        try:
            self.runtime.preflight(
                _problem(comm, self.runtime.comm, shape, dtype, grid, wait, depth, chunk,
                         in_flight, late, norm, order, restore, dealias, effort),
                plan="FFT3", shape=shape, dtype=str(dtype), grid=grid, wait=wait,
                depth=depth, chunk=chunk, in_flight=in_flight, late=late, norm=norm, order=order,
                restore=restore, dealias=dealias, effort=effort)
        except InputError:
            self._close_runtime()
            raise
        self.comm = comm
        self.closed = False
        *self._batch, nz, ny, nx = self._shape = tuple(int(length) for length in shape)
        self._dtype = np.dtype(dtype)
        self._natural = order == "natural"
        self._restore = restore
        self._effort = effort
        self._requested = Settings(wait, depth, chunk, in_flight, effort=effort, late=late)
        self._power = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
        self.grid = tuple(map(int, grid)) if grid is not None else self._choose_grid(
            wait, order=order, restore=restore, dealias=dealias, effort=effort)
        P, Q = self.grid
        rank = self.runtime.comm.rank
        self._coordinates = rank % P, rank // P
        self._comms = subcomms(self.runtime, self.grid)
        p, q = (None if size == 1 else dimension for dimension, size in enumerate(self.grid))
        self._here = Layout((None, q, p, None), self.grid)
        self._there = self._here if restore else Layout((None, None, q, p), self.grid)
        self._lines = _lines((nz, ny, nx), self._dtype, dealias)
        self.real, self.spectrum = self._specs(self._batch)
        batch = self.real.slices
        self.forward = Volume(
            self.runtime, self._comms, self._passage(True, self._lines, batch), self.real,
            self.spectrum, self._scale(True, self._lines))
        self.backward = Volume(
            self.runtime, self._comms, self._passage(False, self._lines, batch), self.spectrum,
            self.real, self._scale(False, self._lines))
        self._transforms = weakref.WeakSet((self.forward, self.backward))
        for transform in (self.forward, self.backward):
            choose(transform, self._requested)

    def _living(self):
        return list(self._transforms)

    def wavenumbers(self):
        """Mode numbers of this rank's part of the spectrum.

        Returns
        -------
        kz, ky, kx : ndarray of float
            Shapes that broadcast to a local field of the spectrum, in its order.
        """
        nz, ny, nx = self._shape[-3:]
        kx = np.fft.rfftfreq(nx, 1 / nx) if self._dtype.kind == "f" else np.fft.fftfreq(nx, 1 / nx)
        modes = [np.fft.fftfreq(nz, 1 / nz), np.fft.fftfreq(ny, 1 / ny), kx]
        positions = (-3, -2, -1) if self._natural else (-1, -3, -2)
        found = []
        for mode, position in zip(modes, positions):
            shape = [1, 1, 1]
            shape[position] = -1
            found.append(mode[self.spectrum.local_slice[position]].reshape(shape))
        return tuple(found)

    def describe(self):
        """The plan's choices and memory, as text."""
        return "\n".join((
            f"FFT3 {self._shape} {self._dtype} over {self.comm.size} rank(s), grid "
            f"{self.grid[0]} x {self.grid[1]}, {self.runtime.workers} worker(s) each",
            self.forward.describe(), *map(str, self.forward.trials), self.backward.describe(),
            *map(str, self.backward.trials)))

    def pointwise(self, function=None, *, inputs=None, outputs=1, shared=0, dealias=None):
        """Make a function of real-space fields act on spectral fields, as one pipeline.

        A decorator, with or without arguments. The inputs of each entry of the batch are transformed
        to real space, given to the function, and what it returns is transformed back, while the
        next entry's inputs are under way.

        Parameters
        ----------
        function : callable
            ``function(*fields)`` with this rank's real-space fields of one entry, each ``(nz_local,
            ny_local, nx)`` (of the finer grid with `dealias`), read-only by convention; returns one
            field, or a tuple of `outputs` fields. If it has a parameter ``out``, it is given the
            field (or tuple of fields) to fill instead; if it has a parameter ``index``, the
            entry's index in the batch.
        inputs : int, optional
            Number of spectral inputs; by default the function's positional parameters.
        outputs : int
        shared : int
            The last `shared` inputs have no batch axes: they are transformed once per call and
            given to all entries.
        dealias : {None, "3/2"} or (int, int, int)
            As of `FFT2.pointwise`, for these fields alone. A plan that de-aliases does it here
            as well.

        Returns
        -------
        VolumePointwise
            A `Transform` of the spectral inputs.
        """
        if function is None:
            return lambda function: self.pointwise(
                function, inputs=inputs, outputs=outputs, shared=shared, dealias=dealias)
        if self.closed:
            raise ClosedError("expected a plan in use, received one that was closed")
        function = Function(function, inputs, outputs, shared, dealias, self._shape[-3:])
        self.runtime.preflight(function.problem, **function.agreed)
        lines = self._lines
        if dealias is not None:
            lines = _lines(self._shape[-3:], self._dtype, dealias)
        fine = tuple(lines[axis].length(False) for axis in (Z, Y, X))
        transform = VolumePointwise(
            self.runtime, self._comms, function,
            self._passage(False, lines, max(function.inputs, shared), False, True),
            self._passage(True, lines, outputs, False), self.spectrum, self._specs(())[1],
            self._here.local_shape((1, *fine), self._coordinates), self._dtype,
            self._scale(False, lines), self._scale(True, lines))
        self._transforms.add(transform)
        choose(transform, self._requested)
        return transform

    def _choose_grid(self, wait, **options):
        """The grid that the model finds, or where it can't tell, a measurement."""
        chosen = self.runtime.cache.setdefault("grids", {})
        key = self._shape, self._dtype, tuple(options.items())
        if key not in chosen:
            grids = near_grids(self.runtime, self._shape, complex_of(self._dtype))
            seconds = [0.0]
            if len(grids) > 1 and 0 not in self._shape:
                seconds.clear()
                for grid in grids:
                    with FFT3(self.comm, self._shape, self._dtype, grid=grid,
                              wait="poll" if wait == "auto" else wait,
                              runtime=self.runtime, **options) as plan:
                        seconds.append(median_seconds(plan.forward, plan.forward.trial_fields()))
            chosen[key] = grids[seconds.index(min(seconds))]
        return chosen[key]

    def _scale(self, forward, lines):
        points = float(np.prod(self._shape[-3:], dtype=object))
        if not forward:
            return points ** (self._power - 1.0)
        fine = float(np.prod([lines[axis].fine for axis in (Z, Y, X)], dtype=object))
        return points ** -self._power * points / fine

    def _passage(self, forward, lines, batch, joined=True, reused=False):
        shape = [lines[axis].length(not forward) for axis in (Z, Y, X)]
        real = self._dtype.kind == "f"
        return Passage(
            _route(self.grid, real, forward, self._restore),
            self._here if forward else self._there, lines, batch, shape, self._coordinates,
            self._dtype if forward else complex_of(self._dtype), forward,
            None if self._natural else Z, self.runtime.workers, self._effort, joined, reused)

    def _specs(self, batch):
        """The array specs of real space and of the spectrum, for some batch axes."""
        return (self._spec(self._here, batch, False, self._dtype, True),
                self._spec(self._there, batch, True, complex_of(self._dtype), self._natural))

    def _spec(self, layout, batch, spectral, dtype, natural):
        shape = [self._lines[axis].length(spectral) for axis in (Z, Y, X)]
        where = layout.local_slice((1, *shape), self._coordinates)
        order = (Z, Y, X) if natural else (Y, X, Z)
        parts = {position - 3: where[axis] for position, axis in enumerate(order)
                 if layout.splits[axis] is not None}
        return ArraySpec(self.comm, batch, tuple(shape[axis - 1] for axis in order), parts, dtype,
                    natural)


def _lines(points, dtype, dealias):
    """The axes to transform, of a resolved grid."""
    fine = fine_points(points, dealias)
    return {axis: Line(n, m, axis == X and dtype.kind == "f")
            for axis, n, m in zip((Z, Y, X), points, fine)}


def _route(grid, real, forward, restore):
    """The way from real space to the spectrum, or back, as `decomp.legs` wants it."""
    over = Swap(Y, X), Swap(Z, Y)
    steps = [(X,), over[0], (Y,), over[1], (Z,)]
    if restore:
        steps += [over[1].reversed(), (), over[0].reversed(), ()]
    if not forward:
        steps = [step.reversed() if isinstance(step, Swap) else step for step in steps[::-1]]
    route = [()]
    for group, swap in zip(steps[::2], [*steps[1::2], None]):
        route[-1] += group
        if swap is not None and grid[0 if X in (swap.joined, swap.split) else 1] > 1:
            route += [swap, ()]
    if forward or restore and len(route) > 1:
        return route if len(route) > 1 else [(X, Y), None, (Z,)]
    if len(route) == 1:
        return [(Z,), None, (Y, X)] if real else [(X, Y), None, (Z,)]
    if route[0] == (Z, Y):
        if real:  # x comes last, and z can't be cut along while it is transformed
            return [(Z,), None, (Y,), *route[1:]]
        return [(Y,), route[1], (X, Z)]
    return route


def _problem(comm, own, shape, dtype, grid, wait, depth, chunk, in_flight, late, norm, order,
             restore, dealias, effort):
    """What is wrong with a plan's arguments, or None."""
    lengths = integers(shape)
    problem = comm_problem(own, comm) or (
        None if lengths is not None and len(lengths) >= 3 and min(lengths[-3:]) >= 1
        and min(lengths) >= 0 else
        "expected a shape (..., nz, ny, nx) of integers with nz, ny, nx >= 1, "
        f"received {shape!r}") or dtype_problem(dtype)
    if problem is None and grid is not None:
        sizes = integers(grid)
        if sizes is None or len(sizes) != 2 or min(sizes) < 1 or sizes[0] * sizes[1] != own.size:
            problem = (f"expected grid to be two integers whose product is {own.size}, the number "
                       f"of ranks, or None, received {grid!r}")
    problem = problem or choice_problem(
        norm=(norm, NORMS), order=(order, ORDERS), dealias=(dealias, DEALIAS))
    if problem is None and not isinstance(restore, bool):
        problem = f"expected restore to be True or False, received {restore!r}"
    return problem or settings_problem(
        Settings(wait, depth, chunk, in_flight, effort=effort, late=late))
