"""`FFT2`: batches of two-dimensional FFTs on slabs, as pipelines that hide their transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.exchange import travelling
from ..arrays.stages import Route, for_stages
from ..checks import choice_problem
from .array_layout import ArrayLayout, default_problem
from .engine.plane_blocks import PlaneBlocks
from .fourier import FourierPlan
from .function import Function
from .planning.tournament import use_settings
from .pointwise import Pointwise
from .transform import FieldTransform, Transform

X = 2  # axis of a batch of planes
BLOCKS = ("rows", "planes")
FEW = 8  # fewer planes per worker are cut into parts, behind which exchanges are hidden, if the planes are large:
LARGE_NBYTES = 2**22  # at least this many bytes on each rank


class FFT2(FourierPlan):
    """A plan for 2-D FFTs of the last two axes of arrays ``(..., ny, nx)`` over MPI ranks.

    In real space the rows (y) are split over the ranks, in spectral space the columns (x). Shares are even (the first
    ranks hold one more if the length is not divisible), or follow the layout's weights. A rank may hold nothing.
    Making, calling and closing a plan is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        The ranks over which arrays are split. From a communicator the plan makes a runtime with one worker, and closes
        it at its end; a runtime stays open. For several workers:
        ``with overlap.Runtime(comm, workers=4) as rt, overlap.FFT2(rt, shape) as plan``.
    shape : tuple of int
        Global shape in real space, ``(..., ny, nx)``; the leading axes are the batch.
    dtype : dtype
        Data type in real space: ``complex64``/``complex128``, or ``float32``/``float64`` for
        transforms to half the spectrum, ``nx // 2 + 1`` columns.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`; for cosine and sine transforms as in `scipy.fft.dct` and `scipy.fft.dst`.
    kinds : sequence of str, optional
        The transforms along y and x: "c2c" (FFTs), "r2c" (FFTs to half the spectrum), or cosine and sine transforms,
        "dct1" to "dct4" and "dst1" to "dst4". By default FFTs. For real data the last axis with FFTs is "r2c" and any
        other one "c2c"; if no axis has FFTs, the spectrum is real. For complex data no axis is "r2c".
    layout : ArrayLayout or dict, optional
        The layout of the arrays: order of the spectrum's axes, weights of the ranks.
    settings : Settings or dict, optional
        The way to wait, depth and so on. Planning chooses the settings that are not given. With
        ``wait="auto"`` a model and comparisons in the calls find the fastest; ``wait="off"`` is the reference, to the
        last bit, of all other ways.
    tuning : str, optional
        A file that `tune` writes and later plans read; by default the file that the environment variable
        OVERLAP_TUNING names; ``""`` for none. An entry for this plan on this machine decides everything that `settings`
        leaves open, FFTW's plans included: a tuned plan is the same in every run.
    exchange : {None, "f4"}
        ``"f4"``: numbers of a plan in double precision are sent in single precision, in all its transforms. That halves
        the bytes, and rounds every number of an exchange, also those that stay on their rank, by 6e-8 of itself at
        most. A finite number beyond 3.4e38 is a `SliceError` on all ranks; NaN and infinity pass. On one rank nothing
        is exchanged, and nothing rounded.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: this rank's part, and ``empty()`` to make them.
    forward, backward : Transform
        Call them: ``spectrum = plan.forward(u, out=None)``, ``u = plan.backward(spectrum)``.
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
    >>> with overlap.FFT2(MPI.COMM_WORLD, (64, 512, 512), dtype="f8") as plan:
    ...     u = plan.real.empty()
    ...     u[...] = 1.0
    ...     spectrum = plan.forward(u)
    """

    _kind, _names = "FFT2", ("ny", "nx")

    def _grid_problem(self, layout: ArrayLayout, kinds: tuple[str, ...]) -> str | None:
        return default_problem(layout, "an FFT2", ("grid",))

    def _choose_grid(self) -> tuple[int, ...]:
        return (self.comm.size,)

    def _route(self, forward: bool) -> Route:
        return for_stages(self._way, X, forward)  # complex data, too, are transformed along x last on the way back

    def _by_plane(self, planes: int) -> bool:
        """Return whether messages contain whole planes: enough to hide one behind others, or small ones."""
        nbytes = float(np.prod(self._fine)) * self._modes_dtype.itemsize / self.comm.size
        alone = self.comm.size == 1 and self.runtime.workers == 1
        few = planes < FEW * self.runtime.workers and nbytes >= LARGE_NBYTES
        return not (self._layout.restore and self.comm.size > 1) and (alone or not few)

    def _choose(self, name: str, transform: Transform) -> None:
        if name == "backward" and self.forward.trials:
            use_settings(transform, self._requested, self.forward.settings)
        else:
            super()._choose(name, transform)

    def _title(self) -> str:
        return f"FFT2 {self._shape} {self._dtype}{self._in_kinds()} {self._sharers()}{travelling(self.exchange)}"

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
            ``function(*fields)`` with some rows of real-space planes, each ``(rows, nx)`` (of the finer grid with
            `dealias`), read-only by convention; returns as many rows of one plane, or of `outputs` planes as a tuple.
            If the function has a parameter ``out``, it receives the rows (or a tuple of them) to fill instead; with a
            parameter ``index`` it receives the slice's index in the batch; with ``rows``, a slice that tells which of
            this rank's rows these are. The `shared` fields cannot be written to. All fields lie in buffers that the
            next call reuses: copy what you keep. A function compiled by `numba.njit` runs without Python and without
            the GIL if it fills ``out`` and returns nothing, or has no ``out``.
        inputs : int, optional
            Number of spectral inputs; by default the function's positional parameters.
        outputs : int
        shared : int
            The last `shared` inputs have no batch axes: they are transformed once per call and
            given to all slices.
        dealias : {None, "3/2"} or (int, int)
            ``"3/2"``: real space has ceil(3 n / 2) points per direction, so that products of two resolved fields are
            exact in the resolved modes; only these are exchanged. Or the numbers of points ``(ny, nx)``, if others are
            faster. The Nyquist modes of even n count as not resolved and are dropped.
        blocks : {"rows", "planes"}
            ``"planes"``: the function receives all of this rank's rows of one slice, ``(ny_local, nx)``. Functions need
            this if they read other points than the one that they compute. Other functions are faster on blocks that
            stay in the cache: some rows of a large plane, or, for functions without `shared` fields, ``index`` and
            ``rows``, those of several small planes.

        Returns
        -------
        Pointwise
            A `Transform` of the spectral inputs.
        """
        return self._act(
            function,
            (inputs, outputs, shared),
            dealias,
            blocks,
            problem=choice_problem("blocks", blocks, BLOCKS),
            blocks=blocks,
        )

    def _pointwise(self, function: Function, fine: tuple[int, ...], blocks: str = "rows") -> Transform:
        if self._layout.restore and self.comm.size > 1:
            return super()._pointwise(function, fine)
        effort, scales = self._requested.effort, (self._scale(False, fine), self._scale(True, fine))
        slices, axes = max(1, self.real.slices), self._lines(fine)
        back, forth = (
            self._staged_of(forward, fine, slices * count, None, True)
            for forward, count in ((False, function.inputs), (True, function.outputs))
        )
        real, shared = self._specs((function.shared,), fine)
        share = None
        if function.shared:
            make = self._staged_of(False, fine, function.shared, None)
            share = FieldTransform(self.runtime, self._comms, make(effort), shared, real, scales[0], make)
        kept = np.asarray(real.empty())

        def made(effort: str | None) -> PlaneBlocks:
            return self._kernel(
                (function, effort),
                lambda: PlaneBlocks(
                    (back(effort).stages[0], forth(effort).stages[0]),
                    scales,
                    kept,
                    axes,
                    function,
                    self._batch,
                    effort,
                    self.runtime.workers,
                    blocks == "planes",
                ),
            )

        return Pointwise(self.runtime, self._comms, made, effort, *self._sides(function), share)
