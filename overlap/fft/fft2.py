"""`FFT2`: batches of two-dimensional FFTs on slabs, as pipelines that hide their transposes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import Layout, Transpose
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
from .array_layout import ArrayLayout, slab_problem
from .array_spec import ArraySpec
from .engine.axis import axes_of
from .engine.compiled_function import can_be_compiled
from .engine.fftw import complex_of
from .engine.plane_blocks import CALLED_NBYTES, COMPILED_NBYTES, BlockSize, PlaneBlocks
from .engine.stage import Direction
from .engine.staged import StagedTransform
from .function import Function, fine_points
from .plan import FourierPlan, PlanComm, given_weights, records
from .planning.memory import Memory
from .planning.search import adopt
from .planning.settings import Settings, settings_problem
from .planning.tuning import Tuning, path_of
from .pointwise import Pointwise
from .transform import Transform
from .volume import Planes, Volume
from .volume_pointwise import VolumePointwise

Y, X = 1, 2  # axes of a batch of planes
BLOCKS = ("rows", "planes")
FEW = 8  # planes for each worker: their exchanges are hidden behind parts of themselves, if they are
LARGE_NBYTES = 2**22  # bytes on each rank, at least


class FFT2(FourierPlan):
    """A plan for 2-D FFTs of the last two axes of arrays ``(..., ny, nx)`` over MPI ranks.

    In real space the rows (y) are split over the ranks, in spectral space the columns (x): evenly, the
    first ranks with one more, or by the layout's weights. Ranks may hold nothing. Making, calling and
    closing a plan is collective. Planning times a few candidates unless told not to.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        What the plan runs on, see `Plan`; all ranks of the runtime. For more workers than one:
        ``with overlap.Runtime(comm, workers=4) as rt, overlap.FFT2(rt, shape) as plan``.
    shape : tuple of int
        Global shape in real space, ``(..., ny, nx)``; the leading axes are the batch.
    dtype : dtype
        Data type in real space: ``complex64``/``complex128``, or ``float32``/``float64`` for
        transforms to half the spectrum, ``nx // 2 + 1`` columns.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`.
    layout : ArrayLayout or dict, optional
        How the arrays lie: order of the spectrum's axes, weights of the ranks.
    settings : Settings or dict, optional
        How the transforms run, as far as it is not left to planning: mode, depth and so on. With
        ``wait="auto"`` a model and the first calls find the fastest; ``wait="off"`` is
        the reference, to the last bit, of all others.
    tuning : str, optional
        A file that `tune` writes and later plans read, by default what the environment variable
        OVERLAP_TUNING names; ``""`` for none. An entry for this plan on this machine decides what
        `settings` leaves open, FFTW's plans included: a tuned plan is the same in every run.

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
                or shape_problem(shape, ("ny", "nx"))
                or dtype_problem(dtype)
                or problem
                or choice_problem(norm=(norm, NORMS))
                or slab_problem(arrays)
                or settings_problem(requested)
                or path_problem(path)
                or memory_problem(arrays_nbytes(lengths, dtype, self.comm.size))
            )
            self.runtime.preflight(
                problem,
                plan="FFT2",
                shape=lengths,
                dtype=shown(dtype),
                norm=norm,
                tuning=path,
                **asdict(arrays),
                **asdict(requested),
            )
            self._shape: tuple[int, ...] = lengths
            self._dtype = np.dtype(dtype)
            self._transposed = arrays.order == "transposed"
            self._weights, measures = given_weights(arrays)
            self._requested = requested
            kind = {
                "kind": "FFT2",
                "shape": list(lengths),
                "dtype": str(self._dtype),
                "order": arrays.order,
                "ranks": self.comm.size,
                "workers": self.runtime.workers,
            }
            kind |= {
                name: value
                for name, value in (
                    ("weights", arrays.weights and str(arrays.weights)),
                    ("restore", arrays.restore),
                    ("dealias", arrays.dealias),
                )
                if value
            }
            self._layout = arrays
            self._tuning = Tuning(self.runtime, path or None, kind, self._dtype)
            if measures:
                self._weights = self._tuning.weights
                measures = self._weights is None
            self._memory = Memory(self.runtime, kind | {"requested": str(requested.given())}, self._dtype)
            self._make(NORMS[norm])
            if measures:
                self._balanced()

    def _make(self, power: float) -> None:
        self._power = power
        self._fine = fine_points(self._shape[-2:], self._layout.dealias)
        self._comms = (self.runtime.comm,)
        self._coordinates = (self.comm.rank,)
        self._place()
        self.forward, self.backward = _forward(self), _backward(self)
        self._add("forward", self.forward, _forward)
        self._add("backward", self.backward, _backward)
        self._memory.keep_wisdom()

    def _place(self) -> None:
        size = self.comm.size
        self._here = Layout((None, 0 if size > 1 else None, None), (size,), self._weights)
        self._there = (
            self._here
            if self._layout.restore
            else Layout((None, None, 0 if size > 1 else None), (size,), self._weights)
        )
        self.real, self.spectrum = self._specs(self._shape[:-2])
        # All that are in use.
        self._staged: weakref.WeakValueDictionary[tuple[Any, ...], StagedTransform] = weakref.WeakValueDictionary()
        self._blocks: weakref.WeakValueDictionary[tuple[Any, ...], PlaneBlocks] = weakref.WeakValueDictionary()

    def _transform(self, forward: bool, source: ArraySpec, target: ArraySpec) -> Volume:
        by_plane = self._by_plane(source.slices)
        make = self._staged_of(forward, self._fine, source.slices, by_plane=by_plane)
        return (Planes if by_plane else Volume)(
            self.runtime,
            self._comms,
            make(self._requested.effort),
            source,
            target,
            self._scale(forward, self._fine),
            make,
        )

    def _by_plane(self, planes: int) -> bool:
        """Whether messages are of whole planes: there are enough of them to hide one behind others, or they are
        small.
        """
        nbytes = float(np.prod(self._fine)) * complex_of(self._dtype).itemsize / self.comm.size
        alone = self.comm.size == 1 and self.runtime.workers == 1
        few = planes < FEW * self.runtime.workers and nbytes >= LARGE_NBYTES
        return not (self._layout.restore and self.comm.size > 1) and (alone or not few)

    def _scale(self, forward: bool, fine: tuple[int, ...]) -> float:
        points = float(np.prod(self._shape[-2:], dtype=object))
        if not forward:
            return points ** (self._power - 1.0)
        return points**-self._power * points / float(np.prod(fine, dtype=object))

    def _staged_of(
        self,
        forward: bool,
        fine: tuple[int, ...],
        planes: int,
        reused: bool = False,
        by_plane: bool = True,
        joined: bool = True,
    ) -> Callable[[str | None], StagedTransform]:
        """Return a function of FFTW's effort: the staged transform of so many planes of a grid.

        Small planes are transformed together where they are `joined`; else one by one, as whoever takes each by itself
        needs them.
        """
        axes = axes_of((Y, X), self._shape[-2:], fine, self._dtype)
        route = _route(self.comm.size, forward, self._layout.restore)

        def make(effort: str | None) -> StagedTransform:
            key = forward, fine, planes, reused, by_plane, joined, effort
            found = self._staged.get(key)
            if found is None:
                with self._tuning.planning():
                    found = self._staged[key] = StagedTransform(
                        route,
                        axes,
                        self._source(forward, axes, planes),
                        Direction(forward, effort, Y if self._transposed else None, by_index=by_plane),
                        self.runtime.workers,
                        joined=None if by_plane else joined,
                        reused=reused,
                    )
            return found

        return make

    def wavenumbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Mode numbers of this rank's part of the spectrum.

        Returns
        -------
        ky, kx : ndarray of float
            Shapes that broadcast to a local plane of the spectrum, in its order.
        """
        self._check_in_use()
        ny, nx = self._shape[-2:]
        ky = np.fft.fftfreq(ny, 1 / ny)
        kx = np.fft.rfftfreq(nx, 1 / nx) if self._dtype.kind == "f" else np.fft.fftfreq(nx, 1 / nx)
        _, rows, columns = self._there.local_slice((1, ny, len(kx)), (self.comm.rank,))
        ky, kx = ky[rows], kx[columns]
        return (ky[None, :], kx[:, None]) if self._transposed else (ky[:, None], kx[None, :])

    def _title(self) -> str:
        return f"FFT2 {self._shape} {self._dtype} {self._sharers()}"

    def _forget_kernels(self) -> None:
        self._staged.clear()
        self._blocks.clear()

    def _shapes(self) -> tuple[Any, ...]:
        return self.real.shape[-2:], self.spectrum.shape[-2:]

    def _add(self, name: str, transform: Transform, make: Callable[[FFT2], Transform]) -> None:
        """Plan a new transform."""
        self._keep(name, transform, make)
        if name == "backward" and self.forward.trials:
            adopt(transform, self._requested, self.forward.settings)
        else:
            self._choose(name, transform)

    def pointwise(
        self,
        function: Callable[..., Any] | None = None,
        *,
        inputs: int | None = None,
        outputs: int = 1,
        shared: int = 0,
        dealias: str | tuple[int, int] | None = None,
        blocks: str = "rows",
    ) -> Any:
        """Make a function of real-space fields act on spectral fields, as one pipeline.

        A decorator, with or without arguments. Each slice's inputs are transformed to real space,
        given to the function, and what it returns is transformed back.

        Parameters
        ----------
        function : callable
            ``function(*fields)`` with some rows of real-space planes, each ``(rows, nx)`` (of the finer
            grid with `dealias`), read-only by convention; returns as many rows of one plane, or of
            `outputs` planes as a tuple. If it has a parameter ``out``, it is given the rows (or
            tuple of them) to fill instead; if it has a parameter ``index``, the slice's index
            in the batch; if ``rows``, which of this rank's rows these are, a slice. The `shared` fields
            cannot be written to. All of it lies in buffers that the next call uses again: copy what you
            keep. One compiled by `numba.njit` runs without Python, and without the GIL, if it fills ``out`` and returns
            nothing, or has no ``out``.
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
        blocks : {"rows", "planes"}
            ``"planes"``: the function is given all this rank's rows of one slice, ``(ny_local, nx)``.
            That is what functions need that look at other points than the one they compute; others are
            faster on blocks that stay in the cache: some rows of a large plane, or, for functions
            without `shared` fields, ``index`` and ``rows``, those of several small ones.

        Returns
        -------
        Pointwise
            A `Transform` of the spectral inputs.
        """
        self._check_in_use()
        if function is None:
            return lambda function: self.pointwise(
                function, inputs=inputs, outputs=outputs, shared=shared, dealias=dealias, blocks=blocks
            )
        with self._adding("making a function of real-space fields"):
            ny, nx = self._shape[-2:]
            function = Function(function, inputs, outputs, shared, dealias, (ny, nx))
            self.runtime.preflight(
                function.problem
                or choice_problem(blocks=(blocks, BLOCKS))
                or memory_problem(fields_nbytes(fine_points((ny, nx), dealias), self._dtype, self.comm.size)),
                **function.agreed,
                blocks=blocks,
            )
            fine = self._fine if dealias is None else fine_points((ny, nx), dealias)

            def make(plan: FFT2) -> Transform:
                if plan._layout.restore and plan.comm.size > 1:
                    return plan._pointwise_restored(function, fine)
                return plan._pointwise(function, fine, blocks == "planes")

            transform = make(self)
            self._add(
                f"pointwise: {function.inputs - function.shared} input(s), "
                f"{function.shared} shared, {function.outputs} output(s), dealias {dealias}",
                transform,
                make,
            )
            return transform

    def _pointwise(self, function: Function, fine: tuple[int, ...], whole: bool) -> Pointwise:
        """Return the transform of a function on a grid of so many points."""
        ny, nx = self._shape[-2:]
        scales = self._scale(False, fine), self._scale(True, fine)
        slices, effort = max(1, self.real.slices), self._requested.effort
        back, forth = (
            self._staged_of(forward, fine, slices * count, reused=True)
            for forward, count in ((False, function.inputs), (True, function.outputs))
        )
        counts = function.inputs, function.outputs
        axes = axes_of((Y, X), (ny, nx), fine, self._dtype)
        size = BlockSize(
            COMPILED_NBYTES if can_be_compiled(function) else CALLED_NBYTES,
            whole,
            function.simple and not (function.shared or whole),
        )

        def blocks(effort: str | None) -> PlaneBlocks:
            key = function, effort
            found = self._blocks.get(key)
            if found is None:
                with self._tuning.planning():
                    found = self._blocks[key] = PlaneBlocks(
                        (back(effort).stages[0], forth(effort).stages[0]),
                        axes,
                        counts,
                        scales,
                        effort,
                        self.runtime.workers,
                        size,
                    )
            return found

        shared, share = self._specs(())[1], None
        if function.shared:
            rows = self._here.local_slice((1, *fine), (self.comm.rank,))[Y]
            real = ArraySpec(self.comm, (function.shared,), fine, {-2: rows}, self._dtype)
            spectra = ArraySpec(
                self.comm,
                (function.shared,),
                shared.global_shape,
                {-2 if self._transposed else -1: shared.local_slice[-2 if self._transposed else -1]},
                shared.dtype,
                natural=shared.natural,
            )
            make = self._staged_of(False, fine, function.shared)
            share = Planes(self.runtime, self._comms, make(effort), spectra, real, scales[0], make)
        return Pointwise(self.runtime.comm, function, blocks, effort, (self.spectrum, shared), share)

    def _pointwise_restored(self, function: Function, fine: tuple[int, ...]) -> VolumePointwise:
        """Return the same where the spectrum is split as real space is: whole planes, one after the other."""
        makes = (
            self._staged_of(False, fine, max(function.inputs, function.shared), True, False, False),
            self._staged_of(True, fine, function.outputs, False, False, False),
        )
        return VolumePointwise(
            self.runtime,
            self._comms,
            function,
            lambda effort: tuple(make(effort) for make in makes),
            self._requested.effort,
            (self.spectrum, self._specs(())[1]),
            (self._here.local_shape((1, *fine), self._coordinates), self._dtype),
            (self._scale(False, fine), self._scale(True, fine)),
        )

    def _specs(self, batch: Sequence[int]) -> tuple[ArraySpec, ArraySpec]:
        """Return the array specs of real space and of the spectrum, for some batch axes."""
        ny, nx = self._shape[-2:]
        columns = nx // 2 + 1 if self._dtype.kind == "f" else nx
        rank = (self.comm.rank,)
        rows = self._here.local_slice((1, *self._fine), rank)[Y]
        axis, mine = (
            (Y, self._there.local_slice((1, ny, columns), rank)[Y])
            if self._layout.restore
            else (X, self._there.local_slice((1, ny, columns), rank)[X])
        )
        order = (X, Y) if self._transposed else (Y, X)
        spectrum = ArraySpec(
            self.comm,
            batch,
            [(ny, columns)[one - 1] for one in order],
            {order.index(axis) - 2: mine},
            complex_of(self._dtype),
            natural=not self._transposed,
        )
        return ArraySpec(self.comm, batch, self._fine, {-2: rows}, self._dtype), spectrum


def _forward(plan: FFT2) -> Volume:
    return plan._transform(True, plan.real, plan.spectrum)


def _backward(plan: FFT2) -> Volume:
    return plan._transform(False, plan.spectrum, plan.real)


def _route(ranks: int, forward: bool, restore: bool) -> list[Any]:
    """Return the route from real space to the spectrum, or back, as `arrays.stages` wants it."""
    if ranks == 1:
        return [(X,), None, (Y,)] if forward else [(Y,), None, (X,)]
    there, again = Transpose(Y, X), Transpose(X, Y)
    if restore:
        return [(X,), there, (Y,), again, ()] if forward else [(), there, (Y,), again, (X,)]
    return [(X,), there, (Y,)] if forward else [(Y,), again, (X,)]
