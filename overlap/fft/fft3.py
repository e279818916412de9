"""`FFT3`: three-dimensional FFTs on slabs and pencils, as pipelines that hide their exchanges."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import Layout, Transpose, coordinates, subcomms
from .arguments import (
    NORMS,
    arrays_nbytes,
    choice_problem,
    dtype_problem,
    fields_nbytes,
    integers,
    memory_problem,
    path_problem,
    shape_problem,
    shown,
)
from .array_layout import ArrayLayout, volume_problem
from .array_spec import ArraySpec
from .engine.axis import Axis, axes_of
from .engine.fftw import complex_of
from .engine.stage import Direction
from .engine.staged import StagedTransform
from .function import Function, fine_points
from .plan import FourierPlan, PlanComm, given_weights, records
from .planning.grids import near_grids
from .planning.memory import Memory
from .planning.search import MEASURED
from .planning.settings import Settings, settings_problem
from .planning.trials import median_seconds
from .planning.tuning import Tuning, path_of
from .volume import Fields, Volume
from .volume_pointwise import VolumePointwise

Z, Y, X = 1, 2, 3  # axes of a field, after the batch's


class FFT3(FourierPlan):
    """A plan for 3-D FFTs of the last three axes of arrays ``(..., nz, ny, nx)`` over MPI ranks.

    The ranks form a P x Q grid. In real space y is split over P and z over Q, in spectral space x
    over P and y over Q (Takahashi's volumetric FFT); with P or Q of 1 these are slabs, with one
    exchange instead of two. Shares are even, the first ranks with one more, or go by the layout's
    weights, and ranks may hold nothing. Making, calling and closing a plan is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        What the plan runs on, see `Plan`; all ranks of the runtime. For more workers than one:
        ``with overlap.Runtime(comm, workers=4) as rt, overlap.FFT3(rt, shape) as plan``.
    shape : tuple of int
        Global shape ``(..., nz, ny, nx)`` of the resolved grid; the leading axes are the batch.
    dtype : dtype
        Data type in real space: ``complex64``/``complex128``, or ``float32``/``float64`` for
        transforms to half the spectrum, ``nx // 2 + 1`` modes along x.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`.
    layout : ArrayLayout or dict, optional
        How the arrays lie: process grid, order of the spectrum's axes and how they are split, de-aliasing, weights of
        the ranks. A grid that is left open is the one that the volumetric FFT's equation (7) finds, with the latency
        and the bandwidth of `comm`; where a slab and a pencil come close, with an effort of "measure" or "patient" the
        one with the faster forward transform. Plans of one shape and runtime then have the same.
    settings : Settings or dict, optional
        How the transforms run, as far as it is not left to planning: mode, depth and so on. With
        ``wait="auto"`` the first calls find the fastest; ``wait="off"`` is the reference, to
        the last bit, of all others.
    tuning : str, optional
        A file that `tune` writes and later plans read, as of `FFT2`. A grid that is left open is the one that was
        tuned.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: what this rank holds, and ``empty()`` ones.
    forward, backward : Transform
        Call them: ``spectrum = plan.forward(u, out=None)``, ``u = plan.backward(spectrum)``.
    grid : (int, int)
        P and Q.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad or differs between ranks, or the tuning file was cut
        off, is of another version or is none.
    """

    def __init__(
        self,
        comm: PlanComm,
        shape: Sequence[int],
        dtype: DTypeLike = complex,
        *,
        norm: str | None = None,
        layout: ArrayLayout | dict[str, Any] | None = None,
        settings: Settings | dict[str, Any] | None = None,
        tuning: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(comm)
        with self._making():
            arrays, requested, problem = records(layout, settings, self.comm.size)
            path: Any = path_of(tuning)
            lengths: Any = integers(shape)
            problem = (
                self._check_ranks()
                or shape_problem(shape, ("nz", "ny", "nx"))
                or dtype_problem(dtype)
                or problem
                or choice_problem(norm=(norm, NORMS))
                or volume_problem(arrays, self.comm.size)
                or settings_problem(requested)
                or path_problem(path)
                or memory_problem(arrays_nbytes(lengths, dtype, self.comm.size))
            )
            self.runtime.preflight(
                problem,
                plan="FFT3",
                shape=lengths,
                dtype=shown(dtype),
                norm=norm,
                tuning=path,
                **asdict(arrays),
                **asdict(requested),
            )
            self._shape: tuple[int, ...] = lengths
            self._dtype = np.dtype(dtype)
            self._weights, measures = given_weights(arrays)
            kind = {
                "kind": "FFT3",
                "shape": list(lengths),
                "dtype": str(self._dtype),
                "order": arrays.order,
                "grid": arrays.grid and list(arrays.grid),
                "restore": arrays.restore,
                "dealias": arrays.dealias,
                "ranks": self.comm.size,
                "workers": self.runtime.workers,
            }
            if arrays.weights is not None:
                kind["weights"] = str(arrays.weights)
            self._tuning = Tuning(self.runtime, path or None, kind, self._dtype)
            if measures:
                self._weights = self._tuning.weights
                measures = self._weights is None
            self._layout, self._requested = replace(arrays, weights=self._weights), requested
            self._transposed = arrays.order == "transposed"
            self._power = NORMS[norm]
            self.grid = self._tuning.grid = arrays.grid or self._tuning.grid or self._choose_grid()
            self._make()
            if measures:
                self._balanced()

    def _place(self) -> None:
        weights = self._weights
        p, q = (None if size == 1 else dimension for dimension, size in enumerate(self.grid))
        self._here = Layout((None, q, p, None), self.grid, weights)
        self._there = self._here if self._layout.restore else Layout((None, None, q, p), self.grid, weights)
        self.real, self.spectrum = self._specs(self._shape[:-3])
        self._staged: weakref.WeakValueDictionary[tuple, StagedTransform] = weakref.WeakValueDictionary()  # all in use

    def _make(self) -> None:
        self._coordinates = coordinates(self.comm.rank, self.grid)
        self._comms = subcomms(self.runtime, self.grid)
        nz, ny, nx = self._shape[-3:]
        self._axes = axes_of((Z, Y, X), (nz, ny, nx), fine_points((nz, ny, nx), self._layout.dealias), self._dtype)
        self._place()
        self._memory = Memory(
            self.runtime,
            {
                "kind": "FFT3",
                "shape": list(self._shape),
                "dtype": str(self._dtype),
                "layout": str(self._layout),
                "grid": list(self.grid),
                "workers": self.runtime.workers,
                "requested": str(self._requested.given()),
            },
            self._dtype,
        )
        self.forward, self.backward = _forward(self), _backward(self)
        self._add("forward", self.forward, _forward)
        self._add("backward", self.backward, _backward)
        self._memory.keep_wisdom()

    def _volume(self, forward: bool, source: ArraySpec, target: ArraySpec) -> Volume:
        make = self._staged_of(forward, self._axes, self.real.slices)
        return Volume(
            self.runtime,
            self._comms,
            make(self._requested.effort),
            source,
            target,
            self._scale(forward, self._axes),
            make,
        )

    def _add(self, name: str, transform: Fields, make: Callable[[Any], Fields]) -> None:
        """Plan a new transform."""
        self._keep(name, transform, make)
        self._choose(name, transform)

    def wavenumbers(self) -> tuple[np.ndarray, ...]:
        """Mode numbers of this rank's part of the spectrum.

        Returns
        -------
        kz, ky, kx : ndarray of float
            Shapes that broadcast to a local field of the spectrum, in its order.
        """
        self._check_in_use()
        nz, ny, nx = self._shape[-3:]
        kx = np.fft.rfftfreq(nx, 1 / nx) if self._dtype.kind == "f" else np.fft.fftfreq(nx, 1 / nx)
        modes = [np.fft.fftfreq(nz, 1 / nz), np.fft.fftfreq(ny, 1 / ny), kx]
        positions = (-1, -3, -2) if self._transposed else (-3, -2, -1)
        found = []
        for mode, position in zip(modes, positions):
            shape = [1, 1, 1]
            shape[position] = -1
            found.append(mode[self.spectrum.local_slice[position]].reshape(shape))
        return tuple(found)

    def _title(self) -> str:
        P, Q = self.grid
        return f"FFT3 {self._shape} {self._dtype}, grid {P} x {Q}, {self._sharers()}"

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
            ``function(*fields)`` with this rank's real-space fields of one entry, each ``(nz_local,
            ny_local, nx)`` (of the finer grid with `dealias`), read-only by convention; returns one
            field, or a tuple of `outputs` fields. If it has a parameter ``out``, it is given the
            field (or tuple of fields) to fill instead; if it has a parameter ``index``, the
            entry's index in the batch. The `shared` fields cannot be written to. All fields lie in buffers that the
            next call uses again: copy what you keep.
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
        self._check_in_use()
        if function is None:
            return lambda function: self.pointwise(
                function, inputs=inputs, outputs=outputs, shared=shared, dealias=dealias
            )
        with self._adding("making a function of real-space fields"):
            function = Function(function, inputs, outputs, shared, dealias, self._shape[-3:])
            self.runtime.preflight(
                function.problem
                or memory_problem(fields_nbytes(fine_points(self._shape[-3:], dealias), self._dtype, self.comm.size)),
                **function.agreed,
            )
            axes = self._axes
            if dealias is not None:
                axes = axes_of((Z, Y, X), self._shape[-3:], fine_points(self._shape[-3:], dealias), self._dtype)
            fine = tuple(axes[axis].length(False) for axis in (Z, Y, X))

            def make(plan: FFT3) -> VolumePointwise:
                makes = (
                    plan._staged_of(False, axes, max(function.inputs, shared), False, True),
                    plan._staged_of(True, axes, outputs, False),
                )
                return VolumePointwise(
                    plan.runtime,
                    plan._comms,
                    function,
                    lambda effort: tuple(make(effort) for make in makes),
                    plan._requested.effort,
                    (plan.spectrum, plan._specs(())[1]),
                    (plan._here.local_shape((1, *fine), plan._coordinates), plan._dtype),
                    (plan._scale(False, axes), plan._scale(True, axes)),
                )

            transform = make(self)
            self._add(
                f"pointwise: {function.inputs - function.shared} input(s), "
                f"{function.shared} shared, {function.outputs} output(s), dealias {dealias}",
                transform,
                make,
            )
            return transform

    def _choose_grid(self) -> tuple[int, int]:
        """Return the grid that the model finds, or where it can't tell, a measurement."""
        chosen = self.runtime.cache.setdefault("grids", {})
        requested = Settings(self._requested.wait, effort=self._requested.effort)
        key = self._shape, self._dtype, self._layout, requested.effort
        if key not in chosen:
            grids = near_grids(self.runtime, self._shape, complex_of(self._dtype))
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
                        settings=requested,
                        tuning="",
                        layout=replace(self._layout, grid=grid),
                    ) as plan:
                        forward: Any = plan.forward
                        seconds.append(median_seconds(forward, forward.trial_fields()))
            chosen[key] = grids[seconds.index(min(seconds))]
        return chosen[key]

    def _scale(self, forward: bool, axes: dict[int, Axis]) -> float:
        points = float(np.prod(self._shape[-3:], dtype=object))
        if not forward:
            return points ** (self._power - 1.0)
        fine = float(np.prod([axes[axis].fine for axis in (Z, Y, X)], dtype=object))
        return points**-self._power * points / fine

    def _staged_of(
        self, forward: bool, axes: dict[int, Axis], batch: int, joined: bool = True, reused: bool = False
    ) -> Callable[[str | None], StagedTransform]:
        """Make a function of FFTW's effort: the staged transform of so many fields of a grid."""

        def make(effort: str | None) -> StagedTransform:
            key = forward, tuple(axis.fine for axis in axes.values()), batch, joined, reused, effort
            found = self._staged.get(key)
            if found is None:
                with self._tuning.planning():
                    found = self._staged[key] = StagedTransform(
                        _route(self.grid, self._dtype.kind == "f", forward, self._layout.restore),
                        axes,
                        self._source(forward, axes, batch),
                        Direction(forward, effort, Z if self._transposed else None),
                        self.runtime.workers,
                        joined,
                        reused,
                    )
            return found

        return make

    def _forget_kernels(self) -> None:
        self._staged.clear()

    def _shapes(self) -> tuple[Any, ...]:
        return self.real.shape[-3:], self.spectrum.shape[-3:]

    def _specs(self, batch: Sequence[int]) -> tuple[ArraySpec, ArraySpec]:
        """Return the array specs of real space and of the spectrum, for some batch axes."""
        return (
            self._spec(self._here, batch, False, self._dtype, True),
            self._spec(self._there, batch, True, complex_of(self._dtype), not self._transposed),
        )

    def _spec(self, layout: Layout, batch: Sequence[int], spectral: bool, dtype: np.dtype, natural: bool) -> ArraySpec:
        shape = [self._axes[axis].length(spectral) for axis in (Z, Y, X)]
        where = layout.local_slice((1, *shape), self._coordinates)
        order = (Z, Y, X) if natural else (Y, X, Z)
        parts = {position - 3: where[axis] for position, axis in enumerate(order) if layout.splits[axis] is not None}
        return ArraySpec(self.comm, batch, tuple(shape[axis - 1] for axis in order), parts, dtype, natural=natural)


