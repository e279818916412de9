"""`FFT2`: batches of two-dimensional FFTs on slabs, as pipelines that hide their transposes."""

import weakref
from time import perf_counter

import numpy as np

from ..arrays import Slab, length_of
from ..errors import ClosedError, InputError
from ..runtime import Runtime
from .array_spec import ArraySpec
from .engine.fftw import complex_of, empty, zeros
from .engine.kernels import RowSweep
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
from .planning.search import adopt, choose
from .planning.settings import Settings, settings_problem
from .planning.tune import budget_problem, tune
from .planning.tuning import Tuning, path_of
from .pointwise import Pointwise
from .transform import Backward, Forward, Kernels, WorkersKernels


class FFT2(Plan):
    """A plan for 2-D FFTs of the last two axes of arrays ``(..., ny, nx)`` over MPI ranks.

    In real space the rows (y) are split over the ranks, in spectral space the columns (x): the first
    ranks hold one more where the split is uneven, and ranks may hold nothing. Making, calling and
    closing a plan is collective. Planning times a few candidates unless told not to.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    shape : tuple of int
        Global shape in real space, ``(..., ny, nx)``; the leading axes are the batch.
    dtype : dtype
        Of real space: ``complex64``/``complex128``, or ``float32``/``float64`` for transforms to
        half the spectrum, ``nx // 2 + 1`` columns.
    wait : {"auto", "off", "block", "poll"}
        How exchanges are hidden; see `Runtime`. ``"off"`` is the reference, to the last bit, of
        the others. ``"auto"`` takes what a model and then a short measured run find the fastest.
    workers : int
        Worker threads per rank, if the plan makes its own runtime.
    depth, chunk, in_flight : int, optional
        Slots, slices per message and exchanges in flight; see `Settings`. Chosen where None.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`.
    order : {"natural", "transposed"}
        Axes of the spectrum: ``(..., ny, nx)``, or ``(..., nx, ny)``. Split is x in both.
    effort : {None, "estimate", "measure", "patient"}
        FFTW's planning effort; None is "patient" where it pays (strided transforms of larger
        planes: one or two seconds per size and process) and "measure" elsewhere.
    tuning : str, optional
        A file that `tune` writes and later plans read, by default what the environment variable
        OVERLAP_TUNING names; ``""`` for none. An entry for this plan on this machine decides what
        was not asked for by name, FFTW's plans included: a tuned plan is the same in every run.
    runtime : Runtime, optional
        Share this one; otherwise the plan makes its own and closes it.
    deadline_s, trace
        As of `Runtime`, if the plan makes its own.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: what this rank holds, and ``empty()`` ones.
    forward, backward : Transform
        Call them: ``spectrum = plan.forward(u, out=None)``, ``u = plan.backward(spectrum)``.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad or differs between ranks, or the tuning file was cut
        off, is of another version or is none.

    Examples
    --------
    >>> with overlap.FFT2(MPI.COMM_WORLD, (64, 512, 512), dtype="f8") as plan:
    ...     u = plan.real.empty()
    ...     u[...] = 1.0
    ...     spectrum = plan.forward(u)
    """

    def __init__(self, comm, shape, dtype=complex, *, wait="auto", workers=1, depth=None,
                 chunk=None, in_flight=None, norm=None, order="natural", effort=None,
                 tuning=None, runtime=None, deadline_s=60.0, trace=None):
        self._owns_runtime = runtime is None
        self.runtime = runtime or Runtime(
            comm, workers=workers, deadline_s=deadline_s, trace=trace)
        self.runtime.check_open()
        tuning = path_of(tuning)
        try:
            self.runtime.preflight(
                _problem(comm, self.runtime.comm, shape, dtype, wait, depth, chunk,
                         in_flight, norm, order, effort, tuning),
                plan="FFT2", shape=shape, dtype=str(dtype), wait=wait, depth=depth,
                chunk=chunk, in_flight=in_flight, norm=norm, order=order, effort=effort,
                tuning=tuning)
            self._shape = tuple(int(length) for length in shape)
            self._dtype = np.dtype(dtype)
            self._tuning = Tuning(self.runtime, tuning or None, {
                "kind": "FFT2", "shape": list(self._shape), "dtype": str(self._dtype),
                "order": order, "ranks": comm.size, "workers": self.runtime.workers}, self._dtype)
        except InputError:
            self._close_runtime()
            raise
        self.comm = comm
        self.closed = False
        self._transposed = order == "transposed"
        self._requested = Settings(wait, depth, chunk, in_flight, effort=effort)
        *self._batch, ny, nx = self._shape
        points = ny * nx
        power = {None: 0.0, "backward": 0.0, "ortho": 0.5, "forward": 1.0}[norm]
        self._scale_forward = float(points) ** -power
        self._scale_backward = float(points) ** (power - 1.0)
        self._slab = self._make_slab(ny, nx)
        self.real, self.spectrum = self._specs(self._batch)
        self._kernels = weakref.WeakValueDictionary()  # all that are in use
        kernels = self._kernels_for(self._slab)
        self.forward = Forward(self.runtime, self._slab, kernels, self.real, self.spectrum,
                               self._scale_forward)
        self.backward = Backward(self.runtime, self._slab, kernels, self.spectrum, self.real,
                                 self._scale_backward)
        self._made = 0
        self._transforms = weakref.WeakValueDictionary()  # by a number, alike on all ranks
        self._add("forward", self.forward)
        self._add("backward", self.backward)

    def _living(self):
        return list(self._transforms.values())

    def wavenumbers(self):
        """Mode numbers of this rank's part of the spectrum.

        Returns
        -------
        ky, kx : ndarray of float
            Shapes that broadcast to a local plane of the spectrum, in its order.
        """
        ny, nx = self._shape[-2:]
        ky = np.fft.fftfreq(ny, 1 / ny)
        kx = np.fft.rfftfreq(nx, 1 / nx) if self._dtype.kind == "f" else np.fft.fftfreq(nx, 1 / nx)
        kx = kx[self._slab.columns[self._slab.rank]]
        return (ky[None, :], kx[:, None]) if self._transposed else (ky[:, None], kx[None, :])

    def describe(self):
        """The plan's choices and memory, as text."""
        return "\n".join((
            f"FFT2 {self._shape} {self._dtype} over {self.comm.size} rank(s), "
            f"{self.runtime.workers} worker(s) each", self.forward.describe(),
            self.backward.describe(), *([str(self._tuning)] if self._tuning.path else []),
            *map(str, self.forward.trials)))

    def tune(self, budget_s=30.0, progress=None):
        """Search for the fastest settings of all transforms, use them, and keep them (collective).

        See `Transform.tune`; the transforms made by `pointwise` so far share the time with
        `forward` and `backward`. What is found goes to the plan's `tuning` file, if it has one: a
        plan like this one made later takes it from there.

        Parameters
        ----------
        budget_s : float
            Seconds that all of it may take, about.
        progress : callable, optional
            ``progress(what, done, total)``, called on rank 0 now and then, in seconds.

        Returns
        -------
        dict
            Name of each transform to what was gained, a `Tuned`.

        Raises
        ------
        InputError
            On all ranks, when an argument is bad or the file cannot be written.
        """
        if self.closed:
            raise ClosedError("expected a plan in use, received one that was closed")
        self.runtime.preflight(budget_problem(budget_s) or self._tuning.problem(),
                               budget_s=budget_s)
        self._tuning.forget()
        self._kernels.clear()  # what is measured must be what FFTW knows, and keeps
        alive = self._alive()
        first = {}  # transforms of one name are planned alike
        for transform in alive:
            first.setdefault(transform.name, transform)
        share_s = budget_s / len(first)
        for position, (name, transform) in enumerate(first.items()):
            tune(transform, share_s, progress and (
                lambda what, done, total, name=name, before_s=position * share_s: progress(
                    f"{name}: {what}", before_s + done, budget_s)))
        slabs = [transform.slab for transform in first.values()]
        self._tuning.keep(first, tuple((slab.my_rows, slab.my_columns) for slab in slabs))
        self._kernels.clear()  # made anew, as a later plan will
        for transform in alive:
            transform.tuned = first[transform.name].tuned
            transform.trials = first[transform.name].trials
            transform.configure(first[transform.name].settings)
        return {name: transform.tuned for name, transform in first.items()}

    def _alive(self):
        """The transforms that no rank has dropped, in the order they were made in (collective)."""
        held = dict(self._transforms)
        here = np.array([number in held for number in range(self._made)])
        everywhere = np.logical_and.reduce(self.runtime.control.allgather(here))
        return [held[number] for number in np.flatnonzero(everywhere)]

    def _add(self, name, transform):
        """Plan a new transform, from the tuning file if that knows it."""
        transform.name = name
        self._transforms[self._made] = transform
        self._made += 1
        found = self._tuning.settings(name)
        if found is not None:
            transform.tuned = found[1]
            adopt(transform, self._requested, found[0])
        elif name == "backward":
            adopt(transform, self._requested, self.forward.settings)
        else:
            choose(transform, self._requested)

    def pointwise(self, function=None, *, inputs=None, outputs=1, shared=0, dealias=None):
        """Make a function of real-space fields act on spectral fields, as one pipeline.

        A decorator, with or without arguments. Each slice's inputs are transformed to real space,
        given to the function, and what it returns is transformed back.

        Parameters
        ----------
        function : callable
            ``function(*fields)`` with this rank's real-space planes of one slice, each ``(ny_local,
            nx)`` (of the finer grid with `dealias`), read-only by convention; returns one plane, or
            a tuple of `outputs` planes. If it has a parameter ``out``, it is given the plane (or
            tuple of planes) to fill instead; if it has a parameter ``index``, the slice's index
            in the batch.
        inputs : int, optional
            Number of spectral inputs; by default the function's positional parameters.
        outputs : int
        shared : int
            The last `shared` inputs have no batch axes: they are transformed once per call and
            given to all slices.
        dealias : {None, "3/2"} or (int, int)
            ``"3/2"``: real space has ceil(3 n / 2) points per direction, so that products of two
            resolved fields are exact in the resolved modes; only those are exchanged. Or the points
            ``(ny, nx)`` themselves, where others are faster. The Nyquist modes of even n count as not
            resolved: they are dropped.

        Returns
        -------
        Pointwise
            A `Transform` of the spectral inputs.
        """
        if function is None:
            return lambda function: self.pointwise(
                function, inputs=inputs, outputs=outputs, shared=shared, dealias=dealias)
        if self.closed:
            raise ClosedError("expected a plan in use, received one that was closed")
        ny, nx = self._shape[-2:]
        function = Function(function, inputs, outputs, shared, dealias, (ny, nx))
        self.runtime.preflight(function.problem, **function.agreed)
        slab = self._slab
        if dealias is not None:
            slab = self._make_slab(*fine_points((ny, nx), dealias))
        transform = Pointwise(
            self.runtime, slab, self._kernels_for(slab), self.spectrum, self._specs(())[1],
            self._dtype, function, self._scale_backward,
            self._scale_forward * ny * nx / (slab.my * slab.mx))
        self._add(f"pointwise: {function.inputs - function.shared} input(s), "
                  f"{function.shared} shared, {function.outputs} output(s), dealias {dealias}",
                  transform)
        return transform

    def _specs(self, batch):
        """The array specs of real space and of the spectrum, for some batch axes."""
        slab = self._slab
        plane = slab.ny, slab.nx
        half = slab.ny, slab.columns_all
        columns = slab.columns[slab.rank]
        spectral = complex_of(self._dtype)
        if self._transposed:
            spectrum = ArraySpec(self.comm, batch, half[::-1], {-2: columns}, spectral, natural=False)
        else:
            spectrum = ArraySpec(self.comm, batch, half, {-1: columns}, spectral)
        real = ArraySpec(self.comm, batch, plane, {-2: slab.rows[slab.rank]}, self._dtype)
        return real, spectrum

    def _make_slab(self, my, mx):
        ny, nx = self._shape[-2:]
        return Slab(ny, nx, self._dtype.kind == "f", self.comm.size, self.comm.rank, my, mx)

    def _kernels_for(self, slab):
        """A function of effort and rows per block (None: the fastest), as `Transform` wants it."""
        def kernels(effort, rows):
            rows = rows or _block_rows(slab, self._dtype, effort)
            key = slab.my, slab.mx, effort, rows
            found = self._kernels.get(key)
            if found is None:
                with self._tuning.planning():
                    found = self._kernels[key] = WorkersKernels(
                        (Kernels(slab, self._dtype, self._transposed, rows, effort)
                         for _ in range(self.runtime.workers)), rows)
            return found
        return kernels


BLOCK_NBYTES = (32 * 1024, 128 * 1024, 512 * 1024)
_block_rows_known = {}  # one choice per problem and process: plans of one problem agree to the bit


def _block_rows(slab, dtype, effort):
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


def _problem(comm, own, shape, dtype, wait, depth, chunk, in_flight, norm, order, effort,
             tuning):
    """What is wrong with a plan's arguments, or None."""
    lengths = integers(shape)
    return (
        comm_problem(own, comm) or (
            None if lengths is not None and len(lengths) >= 2 and min(lengths[-2:]) >= 1
            and min(lengths) >= 0 else
            f"expected a shape (..., ny, nx) of integers with ny, nx >= 1, received {shape!r}")
        or dtype_problem(dtype)
        or choice_problem(norm=(norm, NORMS), order=(order, ORDERS))
        or settings_problem(Settings(wait, depth, chunk, in_flight, effort=effort))
        or (None if isinstance(tuning, str | None) else
            f"expected tuning to be a file's name or None, received {tuning!r}"))
