"""`PFFT`: parallel FFTs along any axes of arrays of any dimension, as pipelines.

A plan is a tuple of layouts with local FFTs in between: groups of axes are transformed from the last group to the
first. Before each group there is an exchange, if need be, that makes its last axis whole by splitting that of the group
before. `overlap.fft.engine.staged` runs this for `FFT3`; here the route (see `route`) follows from any axes on any
grid. If pipelines do not have a local transform (functions other than those of `fftw`, other libraries, long double),
serial transforms and exchanges follow each other in a `Transform`, as in mpi4py-fft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays import Layout, Weights, checked, combined, coordinates, subcomms
from ...arrays.exchange import exchange_problem, travelling
from ...arrays.stages import for_stages
from ...checks import number_problem
from ...errors import InputError, formatted, repr_of
from ...fft.arguments import integers
from ...fft.array_spec import ArraySpec
from ...fft.engine.axis import Direction, dtype_after, modes_dtype, period_of
from ...fft.engine.stage import SourceArray
from ...fft.engine.staged import StagedTransform
from ...fft.planning.plan_cache import PlanCache
from ...fft.planning.settings import Settings
from ...fft.planning.tournament import choose
from ...fft.transform import FieldTransform
from ...ranks.holding import Holding, free_dropped
from ...ranks.interrupts import holding_signals
from ...ranks.objects import Described
from ...ranks.resource import Calls, marked_call
from ..kept_runtimes import SHARED, Shared
from .distarray import DistArray
from .libfft import FFT, MadeLater, Padding, Transforms
from .pencil import Comms, Pencil, Subcomm, Transfer, ranks_of
from .request import EFFORTS, Axes, TransformRequest, check_supported, dimensions_of, has_pipeline, route_of, understood
from .transform import OwnArrays, PipelinedTransform, Transform

DEADLINE_S = 600.0

Local = tuple[tuple[int, ...], np.dtype]
"""Local shape and type."""


class PFFT(Described):
    """A parallel FFT with mpi4py-fft's arguments, distributions and results.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or Subcomm
    shape : sequence of int
        Global shape; with padding, that of the resolved grid. By default that of `darray`.
    axes : None, int, or sequence of int or of sequences of int
        Axes to transform, the last ones first; axes of a group are transformed while all of them are whole. All by
        default. The last one is the axis of the real-to-complex transform.
    dtype : dtype
        Type of the input: "f", "d", "F" or "D"; also long double, "g" or "G". Real input has half the modes
        along the last axis.
    grid : sequence of int, optional
        Ranks along every axis, 0 or less if MPI shall choose, 1 along missing axes. By default all axes except those of
        the last group may be split.
    padding : False, number or sequence of numbers
        Factors, one per axis of the array, by which the input's grid is finer than the result's.
    collapse : bool
        Join neighbouring groups that need no exchange in between.
    backend : {"fftw", "pyfftw", "numpy", "scipy", "mkl_fft"}
        The library for local transforms.
    transforms : dict, optional
        ``{axes: (forward, backward)}``: other local transforms for these groups of axes, such as
        ``{(1, 2): (fftw.dctn, fftw.idctn)}``, in the form of the backend's functions.
    darray : DistArray, optional
        Take shape, dtype and distribution of the input from this array.
    slab : bool or int, optional
        Split this axis only; True: the axis that follows the last one cyclically.
    planner_effort : str, optional
        ``"FFTW_ESTIMATE"``, ...; by default the effort that pays.
    threads : int
        Worker threads per rank.
    overwrite_input
        Without effect on pipelines.
    comm_backend : {"MPI"}
        Accepted for programs that also run on the branch of mpi4py-fft for GPUs, which has other values.
    wait : {"auto", "off", "block", "poll"}
        See `overlap.FFT3`.
    deadline_s : float
        See `Runtime`; of plans on `comm` that are in use together, the deadline of the first one holds.
    weights : sequence of numbers, optional
        One per rank; shares are proportional to them (`overlap.ArrayLayout`). Not an argument of mpi4py-fft.
    exchange : {None, "f4"}
        ``"f4"``: pipelines send doubles as singles, as of `overlap.FFT2`; not an argument of mpi4py-fft's.

    Attributes
    ----------
    forward, backward : Transform
        The forward transform divides by the number of points, unless called with
        ``normalize=False``; the backward one only with ``normalize=True``.
    axes : tuple of tuple of int
    subcomm : sequence of mpi4py.MPI.Comm
    pencil : list of Pencil
        The pencils of the input and of the result.
    xfftn : sequence of FFT
        The serial transforms of the groups, first to last, which can be called separately.
    transfer : list of Transfer
        The exchanges between groups, which can be called separately. Pipelines use neither `xfftn` nor `transfer`.

    Raises
    ------
    InputError
        On all ranks, if an argument is bad, not supported, or differs between ranks.

    Notes
    -----
    A subclass may make its transforms itself, without calling this constructor: the methods need only the
    `Transform` that it sets as `forward`, and `destroy` frees `subcomm`.

    Examples
    --------
    >>> from overlap.compat.mpi4py_fft import PFFT, newDistArray
    >>> fft = PFFT(comm, (8, 8, 8), dtype=float)
    >>> u = newDistArray(fft, forward_output=False)
    >>> u[:] = 1.0
    >>> u_hat = fft.forward(u)
    >>> fft.global_shape(True)
    (8, 8, 5)
    >>> fft.destroy()
    """

    # Shared by the plans on a communicator; the transforms of a subclass may not need it.
    _shared: Shared | None = None
    _exchange: str | None = None
    subcomm: Sequence[MPI.Intracomm]
    _comms: Sequence[MPI.Intracomm]  # the communicators of `subcomm`, with the weights of their ranks
    xfftn: Sequence[FFT]
    pencil: list[Pencil]
    forward: Transform
    backward: Transform

    @holding_signals
    def __init__(
        self,
        comm: MPI.Intracomm | Subcomm,
        shape: Sequence[int] | None = None,
        axes: Axes = None,
        dtype: DTypeLike = float,
        grid: Sequence[int] | None = None,
        padding: Padding = False,
        collapse: bool = False,
        backend: str = "fftw",
        transforms: Transforms | None = None,
        darray: DistArray | None = None,
        slab: bool | int | None = False,
        planner_effort: str | None = None,
        threads: int = 1,
        overwrite_input: str | None = None,
        comm_backend: str = "MPI",
        wait: str = "auto",
        deadline_s: float | None = DEADLINE_S,
        weights: Sequence[float] | None = None,
        exchange: str | None = None,
        **unknown: Any,
    ) -> None:
        parent = comm.parent if isinstance(comm, Subcomm) else comm
        if not isinstance(parent, MPI.Intracomm):
            raise InputError(f"expected an mpi4py.MPI.Intracomm or a Subcomm, received {repr_of(comm)}")
        request = problem = groups = None
        pipelined = False
        try:
            check_supported(backend, comm_backend, transforms, planner_effort, wait, unknown)
            groups = transforms and sorted(transforms)
            request = understood(comm, shape, axes, dtype, grid, padding, collapse, darray, slab, transforms)
            pipelined = has_pipeline(request, backend, transforms)
            problem = exchange_problem(exchange, request.dtype)
            if exchange is not None and not pipelined:
                problem = problem or f"expected exchange=None of a PFFT without a pipeline, received {exchange!r}"
        except InputError as error:
            problem = str(error)
        except Exception as error:  # a user's object can raise anything
            problem = f"expected the arguments of a PFFT, received some that fail: {formatted(error)[0]}"
        counts = integers((threads,))
        workers = counts[0] if counts and counts[0] > 0 else 1
        if counts != (workers,):
            problem = f"expected threads to be a positive integer, received {repr_of(threads)}"
        self._exchange = exchange
        shares, uneven = checked(weights, parent.size)
        if shares is not None and darray is not None:
            uneven = "expected no weights with darray, whose distribution is used, received both"
        late = number_problem("deadline_s", deadline_s, positive=True, none=True)
        problem = problem or uneven or late
        shared = self._shared = SHARED.of(parent)
        self.collapse = collapse
        self.runtime = shared.runtime(workers, DEADLINE_S if late else deadline_s, problem)
        self._workers = workers
        self._holding = Holding(parent.size, None)  # no warning, as mpi4py-fft gives none
        self._holding.add(partial(shared.leave, workers))
        coordinator = self.runtime.coordinator
        serial = {
            "backend": backend,
            "transforms": transforms,
            "threads": workers,
            "planner_effort": planner_effort,
            "overwrite_input": overwrite_input,
        }
        with self.runtime.collective_section(
            "making a PFFT",
            self._holding.free,
            request=request,
            effort=planner_effort,
            wait=wait,
            backend=backend,
            transforms=groups,
            weights=shares,
            exchange=exchange,
        ):
            free_dropped(coordinator.allgather, self._holding, coordinator.watchdog.watching)
            number = coordinator.next_number()
            assert request is not None  # or all ranks have raised the problem
            self._known_as = f"a PFFT, {request}{travelling(exchange)}, plan {number} of the runtime"
            self._understand(comm, darray, request, shares)
            if pipelined:
                self._make_pipelines(request, EFFORTS[planner_effort], wait, exchange, serial)
            else:
                self._make_serially(request, serial)
        self._holding.drop_with(self)

    def _understand(
        self, comm: MPI.Intracomm | Subcomm, darray: DistArray | None, request: TransformRequest, weights: Weights
    ) -> None:
        self.axes = request.axes
        array_pencil = None if darray is None else darray.pencil
        if array_pencil is not None:
            self.subcomm = self._comms = array_pencil.subcomm
            return
        subcomm = self.subcomm = comm if isinstance(comm, Subcomm) else Subcomm(comm, request.dims)
        self._comms = subcomm
        if weights is not None:
            order, grid, _ = dimensions_of(self.runtime, subcomm)
            places = [coordinates(rank, grid) for rank in range(len(weights))]
            along = {
                axis: combined(weights, [place[dimension] for place in places]) for dimension, axis in enumerate(order)
            }
            self._comms = Comms(subcomm, subcomm.parent, map(along.get, range(len(subcomm))))

    def _weights(self, order: Sequence[int], grid: tuple[int, ...]) -> Weights:
        """Return one number per rank, whose sums along each axis of the grid are that axis's weights, or None."""
        along = [self._comms.weights[axis] for axis in order] if isinstance(self._comms, Comms) else []
        if not any(along):
            return None
        return tuple(
            prod(each[place] if each else 1 for each, place in zip(along, coordinates(rank, grid)))
            for rank in range(prod(grid))
        )

    def _make_serially(self, request: TransformRequest, options: dict[str, Any]) -> None:
        """Make transforms that run serial transforms and exchanges one after the other."""
        serial: list[FFT] = []

        def transformed(
            shape: tuple[int, ...], axes: tuple[int, ...], dtype: np.dtype
        ) -> tuple[tuple[int, ...], np.dtype]:
            serial.append(FFT(shape, axes, dtype, request.factors, **options))
            modes = serial[-1].forward.output_array
            return modes.shape, modes.dtype

        self.pencil, self.transfer = self._steps(request, transformed)
        self.xfftn, axes = serial, sum(self.axes, ())
        self.forward = Transform(
            [step.forward for step in serial],
            [step.forward for step in self.transfer],
            self.pencil,
            self.runtime,
            axes,
            f"forward of {self._known_as}",
        )
        self.backward = Transform(
            [step.backward for step in serial[::-1]],
            [step.backward for step in self.transfer[::-1]],
            self.pencil[::-1],
            self.runtime,
            axes,
            f"backward of {self._known_as}",
        )

    def _make_pipelines(
        self, request: TransformRequest, effort: str | None, wait: str, exchange: str | None, serial: dict[str, Any]
    ) -> None:
        runtime = self.runtime
        order, grid, coordinates = dimensions_of(runtime, self.subcomm)
        weights = self._weights(order, grid)
        comms = subcomms(runtime, grid)
        splits = [order.index(axis) if axis in order else None for axis in range(len(request.fine))]
        layouts = [Layout((None, *splits), grid, weights)]
        route, ends = route_of(request.axes, layouts[0], request.padded)
        layouts.append(ends)
        modes = list(request.fine)
        for axis, each in request.transformed.items():
            modes[axis - 1] = each.length(True)
        dtypes = request.dtype, modes_dtype(request.dtype, request.transformed)
        shapes = request.fine, tuple(modes)
        makers = []

        def transformed(
            shape: tuple[int, ...], axes: tuple[int, ...], dtype: np.dtype
        ) -> tuple[tuple[int, ...], np.dtype]:
            makers.append(partial(FFT, shape, axes, dtype, request.factors, **serial))
            return shapes[1], dtype_after(dtype, request.transformed, [axis + 1 for axis in axes], True)

        self.pencil, self.transfer = self._steps(request, transformed)
        self.xfftn = MadeLater(makers)
        specs = []
        for layout, shape, kind in zip(layouts, shapes, dtypes):
            where = layout.local_slice((1, *shape), coordinates)[1:]
            specs.append(
                ArraySpec(runtime.comm, (), shape, {axis - len(shape): part for axis, part in enumerate(where)}, kind)
            )
        real = next((axis for axis, each in request.transformed.items() if each.real), None)
        volumes = []
        memory = PlanCache(
            runtime,
            {
                "kind": "PFFT",
                "shape": list(request.fine),
                "dtype": str(request.dtype),
                "axes": str(request.axes),
                "request": str(request),
                "effort": str(effort),
                "wait": wait,
                "order": list(order),
                "grid": list(grid),
                "workers": runtime.workers,
                "weights": str(weights),
                **({} if exchange is None else {"exchange": exchange}),
            },
            request.dtype,
        )
        for forward in (True, False):
            source, target = specs[:: 1 if forward else -1]
            staged = StagedTransform(
                for_stages(route, real, forward),
                request.transformed,
                SourceArray(layouts[not forward], (1, *source.global_shape), coordinates, source.dtype),
                Direction(forward, effort),
                runtime.workers,
                exchange=exchange,
            )
            volumes.append(FieldTransform(runtime, comms, staged, source, target, 1.0))
            volumes[-1].name = "forward" if forward else "backward"
            volumes[-1].known_as = f"{volumes[-1].name} of {self._known_as}"
            choose(volumes[-1], Settings(wait), memory)
        memory.keep_wisdom()
        points = float(np.prod([float(period_of(each.kind, each.fine)) for each in request.transformed.values()]))
        arrays = OwnArrays(specs)
        axes = sum(self.axes, ())
        self.forward = PipelinedTransform(volumes[0], arrays, (0, 1), self.pencil, 1 / points, True, axes)
        self.backward = PipelinedTransform(volumes[1], arrays, (1, 0), self.pencil[::-1], 1 / points, False, axes)

    def _steps(
        self, request: TransformRequest, transformed: Callable[[tuple[int, ...], tuple[int, ...], np.dtype], Local]
    ) -> tuple[list[Pencil], list[Transfer]]:
        """Return the pencils of the input and of the result, and the transfers in between.

        ``transformed(local_shape, group, dtype)`` returns lengths and type after a group's serial transform.
        """
        shape, dtype = list(request.fine), request.dtype
        pencil = first = Pencil(self._comms, shape, self.axes[-1][-1])
        transfers = []
        for number, group in enumerate(reversed(self.axes)):
            if number:
                aligned = pencil.pencil(group[-1])
                transfers.append(pencil.transfer(aligned, dtype))
                pencil = aligned
            lengths, dtype = transformed(pencil.subshape, group, dtype)
            for axis in group:
                shape[axis] = lengths[axis]
            pencil = Pencil(pencil.subcomm, shape, group[-1])
        return [first, pencil], transfers

    def _title(self) -> str:
        before, after, types = self.forward.input_pencil, self.forward.output_pencil, self.forward.dtypes
        return (
            f"{type(self).__name__} {before.shape} {types[0]} to {after.shape} {types[1]} over "
            f"{ranks_of(before.subcomm)}{travelling(self._exchange)}"
        )

    def _has_ended(self) -> bool:
        return self.forward._has_ended()

    def destroy(self) -> None:
        """Free what the plan holds, and the communicators of `subcomm` (collective).

        Raises
        ------
        BusyError
            A call of the plan is under way; nothing is freed.
        """
        closing: AbstractContextManager[None] = nullcontext()
        if self._shared is not None:
            closing = self._shared.runtime_of(self._workers).coordinator.closing("freeing a plan")
        with closing:
            if self._shared is not None:
                for transform in (self.forward, self.backward):
                    transform.release()
            if isinstance(self.subcomm, Subcomm):
                self.subcomm.destroy()
            if self._shared is not None:
                self._holding.free()
                self._shared = None

    def shape(self, forward_output: bool = True) -> tuple[int, ...]:
        """Return the local shape of the result, or of the input.

        Parameters
        ----------
        forward_output : bool
            True: of the result of `forward`; False: of its input.
        """
        return self._pencil_of(forward_output).subshape

    def local_slice(self, forward_output: bool = True) -> tuple[slice, ...]:
        """Return where the local part of the result, or of the input, lies in the global array.

        Parameters
        ----------
        forward_output : bool
            True: of the result of `forward`; False: of its input.
        """
        return self._pencil_of(forward_output).local_slice

    def global_shape(self, forward_output: bool = False) -> tuple[int, ...]:
        """Return the global shape of the input, or of the result.

        Parameters
        ----------
        forward_output : bool
            True: of the result of `forward`; False: of its input.
        """
        return self._pencil_of(forward_output).shape

    def dtype(self, forward_output: bool = False) -> np.dtype:
        """Return the data type of the input, or of the result.

        Parameters
        ----------
        forward_output : bool
            True: of the result of `forward`; False: of its input.
        """
        return self.forward.dtypes[bool(forward_output)]

    @property
    def dimensions(self) -> int:
        """Return the number of axes."""
        return len(self.global_shape())

    def _pencil_of(self, forward_output: bool) -> Pencil:
        return self.forward.output_pencil if forward_output else self.forward.input_pencil

    # Other libraries use these private names of mpi4py-fft.

    @property
    def _input_shape(self) -> tuple[int, ...]:
        return self.global_shape(False)

    @property
    def _output_shape(self) -> tuple[int, ...]:
        return self.global_shape(True)

    @property
    def _calls(self) -> Calls:
        return Calls() if self._shared is None else self._shared.runtime_of(self._workers).coordinator._calls

    @marked_call
    def describe(self) -> str:
        """Return the settings of the plan, as text."""
        return "\n".join((repr(self)[1:-1], self.forward.describe(), self.backward.describe()))