def _forward(plan: FFT3) -> Volume:
    return plan._volume(True, plan.real, plan.spectrum)


def _backward(plan: FFT3) -> Volume:
    return plan._volume(False, plan.spectrum, plan.real)


def _route(grid: tuple[int, int], real: bool, forward: bool, restore: bool) -> list[Any]:
    """Return the route from real space to the spectrum, or back, as `arrays.stages` wants it."""
    over = Transpose(Y, X), Transpose(Z, Y)
    steps: list[Any] = [(X,), over[0], (Y,), over[1], (Z,)]
    if restore:
        steps += [over[1].reversed(), (), over[0].reversed(), ()]
    if not forward:
        steps = [step.reversed() if isinstance(step, Transpose) else step for step in steps[::-1]]
    route: list[Any] = [()]
    for group, transpose in zip(steps[::2], [*steps[1::2], None]):
        route[-1] += group
        if transpose is not None and grid[0 if X in (transpose.joined, transpose.split) else 1] > 1:
            route += [transpose, ()]
    if forward or (restore and len(route) > 1):
        return route if len(route) > 1 else [(X, Y), None, (Z,)]
    if route[0] == (Z,) and route[1:] == [over[1].reversed(), (Y, X)] and not real:
        return [(X, Z), route[1], (Y,)]  # what waits is made in the target, and may be exchanged late
    if len(route) == 1:
        return [(Z,), None, (Y, X)] if real else [(X, Y), None, (Z,)]
    if route[0] == (Z, Y):
        if real:  # x comes last, and z can't be cut along while it is transformed
            return [(Z,), None, (Y,), *route[1:]]
        return [(Y,), route[1], (X, Z)]
    return route
