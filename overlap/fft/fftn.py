"""`FFTN`: FFTs along any axes of arrays of 1 to 6 dimensions, as pipelines that hide their exchanges."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import isqrt, prod
from typing import Any

from numpy.typing import DTypeLike

from ..arrays import AxisSwap, Layout
from ..arrays.exchange import travelling
from ..arrays.stages import Route
from ..runtime.on_runtime import PlanComm
from .arguments import axes_of_array, integers, shown
from .array_layout import ArrayLayout, default_problem
from .constructor import of_plan
from .engine.axis import Axis
from .engine.six_step import TwiddledTranspose, next_lengths, two_factors
from .fourier import FourierPlan
from .function import Dealias, Function
from .planning.settings import Settings
from .transform import Transform

MOST_AXES = 6
_Axes = int | Sequence[int] | None


class FFTN(FourierPlan):
    """A plan for FFTs along any axes of an array of 1 to 6 dimensions over MPI ranks.

    In real space the array is split along one axis, or along two over a grid of ranks. To transform a split axis takes
    one exchange, after which another axis is split. To transform an unsplit axis takes none: so an array with an axis
    that is not transformed is split along this axis and transformed without exchanges. A split axis stays split if no
    other axis has at least as many points as there are ranks, as in one dimension: it is transformed as rows and
    columns of a matrix, in three exchanges, or in two with ``layout={"order": "transposed"}``. Its length must be a
    product of two numbers, each at least the number of ranks. Making, calling and closing a plan is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        The ranks over which arrays are split. From a communicator the plan makes a runtime with one worker, and closes
        it at its end; a runtime stays open.
    shape : tuple of int
        Global shape in real space.
    dtype : dtype
        Data type in real space: ``complex64``/``complex128``, or ``float32``/``float64`` for half the spectrum along
        the last one of `axes` that has FFTs.
    axes : int or sequence of int, optional
        The axes to transform, in any order, each once; all by default. The last one is transformed first.
    split : int or pair of int, optional
        The axes that are split in real space, over P or over a P x Q grid of ranks (``layout={"grid": (P, Q)}``; as
        square as possible by default). By default one axis that is not transformed, if it has at least as many points
        as there are ranks; else the first one of `axes`. An axis of half the spectrum cannot be split.
    s : sequence of int, optional
        As in `numpy.fft`: points of the transforms along `axes`, where arrays in real space have those of `shape`.
        Zeros are added at their ends, or the ends are cut off; no rank sends these zeros. `backward` returns arrays of
        `shape`, with zeros where ends were cut. Not for an axis that stays split.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`; for cosine and sine transforms as in `scipy.fft.dct` and `scipy.fft.dst`.
    kinds : sequence of str, optional
        Transforms along `axes`, as for `FFT2`: FFTs, cosine or sine transforms. An axis that stays split has FFTs.
    layout : ArrayLayout or dict, optional
        The process grid, `restore`, and shares of the ranks; `modes`, a number for each of `axes`.
        ``order="transposed"`` leaves modes of an axis that stays split in the order of the transform: 0, r, 2 r, ...
        first, then 1, r + 1, ...; see `wavenumbers`. On one rank both orders are the natural one.
    settings, tuning, exchange
        See `FFT2`.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: this rank's part, and ``empty()`` to make them.
    forward, backward : Transform
        Call them: ``spectrum = plan.forward(u, out=None)``, ``u = plan.backward(spectrum)``.
    grid : tuple of int
        Ranks along each axis of `split`.
    runtime : Runtime
        The plan's own, or the one of which it was made: for slice programs, and for other plans.
    comm : mpi4py.MPI.Comm
        The ranks over which the arrays are split, for collectives of your own.

    Raises
    ------
    InputError
        On all ranks, if an argument is bad or differs between ranks, or if the length of an axis that must stay split
        is no such product; the message names the next valid lengths.

    Examples
    --------
    >>> with overlap.FFTN(comm, (3, 16, 8, 10), axes=(1, 3)) as plan:
    ...     u = plan.real.empty()
    ...     u[...] = 1.0
    ...     plan.forward(u).global_shape
    (3, 16, 8, 10)
    """

    _kind = "FFTN"

    @of_plan
    def __init__(
        self,
        comm: PlanComm,
        shape: Sequence[int],
        dtype: DTypeLike = complex,
        *,
        axes: _Axes = None,
        split: _Axes = None,
        s: Sequence[int] | None = None,
        norm: str | None = None,
        kinds: Sequence[str] | None = None,
        layout: ArrayLayout | dict[str, Any] | None = None,
        settings: Settings | dict[str, Any] | None = None,
        tuning: str | os.PathLike[str] | None = None,
        exchange: str | None = None,
    ) -> None:
        self._lengths_given = integers(shape) or ()
        count = max(1, len(self._lengths_given))
        self._names = tuple(f"n{axis}" for axis in range(count))
        self._wanted = _places(axes, count) if axes is not None else tuple(range(count))
        self._wanted_split = None if split is None else _places(split, count) or ()
        self._axes_given = shown(axes), shown(split)
        self._lengths_wanted = None if s is None else integers(s) or ()
        super().__init__(
            comm,
            shape,
            dtype,
            norm=norm,
            kinds=kinds,
            layout=layout,
            settings=settings,
            tuning=tuning,
            exchange=exchange,
        )

    def _own_options(self) -> dict[str, Any]:
        return {"axes": self._wanted, "split": self._wanted_split, "s": self._lengths_wanted}

    def _transformed_axes(self) -> tuple[int, ...]:
        return self._wanted or super()._transformed_axes()

    def _grid_problem(self, layout: ArrayLayout, kinds: tuple[str, ...]) -> str | None:
        count, wanted, split = len(self._names), self._wanted, self._wanted_split
        if not 1 <= len(self._lengths_given) <= MOST_AXES:
            return f"expected a shape of 1 to {MOST_AXES} axes, received {shown(self._lengths_given)}"
        if wanted is None:
            return (
                f"expected at least one axis, each from {-count} to {count - 1} and given once, "
                f"received axes={self._axes_given[0]}"
            )
        if split is not None and not 1 <= len(split) <= 2:
            return (
                f"expected split to be one axis or two, each from {-count} to {count - 1}, "
                f"received split={self._axes_given[1]}"
            )
        if problem := default_problem(layout, self._kind, ("dealias",)):
            return problem
        ranks = self.comm.size
        chosen = self._chosen_split()
        grid = integers(layout.grid) if layout.grid is not None else None
        if layout.grid is not None and (grid is None or len(grid) != len(chosen) or prod(grid) != ranks):
            return (
                f"expected grid to be {len(chosen)} positive integers whose product is {ranks}, the number of ranks, "
                f"received {shown(layout.grid)}"
            )
        half = kinds.index("r2c") if "r2c" in kinds else None
        if ranks > 1 and half in chosen:
            return f"expected complex data, or axis {half}, of half the spectrum, to be whole, received split={chosen}"
        s, modes = self._lengths_wanted, integers(layout.modes)
        if s is not None and (len(s) != len(wanted) or min(s) < 1):
            return f"expected s to be None or {len(wanted)} positive integers, one for each of axes, received {s}"
        sizes = grid or self._even_grid(chosen)
        # An axis can be split over the ranks before its transform or after it.
        longest = tuple(map(max, self._lengths_given, self._points_of(self._lengths_given)))
        for axis, size in staying_split(longest, wanted, chosen, sizes).items():
            length = self._lengths_given[axis]
            pair = two_factors(length, size) if kinds[axis] == "c2c" else None
            if pair:
                self._factors[axis] = pair
                if s is not None and s[wanted.index(axis)] != length:
                    return f"expected s to be {length} along axis {axis}, which stays split, received {shown(s)}"
                if modes and len(modes) == len(wanted) and modes[wanted.index(axis)] != length:
                    return f"expected all {length} modes along axis {axis}, which stays split, received modes={modes}"
            elif len(chosen) == count and kinds[axis] != "c2c":
                return f"expected FFTs along axis {axis}, which stays split over {size} ranks, received {kinds[axis]!r}"
            elif len(chosen) == count:  # no other axis can be split
                return (
                    f"expected axis {axis}, which stays split over {size} ranks, to have a length that is a product of "
                    f"two numbers of at least {size}, received {length}; the next valid lengths are "
                    f"{', '.join(map(str, next_lengths(length, size)))}"
                )
        if ranks > 1 and not self._factors:
            return default_problem(layout, "an FFTN without an axis that is transformed while it is split", ("order",))
        return None

    def _chosen_split(self) -> tuple[int, ...]:
        """Return the axes that are split in real space."""
        if self._wanted_split is not None:
            return self._wanted_split
        wanted = self._transformed_axes()
        spare = [axis for axis in range(len(self._names)) if axis not in wanted]
        enough = [axis for axis in spare if self._lengths_given[axis] >= self.comm.size]
        return (enough[0] if enough else wanted[0],)

    def _choose_grid(self) -> tuple[int, ...]:
        self.split = self._chosen_split()
        self.grid: tuple[int, ...] = self._layout.grid or self._even_grid(self.split)
        parts = [self._factors.get(axis, (length,)) for axis, length in enumerate(self._points)]
        self._cut = tuple(length for part in parts for length in part)
        self._at = [1 + sum(map(len, parts[:axis])) for axis in range(len(parts))]  # index of each axis after batch
        return self.grid

    def _points_of(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        points = list(lengths)
        for axis, length in zip(self._wanted or (), self._lengths_wanted or ()):
            points[axis] = length
        return tuple(points)

    def _even_grid(self, split: tuple[int, ...]) -> tuple[int, ...]:
        return (self.comm.size,) if len(split) == 1 else _squarest(self.comm.size)

    def _lines(self, fine: Sequence[int]) -> dict[int, Axis]:
        wanted, ortho = self._wanted or (), self._norm == "ortho"
        lines: dict[int, Axis] = {}
        for axis in sorted(wanted):
            at = self._at[axis]
            if axis in self._factors:
                lines |= {at + i: Axis(length, length) for i, length in enumerate(self._factors[axis])}
            else:
                held = self._shape[axis] if self._lengths_wanted else None
                lines[at] = Axis(self._points[axis], fine[axis], self._kinds[axis], orthogonal=ortho, given=held)
        return lines

    def _place(self) -> None:
        splits: list[int | None] = [None] * (len(self._cut) + 1)
        for dimension, axis in enumerate(self.split):
            if self._grid[dimension] > 1 or len(self._grid) == 1:  # the rule of `FFT3`
                splits[self._at[axis]] = dimension
        self._here = Layout(tuple(splits), self._grid, self._weights)
        whole, apart = (
            [self._at[axis] for axis in self._transformed_axes() if (axis in self._factors) == apart]
            for apart in (False, True)
        )
        self._way, self._there = _route(whole, apart, self._here, self._layout.restore, self._transposed)
        self._place_arrays(())

    def _split_axes(self, spectral: bool) -> list[tuple[int, int]]:
        axes = [(at, 1) for at in self._at]
        for axis, (first, last) in self._factors.items():
            at = self._at[axis]
            axes[axis] = (at + 1, first) if spectral and not self._transposed else (at, last)
        return axes

    def _turned(self) -> int | None:
        return None if self._transposed else next((self._at[axis] for axis in self._factors), None)

    def _title(self) -> str:
        of = f"{self._dtype}{self._in_kinds()}"
        title = f"FFTN {self._shape} {of} along {self._wanted}, split along {self.split}, {self._sharers()}"
        return title + travelling(self.exchange)

    def _operators_problem(self) -> str | None:
        if self._factors:
            return f"expected a plan without an axis that stays split, received one of axes {tuple(self._factors)}"
        if self._lengths_wanted:
            return f"expected a plan without s, received one with s={self._lengths_wanted}"
        if self._wanted == tuple(range(len(self._names))):
            return super()._operators_problem()
        return f"expected a plan that transforms all axes, in order, received one of axes {self._wanted}"

    def pointwise(
        self,
        function: Callable[..., Any] | None = None,
        *,
        inputs: int | None = None,
        outputs: int = 1,
        dealias: Dealias = None,
    ) -> Any:
        """Make a function of real-space arrays act on spectral arrays, as one pipeline.

        A decorator, with or without arguments: the inputs are transformed to real space and given to the function, and
        what it returns is transformed back.

        Parameters
        ----------
        function : callable
            ``function(*arrays)`` with this rank's parts in real space, read-only by convention; returns one array, or a
            tuple of `outputs` arrays. If the function has a parameter ``out``, it receives the arrays to fill instead.
        inputs : int, optional
            Number of spectral inputs; by default the function's positional parameters.
        outputs : int
        dealias : {None, "3/2"} or tuple of int
            Points of a finer grid, one number for each axis: along transformed axes the function sees the fields there,
            and modes beyond the resolved ones are dropped from what it returns. ``"3/2"``: ceil(3 n / 2) points. An
            axis that stays split has no finer grid.

        Returns
        -------
        Pointwise
            A `Transform` of the spectral inputs.
        """
        problem = None
        if self._lengths_wanted and dealias is not None:
            problem = f"expected dealias=None of a plan with s={self._lengths_wanted}, received {dealias!r}"
        elif self._factors and dealias is not None:
            problem = (
                f"expected dealias to be None, as an axis that stays split has no finer grid, received {dealias!r}"
            )
        return self._act(function, (inputs, outputs, 0), dealias, problem=problem)

    def _pointwise(self, function: Function, fine: tuple[int, ...]) -> Transform:
        array_points = [*self._points]
        for axis in self._transformed_axes():
            array_points[axis] = fine[axis]
        return super()._pointwise(function, tuple(array_points))


def _places(axes: Any, count: int) -> tuple[int, ...] | None:
    """Return one axis or several as a tuple, see `axes_of_array`."""
    return axes_of_array((axes,) if integers((axes,)) else axes, count)


def _squarest(size: int) -> tuple[int, int]:
    """Return the grid of `size` ranks that is as square as possible."""
    short = max(each for each in range(1, isqrt(size) + 1) if size % each == 0)
    return size // short, short


def staying_split(lengths: Sequence[int], wanted: Any, split: Sequence[int], grid: Sequence[int]) -> dict[int, int]:
    """Return the axes that are transformed while no other axis is long enough to be split, and their ranks."""
    whole = [length for axis, length in enumerate(lengths) if axis not in split]
    return {
        axis: size
        for axis, size in zip(split, grid)
        if size > 1 and axis in wanted and not any(length >= size for length in whole)
    }


def _route(
    wanted: Sequence[int], apart: Sequence[int], begin_layout: Layout, restore: bool, transposed: bool
) -> tuple[Route, Layout]:
    """Return the forward route, in the form of `arrays.stages`, and the layout at its end.

    Whole axes are transformed first, then those that stay split, as two axes each. Each of the others becomes whole in
    an exchange, by which the axis that was transformed before is split instead.
    """
    axes = wanted[::-1]
    split = [axis for axis in axes if begin_layout.splits[axis] is not None] if prod(begin_layout.grid) > 1 else []
    route: Route = [tuple(axis for axis in axes if axis not in split)]
    taken = {axis + i for axis in apart for i in (0, 1)}
    free = [
        axis for axis in range(1, len(begin_layout.splits)) if begin_layout.splits[axis] is None and axis not in taken
    ]
    aligned = route[0][0] if route[0] else (free[0] if free else 0)
    layout, begin = begin_layout, 1 + (4 if transposed else 6) * len(apart)
    for axis in apart[::-1]:
        over = AxisSwap(axis, axis + 1)
        route += [over, (axis,), TwiddledTranspose(axis + 1, axis), (axis + 1,)]
        if not transposed:
            route += [over, ()]
            layout = layout.transposed(over)
    for axis in split:
        over = AxisSwap(axis, aligned)
        layout = layout.transposed(over)
        route += [over, (axis,)]
        aligned = axis
    if restore:
        for over in route[begin::2][::-1]:
            layout = layout.transposed(over.reversed())
            route += [over.reversed(), ()]
    return route, layout
