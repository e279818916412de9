"""`FFT3`: three-dimensional FFTs on slabs and pencils, as pipelines that hide their exchanges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays.exchange import dtype_sent, travelling
from ..arrays.stages import Route
from ..runtime import Runtime
from ..timing.alltoall import alltoall_s
from .array_layout import ArrayLayout, grid_problem
from .fourier import FourierPlan
from .planning.candidates import link_of
from .planning.settings import Settings
from .planning.tournament import MEASURED, median_seconds

Z, Y, X = 1, 2, 3  # axes of a field, after the batch's


class FFT3(FourierPlan):
    """A plan for 3-D FFTs of the last three axes of arrays ``(..., nz, ny, nx)`` over MPI ranks.

    The ranks form a P x Q grid. In real space y is split over P and z over Q, in spectral space x over P and y over Q
    (Takahashi's volumetric FFT); with P or Q of 1 these are slabs, with one exchange instead of two. Shares are even
    (the first ranks hold one more if the length is not divisible), or follow the layout's weights. A rank may hold
    nothing. Making, calling and closing a plan is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        The ranks over which arrays are split. From a communicator the plan makes a runtime with one worker, and closes
        it at its end; a runtime stays open. For several workers:
        ``with overlap.Runtime(comm, workers=4) as rt, overlap.FFT3(rt, shape) as plan``.
    shape : tuple of int
        Global shape ``(..., nz, ny, nx)`` of the resolved grid; the leading axes are the batch.
    dtype : dtype
        Data type in real space: ``complex64``/``complex128``, or ``float32``/``float64`` for
        transforms to half the spectrum, ``nx // 2 + 1`` modes along x.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`; for cosine and sine transforms as in `scipy.fft.dct` and `scipy.fft.dst`.
    kinds : sequence of str, optional
        The transforms along z, y and x, as for `FFT2`: ``("dct2", "c2c", "r2c")``.
    layout : ArrayLayout or dict, optional
        The layout of the arrays: process grid, order of the spectrum's axes and their distribution, de-aliasing,
        weights of the ranks. If no grid is named, equation (7) of the volumetric FFT chooses it, from latency and
        bandwidth of `comm`. If the formula finds a slab and a pencil almost equally fast, an effort of "measure" or
        "patient" compares their forward transforms. Plans of one shape and runtime then have the same grid.
    settings : Settings or dict, optional
        See `FFT2`.
    tuning : str, optional
        A file that `tune` writes and later plans read, as for `FFT2`. If no grid is named, the plan takes the tuned
        one.
    exchange : {None, "f4"}
        ``"f4"``: numbers are sent in single precision, as for `FFT2`. On a grid with P > 1 and Q > 1 they are rounded
        twice.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: this rank's part, and ``empty()`` to make them.
    forward, backward : Transform
        Call them: ``spectrum = plan.forward(u, out=None)``, ``u = plan.backward(spectrum)``.
    grid : (int, int)
        P and Q.
    runtime : Runtime
        The plan's own, or the one of which it was made: for slice programs, and for other plans.
    comm : mpi4py.MPI.Comm
        The ranks over which the arrays are split, for collectives of your own.

    Raises
    ------
    InputError
        On all ranks, if an argument is bad or differs between ranks, or if the tuning file was cut off, has another
        version or is no tuning file.

    Examples
    --------
    >>> with overlap.FFT3(comm, (16, 16, 16), dtype="f8") as plan:
    ...     u = plan.real.empty()
    ...     u[...] = 1.0
    ...     spectrum = plan.forward(u)
    ...     plan.spectrum.global_shape
    (16, 16, 9)
    """

    _kind, _names = "FFT3", ("nz", "ny", "nx")

    def _grid_problem(self, layout: ArrayLayout, kinds: tuple[str, ...]) -> str | None:
        return grid_problem(layout, self.comm.size)

    def _choose_grid(self) -> tuple[int, ...]:
        self.grid: tuple[int, int] = self._layout.grid or self._tuning.grid or self._fastest_grid()
        self._tuning.grid = self.grid
        return self.grid

    def _fastest_grid(self) -> tuple[int, int]:
        """Return the grid that the model prefers or, if two grids are too close, the measured best one."""
        chosen = self.runtime.cache.setdefault("grids", {})
        requested = Settings(self._requested.wait, effort=self._requested.effort)
        key = self._shape, self._dtype, self._kinds, self._layout, requested.effort, self.exchange
        if key not in chosen:
            grids = near_grids(self.runtime, self._shape, dtype_sent(self._modes_dtype, self.exchange))
            seconds = [0.0]
            if len(grids) > 1 and 0 not in self._shape and requested.effort in MEASURED:
                seconds.clear()
                if requested.wait == "auto":
                    requested = replace(requested, wait="poll")
                for grid in grids:
                    with FFT3(
                        self.runtime,
                        self._shape,
                        self._dtype,
                        kinds=self._kinds,
                        settings=requested,
                        tuning="",
                        exchange=self.exchange,
                        layout=replace(self._layout, grid=grid),
                    ) as plan:
                        forward: Any = plan.forward
                        seconds.append(median_seconds(forward, forward.trial_fields()))
            chosen[key] = grids[seconds.index(min(seconds))]
        return chosen[key]

    def _route(self, forward: bool) -> Route:
        route = super()._route(forward)
        if not forward and route[::2] == [(Z,), (Y, X)] and route[1] is not None and "r2c" not in self._kinds:
            return [(X, Z), route[1], (Y,)]  # the trailing axis is transformed in the target, and units may be late
        return route

    def _title(self) -> str:
        P, Q = self.grid
        of = f"{self._dtype}{self._in_kinds()}"
        return f"FFT3 {self._shape} {of}, grid {P} x {Q}, {self._sharers()}{travelling(self.exchange)}"

    def pointwise(
        self,
        function: Callable[..., Any] | None = None,
        *,
        inputs: int | None = None,
        outputs: int = 1,
        shared: int = 0,
        dealias: str | tuple[int, int, int] | None = None,
    ) -> Any:
        """Make a function of real-space fields act on spectral fields, as one pipeline.

        A decorator, with or without arguments. The inputs of each entry of the batch are transformed
        to real space, given to the function, and what it returns is transformed back, while the
        next entry's inputs are under way.

        Parameters
        ----------
        function : callable
            ``function(*fields)`` with this rank's real-space fields of one entry, each ``(nz_local, ny_local, nx)`` (of
            the finer grid with `dealias`), read-only by convention; returns one field, or a tuple of `outputs` fields.
            If the function has a parameter ``out``, it receives the field (or a tuple of fields) to fill instead; with
            a parameter ``index`` it receives the entry's index in the batch. The `shared` fields cannot be written to.
            All fields lie in buffers that the next call reuses: copy what you keep.
        inputs : int, optional
            Number of spectral inputs; by default the function's positional parameters.
        outputs : int
        shared : int
            The last `shared` inputs have no batch axes: they are transformed once per call and
            given to all entries.
        dealias : {None, "3/2"} or (int, int, int)
            See `FFT2.pointwise`; for these fields alone. A plan that de-aliases does so here, too.

        Returns
        -------
        Pointwise
            A `Transform` of the spectral inputs.
        """
        return self._act(function, (inputs, outputs, shared), dealias)


CLOSE = 1.5  # largest ratio of the modelled times of slab and pencil that counts as close


def near_grids(
    runtime: Runtime,
    shape: tuple[int, ...],  # global, (..., nz, ny, nx); slabs split z
    dtype: DTypeLike,  # of the elements in messages
) -> list[tuple[int, int]]:
    """Find the grids with the smallest modelled times of their exchanges (collective).

    The model has Takahashi's equations (4), of one all-to-all among all ranks (slabs, where P or Q is 1), and (5), of
    two among fewer (pencils), with latency and bandwidth that are measured once per runtime. It ignores computing. So
    the plan measures its best slab and its best pencil if they are close to each other.

    The best P x Q grid comes first, the same on all ranks. If it is a slab and a pencil is close, or vice versa, the
    best of those is second. Grids that leave ranks empty are the last choice.
    """
    size = runtime.coordinator.size
    nz, ny, nx = shape[-3:]
    link = link_of(runtime)
    points, itemsize = nz * ny * nx, np.dtype(dtype).itemsize

    def cost(grid: tuple[int, int]) -> tuple[bool, float, int]:
        P, Q = grid
        empty = max(nx < P, ny < P, ny < Q, nz < Q)
        return empty, alltoall_s(points, grid, link, itemsize), P

    best, *others = sorted(((P, size // P) for P in range(1, size + 1) if size % P == 0), key=cost)
    others = [grid for grid in others if (1 in grid) != (1 in best)]
    (empty, best_s, _), (also_empty, other_s, _) = cost(best), cost(others[0] if others else best)
    close = others and empty == also_empty and other_s <= CLOSE * best_s
    return [best, others[0]] if close else [best]
