"""`FourierPlan`: the base class of `FFT2`, `FFT3` and `FFTN`, which differ in the axes that they transform."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from math import tau
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import AxisSwap, Layout, checked_shares, coordinates, subcomms
from ..arrays.exchange import exchange_problem
from ..arrays.stages import Route, for_stages
from ..checks import choice_problem
from ..errors import InputError
from ..ranks.interrupts import holding_signals
from ..ranks.resource import marked_call
from ..runtime import Runtime
from ..runtime.on_runtime import PlanComm
from .arguments import (
    NORMS,
    dtype_problem,
    integers,
    kinds_of,
    kinds_problem,
    local_nbytes,
    memory_problem,
    path_problem,
    shape_problem,
    shown,
)
from .array_layout import SIDES, ArrayLayout, lying_problem
from .array_spec import ArraySpec, box_lengths
from .constructor import of_plan
from .engine.axis import REAL_KINDS, Axis, Direction, axes_of, modes_dtype, period_of
from .engine.fftw import zeros
from .engine.stage import SourceArray
from .engine.staged import StagedTransform
from .function import Dealias, Function, dealias_problem, fine_points
from .operators import SpectralOperators, lengths_problem
from .plan import Plan
from .planning.plan_cache import PlanCache
from .planning.settings import Settings, settings_problem
from .pointwise import FieldComposition, Pointwise
from .transform import FieldTransform, Transform


class FourierPlan(Plan):
    """Base of `FFT2`, `FFT3` and `FFTN`: a forward and a backward transform of all points of a grid.

    A subclass defines the transformed axes, checks the layout, chooses the process grid and defines the routes between
    real space and the spectrum.
    """

    real: ArraySpec
    forward: Transform
    backward: Transform
    _names: tuple[str, ...]  # names of the axes' lengths
    _memory: PlanCache
    _kinds: tuple[str, ...]
    _at: Sequence[int]  # where each axis begins in layouts, after the batch's: one that stays split is two there

    @of_plan
    @holding_signals
    def __init__(
        self,
        comm: PlanComm,
        shape: Sequence[int],
        dtype: DTypeLike = complex,
        *,
        norm: str | None = None,
        kinds: Sequence[str] | None = None,
        layout: ArrayLayout | dict[str, Any] | None = None,
        settings: Settings | dict[str, Any] | None = None,
        tuning: str | os.PathLike[str] | None = None,
        exchange: str | None = None,
    ) -> None:
        super().__init__(comm)
        self._factors: dict[int, tuple[int, int]] = {}  # of axes that stay split while they are transformed
        with self._making():
            arrays, requested, path, problem = self._options(layout, settings, tuning)
            lengths: Any = integers(shape)
            count = len(self._names)
            problem = self._check_ranks() or shape_problem(shape, self._names) or dtype_problem(dtype) or problem
            all_points: Any = () if problem else self._points_of(lengths[-count:])
            places = self._transformed_axes()
            chosen: Any = kinds if problem else kinds_of(kinds, dtype, len(places))
            if not problem:
                names = tuple(self._names[place] for place in places)
                problem = kinds_problem(chosen, [all_points[place] for place in places], dtype, names)
            of_axes = ("c2c",) * count if problem else _spread(chosen, places, ("c2c",) * count)
            problem = (
                problem
                or choice_problem("norm", norm, NORMS)
                or exchange_problem(exchange, dtype)
                or self._grid_problem(arrays, of_axes)
                or lying_problem(arrays, tuple(all_points[place] for place in places), chosen)
                or settings_problem(requested)
                or path_problem(path)
                or memory_problem(
                    2
                    * local_nbytes(
                        lengths[:-count] + tuple(map(max, lengths[-count:], fine_points(all_points, arrays.dealias))),
                        dtype,
                        self.comm.size,
                    )
                )
            )
            self.runtime.preflight(
                problem,
                plan=self._kind,
                shape=lengths,
                dtype=shown(dtype),
                norm=norm,
                kinds=shown(chosen),
                tuning=path,
                exchange=exchange,
                **self._own_options(),
                **asdict(arrays),
                **asdict(requested),
            )
            self._axes = self._at = tuple(range(1, count + 1))  # of a batch of planes or fields
            self._shape, self._dtype, self._power = lengths, np.dtype(dtype), NORMS[norm]
            self._norm, self._kinds, self.exchange = norm, of_axes, exchange
            self._batch = self._shape[:-count]
            # Points of the modes in arrays, of the plan's grid in real space, and of the transforms.
            self._all_points = self._points = all_points
            if arrays.modes:
                self._points = _spread(arrays.modes, places, all_points)
            self._fine = all_points if arrays.modes else fine_points(all_points, arrays.dealias)
            self._cut: tuple[int, ...] = self._points  # lengths of axes as they are transformed
            self._transposed, self._requested = arrays.order == "transposed", requested
            plan = self._look_up(
                path,
                arrays,
                self._dtype,
                shape=list(lengths),
                dtype=str(self._dtype),
                order=arrays.order,
                grid=arrays.grid and list(arrays.grid),
                restore=arrays.restore,
                dealias=arrays.dealias,
                exchange=exchange,
                **{name: str(value) for name, value in self._own_options().items()},
                **({"kinds": list(chosen)} if self._walls else {}),
                **({"modes": list(arrays.modes)} if arrays.modes else {}),
            )
            self._layout = replace(arrays, weights=self._weights)
            self._grid = self._choose_grid()
            self._coordinates = coordinates(self.comm.rank, self._grid)
            self._comms = subcomms(self.runtime, self._grid)
            self._place()
            plan |= {"grid": list(self._grid), "requested": str(requested.given())}
            self._memory = PlanCache(self.runtime, plan, self._dtype)
            makers: dict[str, Callable[[Any], Transform]] = {
                "forward": lambda plan: plan._transform(True),
                "backward": lambda plan: plan._transform(False),
            }
            self.forward, self.backward = (make(self) for make in makers.values())
            for name, make in makers.items():
                self._add(name, getattr(self, name), make)
            self._memory.keep_wisdom()
            if self._measures:
                self._balanced()

    def on(self, runtime: Runtime) -> Self:
        """Make a plan like this one on another runtime, such as of fewer ranks, with the same settings (collective).

        Nothing is searched for: the settings are those of `forward`, and the layout is the same except for grid,
        weights and shares, which belong to the ranks. This plan may have lost ranks.

        Parameters
        ----------
        runtime : Runtime

        Returns
        -------
        FFT2, FFT3 or FFTN

        Raises
        ------
        ClosedError
            This plan was closed.
        """
        settings = replace(self.forward.settings, effort=self._requested.effort)
        layout = replace(self._layout, grid=None, weights=None, shares=None)
        return type(self)(
            runtime,
            self._shape,
            self._dtype,
            norm=self._norm,
            layout=layout,
            settings=settings,
            tuning="",
            exchange=self.exchange,
            **({"kinds": [self._kinds[place] for place in self._transformed_axes()]} if self._walls else {}),
            **self._own_options(),
        )

    @property
    def _walls(self) -> list[str]:
        """Return the names of the lengths of axes with a cosine or sine transform."""
        return [name for name, kind in zip(self._names, self._kinds) if kind in REAL_KINDS]

    def _compared(self) -> str:
        usual = vars(ArrayLayout())
        options = {name: value for name, value in vars(self._layout).items() if value != usual[name]}
        options |= {"norm": self._norm, "exchange": self.exchange} | self._own_options()
        named = [f"{name}={value!r}" for name, value in options.items() if value is not None]
        return ", ".join((f"{self._kind} {self._shape} {self._dtype}{self._in_kinds()}", *named))

    def _in_kinds(self) -> str:
        """Return the kinds as text, if one of them is not a Fourier transform."""
        return f" ({' x '.join(self._kinds)})" if self._walls else ""

    @property
    def _modes_dtype(self) -> np.dtype:
        return modes_dtype(self._dtype, self._lines(self._points))

    def _place(self) -> None:
        # A grid of one dimension splits an axis of one rank, too.
        dimensions = [
            None if size == 1 and len(self._grid) > 1 else dimension for dimension, size in enumerate(self._grid)
        ][::-1]
        self._here = Layout((None, *dimensions, None), self._grid, self._weights)  # of real space
        self._there = (
            self._here if self._layout.restore else Layout((None, None, *dimensions), self._grid, self._weights)
        )
        # In an exchange an axis becomes whole, and the axis that was transformed before is split instead.
        swaps = [AxisSwap(joined, split) for split, joined in pairwise(self._axes[::-1])]
        self._way: Route = [self._axes[-1:]]
        for swap, ranks in zip(swaps, self._grid):
            if ranks > 1:
                self._way += [swap, ()]
            self._way[-1] += (swap.joined,)
        if self._layout.restore:
            self._way += [step for swap in self._way[-2::-2] for step in (swap.reversed(), ())]
        self._place_arrays(self._batch)

    def _place_arrays(self, batch: Sequence[int]) -> None:
        """Set the arrays of both sides for some batch axes; raise, on all ranks, if the given shares do not fit."""
        common_shares: dict[tuple[int, int], tuple[int, ...]] = {}
        for side, layout, spec in zip(SIDES, (self._here, self._there), self._specs(batch)):
            axes = [(0, 1)] * len(batch) + self._split_axes(spec.spectral)
            dimensions = [layout.splits[axis] for axis, _ in axes]
            parts = [1 if dimension is None else self._grid[dimension] for dimension in dimensions]
            side_shares, problem = checked_shares(self._layout.shares_of.get(side), spec.global_shape, parts)
            if problem is not None:
                raise InputError(f"{side} arrays of global shape {spec.global_shape}: {problem}")
            for axis, counts in side_shares.items():
                (within, each), dimension = axes[axis], dimensions[axis]
                if any(count % each for count in counts):
                    raise InputError(
                        f"expected shares of axis {axis} that are multiples of {each}, as it stays split while it is "
                        f"transformed, received {counts}"
                    )
                shares = tuple(count // each for count in counts)
                if dimension is not None and common_shares.setdefault((within, dimension), shares) != shares:
                    raise InputError(
                        f"expected the same shares of axis {axis} in both spaces, which are split alike, received "
                        f"{counts} and others"
                    )
        self._here, self._there = (
            replace(layout, shares=tuple(common_shares.items())) for layout in (self._here, self._there)
        )
        self.real, self.spectrum = self._specs(batch)

    def _split_axes(self, spectral: bool) -> list[tuple[int, int]]:
        """Return the axes of an array in its layout, in the order of memory, and the elements for one index of each."""
        turned = int(spectral and self._transposed)
        return [(axis, 1) for axis in (*self._axes[turned:], *self._axes[:turned])]

    def _specs(self, batch: Sequence[int], fine: tuple[int, ...] | None = None) -> tuple[ArraySpec, ArraySpec]:
        """Return the specs of real space and of the spectrum for some batch axes, by default on the plan's grid."""
        lines = self._lines(fine or self._fine)
        return self._spec(batch, self._here, lines, False), self._spec(batch, self._there, lines, True)

    def _lines(self, fine: Sequence[int]) -> dict[int, Axis]:
        """Return the `Axis` of every transformed axis, on a grid of `fine` points."""
        return axes_of(self._axes, self._points, fine, self._kinds, self._norm)

    def _lengths(self, lines: dict[int, Axis], spectral: bool) -> dict[int, int]:
        """Return the length of every axis in an array of the spectrum, or of real space."""
        return {
            axis: lines[axis].length(spectral) if axis in lines else length for axis, length in enumerate(self._cut, 1)
        }

    def _spec(self, batch: Sequence[int], layout: Layout, lines: dict[int, Axis], spectral: bool) -> ArraySpec:
        lengths = self._lengths(lines, spectral)
        where = layout.local_slice((1, *lengths.values()), self._coordinates)
        axes = self._split_axes(spectral)
        return ArraySpec(
            self.comm,
            batch,
            [lengths[axis] * each for axis, each in axes],
            {
                place: slice(where[axis].start * each, where[axis].stop * each)
                for place, (axis, each) in enumerate(axes, -len(axes))
                if layout.splits[axis] is not None
            },
            self._modes_dtype if spectral else self._dtype,
            natural=axes == sorted(axes),
            spectral=spectral,
            kinds=self._kinds,
            taken_apart={
                axis - len(axes): (axes[axis][1], spectral and not self._transposed) for axis in self._factors
            },
        )

    def _transform(self, forward: bool) -> FieldTransform:
        source, target = (self.real, self.spectrum) if forward else (self.spectrum, self.real)
        by_plane = self._by_plane(source.slices)
        make = self._staged_of(forward, self._fine, source.slices, None if by_plane else True)
        return FieldTransform(
            self.runtime,
            self._comms,
            make(self._requested.effort),
            source,
            target,
            self._scale(forward, self._fine),
            make,
        )

    def _scale(self, forward: bool, fine: Sequence[int]) -> float:
        own, fine_points = (
            float(np.prod([period_of(line.kind, line.fine) for line in self._lines(points).values()], dtype=object))
            for points in (self._all_points, fine)
        )
        return own**-self._power * own / fine_points if forward else own ** (self._power - 1.0)

    def _staged_of(
        self, forward: bool, fine: tuple[int, ...], batch: int, joined: bool | None, reused: bool = False
    ) -> Callable[[str | None], StagedTransform]:
        """Return a function that makes the staged transform of `batch` planes or fields for an effort of FFTW.

        If `joined` is None, messages contain whole planes. Otherwise it tells whether small fields are transformed
        together, or one by one for callers that use each of them alone.
        """
        axes = self._lines(fine)

        def make(effort: str | None) -> StagedTransform:
            return self._kernel(
                (forward, fine, batch, joined, reused, effort),
                lambda: StagedTransform(
                    self._route(forward),
                    axes,
                    self._source(forward, axes, batch),
                    Direction(forward, effort, self._turned(), by_index=joined is None),
                    self.runtime.workers,
                    joined,
                    reused,
                    self.exchange,
                ),
            )

        return make

    def _source(self, forward: bool, axes: dict[int, Axis], batch: int) -> SourceArray:
        """Return the source of a transform: `batch` entries of the batch, on the grid of these `Axis`."""
        shape = batch, *self._lengths(axes, not forward).values()
        return SourceArray(
            self._here if forward else self._there,
            shape,
            self._coordinates,
            self._dtype if forward else self._modes_dtype,
        )

    def _add(self, name: str, transform: Transform, make: Callable[[Any], Transform]) -> None:
        """Plan a new transform and keep it."""
        self._keep(name, transform, make)
        self._choose(name, transform)

    @marked_call
    def _act(
        self,
        function: Callable[..., Any] | None,
        counts: tuple[int | None, int, int],
        dealias: Dealias,
        *options: Any,
        problem: str | None = None,
        **agreed: Any,
    ) -> Any:
        """Return the transform of a function with these counts of inputs, outputs and shared inputs, or a decorator."""
        self._check_in_use()
        if function is None:
            return lambda function: self._act(function, counts, dealias, *options, problem=problem, **agreed)
        with self._adding("making a function of real-space fields"):
            acting = Function(function, *counts, dealias, self._points, self._kinds)
            self.runtime.preflight(
                acting.problem
                or problem
                or memory_problem(local_nbytes(fine_points(self._points, dealias), self._dtype, self.comm.size)),
                **acting.agreed,
                **agreed,
            )
            fine = self._fine if dealias is None else fine_points(self._points, dealias)

            def make(plan: FourierPlan) -> Transform:
                return plan._pointwise(acting, fine, *options)

            transform = make(self)
            self._add(
                f"pointwise: {acting.inputs - acting.shared} input(s), {acting.shared} shared, "
                f"{acting.outputs} output(s), dealias {dealias}",
                transform,
                make,
            )
            return transform

    def _pointwise(self, function: Function, fine: tuple[int, ...]) -> Transform:
        """Return the transform of a function on a grid of `fine` points: whole fields, one after the other."""
        back = self._staged_of(False, fine, max(function.inputs, function.shared), False, True)
        forth = self._staged_of(True, fine, function.outputs, False)
        scales, real = (self._scale(False, fine), self._scale(True, fine)), self._specs((), fine)[0]
        counts = function.inputs, function.shared, function.outputs if function.takes_out else 0
        fields = [[zeros((1, *real.shape), real.dtype) for _ in range(count)] for count in counts]

        def make(effort: str | None) -> FieldComposition:
            return FieldComposition(back(effort), forth(effort), scales, function, self._batch, real, fields)

        return Pointwise(self.runtime, self._comms, make, self._requested.effort, *self._sides(function))

    def _sides(self, function: Function) -> tuple[tuple[ArraySpec, ...], tuple[ArraySpec, ...]]:
        """Return the inputs and the outputs of a function that acts on spectral arrays."""
        inputs = (self.spectrum,) * function.inputs + (self._specs(())[1],) * function.shared
        return inputs, (self.spectrum,) * function.outputs

    @marked_call
    def wavenumbers(self, lengths: float | Sequence[float] | None = None) -> tuple[np.ndarray, ...]:
        """Return the wavenumbers k of this rank's modes: 2 pi / length times the number of waves in a box (local).

        In a box of length 2 pi, the default, k is the number of waves. Along an axis with a cosine or sine transform,
        where the length is the distance of the walls, the number of waves is that of half waves divided by 2, such as
        0, 1/2, 1, ..., or that of quarter waves by 4.

        Parameters
        ----------
        lengths : float or sequence of float, optional
            Lengths of the box, one for each transformed axis or one for all; 2 pi by default.

        Returns
        -------
        ky, kx or kz, ky, kx : ndarray of float
            Shapes that broadcast to a local plane or field of the spectrum, in its order. Of an `FFTN`: an array for
            each of its `axes`, in the order given.

        Raises
        ------
        InputError
            On this rank: a length is not positive and finite, or there are too many or too few.
        """
        self._check_in_use()
        axes, numbers = self._transformed_axes(), []
        in_memory = self._split_axes(True)
        places = [in_memory.index(place) - len(in_memory) for place in sorted(in_memory)]
        for axis, length in zip(axes, box_lengths(lengths, len(axes))):
            modes = tau / length * mode_numbers(self._kinds[axis], self._points[axis])
            if axis in self._factors and self._transposed:
                modes = modes.reshape(self._factors[axis][::-1]).T.reshape(-1)
            shape = [1] * len(places)
            shape[places[axis]] = -1
            numbers.append(modes[self.spectrum.local_slice[places[axis]]].reshape(shape))
        return tuple(numbers)

    @marked_call
    def operators(self, lengths: float | Sequence[float] | None = None, dealias: Dealias = "auto") -> SpectralOperators:
        """Make derivatives, energies and products of fields of the plan's spectrum in a box (collective).

        The box is periodic, or has walls at both ends of the axes with a cosine or sine transform.

        Parameters
        ----------
        lengths : float or sequence of float, optional
            Lengths of the box, one for each transformed axis or one for all; 2 pi by default.
        dealias : {"auto", "3/2", None} or tuple of int
            De-aliasing of products, see `pointwise`. ``"auto"``: ``"3/2"`` along all axes but those with a cosine or
            sine transform, which have no finer grid.

        Returns
        -------
        SpectralOperators

        Raises
        ------
        InputError
            On all ranks: an argument is bad, or differs between ranks; squares of wavenumbers leave the range of the
            fields' type; or the plan has a "dct1", "dct3" or "dst3" with ``norm="ortho"``, which scales values at the
            walls.

        Examples
        --------
        >>> with overlap.FFT2(comm, (1, 16, 16), dtype="f8") as plan:
        ...     ops = plan.operators(lengths=(1.0, 2.0))  # y, x
        ...     psi = plan.forward(plan.real.from_function(lambda y, x: np.sin(np.pi * x), lengths=(1.0, 2.0)))
        ...     v_y, v_x = -ops.derivative(psi, -1), ops.derivative(psi, -2)
        ...     energy = ops.energy(v_y, v_x)
        >>> round(float(energy[0] / np.pi**2), 6)
        0.25
        """
        self._check_in_use()
        with self._adding("making the operators of a plan"):
            box = box_lengths(lengths, len(self._points))
            if isinstance(dealias, str) and dealias == "auto":
                dealias = "3/2"
                if {*REAL_KINDS} & {*self._kinds}:
                    fine = fine_points(self._points, dealias)
                    dealias = tuple(
                        n if kind in REAL_KINDS else m for kind, n, m in zip(self._kinds, self._points, fine)
                    )
            problem = (
                self._operators_problem()
                or lengths_problem(box, self._points, self.real.dtype)
                or dealias_problem(self._points, dealias, self._kinds)
            )
            self.runtime.preflight(problem, lengths=box, dealias=dealias)
        points = float(np.prod(self._all_points, dtype=object))
        return SpectralOperators(self, self._points, self._kinds, points ** (2 * self._power - 2), box, dealias)

    def _shapes(self) -> tuple[Any, ...]:
        count = len(self._names)
        return self.real.shape[-count:], self.spectrum.shape[-count:]

    # ---- what a plan supplies, besides what any `Plan` does --------------------------------------

    def _operators_problem(self) -> str | None:
        """Return why the plan has no operators, or None."""
        scaled = [kind for kind in self._kinds if kind in REAL_KINDS and REAL_KINDS[kind].before]
        if not scaled or self._norm != "ortho":
            return None
        return (
            f"expected norm='backward' or 'forward' for operators, as an orthogonal {scaled[0]!r} scales "
            "values at walls, so that its modes are no series of the field, received a plan with norm='ortho'"
        )

    def _own_options(self) -> dict[str, Any]:
        """Return the arguments that only this kind of plan has."""
        return {}

    def _transformed_axes(self) -> tuple[int, ...]:
        """Return the indices of the transformed axes among those that do not belong to the batch."""
        return tuple(range(len(self._names)))

    def _grid_problem(self, layout: ArrayLayout, kinds: tuple[str, ...]) -> str | None:
        """Return what is wrong with a layout's process grid, for transforms of some kinds, or None."""
        raise NotImplementedError

    def _choose_grid(self) -> tuple[int, ...]:
        """Return the process grid (collective)."""
        raise NotImplementedError

    def _route(self, forward: bool) -> Route:
        """Return the route from real space to the spectrum, or back, divided into stages."""
        half = self._at[self._kinds.index("r2c")] if "r2c" in self._kinds else None
        return for_stages(self._way, half, forward)

    def _points_of(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """Return the points of the transforms, given the lengths in the shape."""
        return lengths

    def _turned(self) -> int | None:
        """Return the axis that the spectrum has last in memory, if not the last one."""
        return self._axes[0] if self._transposed else None

    def _by_plane(self, planes: int) -> bool:
        """Return whether messages contain whole planes."""
        return False


T = TypeVar("T")


def _spread(values: Sequence[T], places: Sequence[int], others: Sequence[T]) -> tuple[T, ...]:
    """Return values for all axes: `values` for the axes in `places`, those of `others` for the rest."""
    placed = dict(zip(places, values))
    return tuple(placed.get(place, other) for place, other in enumerate(others))


def mode_numbers(kind: str, points: int) -> np.ndarray:
    """Return the number of waves in the box for every mode of an axis of `points` points."""
    if kind in REAL_KINDS:
        return (REAL_KINDS[kind].first_mode + np.arange(points)) / 2
    return (np.fft.rfftfreq if kind == "r2c" else np.fft.fftfreq)(points, 1 / points)
