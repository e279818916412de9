"""`FFTN`: FFTs along any axes of arrays of 1 to 6 dimensions, as pipelines that hide their exchanges."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import isqrt, prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import Layout, Transpose
from .arguments import axes_of_array, integers, shown
from .array_layout import ArrayLayout, default_problem
from .engine.axis import Axis
from .engine.route import Route, for_stages
from .fourier import FourierPlan, mode_numbers
from .function import Dealias, Function
from .plan import PlanComm
from .planning.settings import Settings
from .transform import Transform

MOST_AXES = 6
_Axes = int | Sequence[int] | None


class FFTN(FourierPlan):
    """A plan for FFTs along any axes of an array of 1 to 6 dimensions over MPI ranks.

    In real space the array is split along one axis, or along two over a grid of ranks. A split axis that is to be
    transformed takes one exchange, after which another axis is split. Axes that no rank splits take none: so an array
    that has an axis to spare, which is not transformed, is split along that one and transformed without exchanges.
    Making, calling and closing a plan is collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, Runtime or AsyncComm
        What the plan runs on, see `Plan`; all ranks of the runtime.
    shape : tuple of int
        Global shape in real space.
    dtype : dtype
        Data type in real space: ``complex64``/``complex128``, or ``float32``/``float64`` for half the spectrum along
        the last one of `axes`.
    axes : int or sequence of int, optional
        The axes to transform, in any order, each once; all by default. The last one is transformed first.
    split : int or pair of int, optional
        The axes that are split in real space, over P or over a P x Q grid of ranks (``layout={"grid": (P, Q)}``; as
        square as possible by default). By default one axis that is not transformed, if one is as long as there are
        ranks; else the first one of `axes`. An axis of half the spectrum can't be split.
    norm : {"backward", "ortho", "forward"}, optional
        As in `numpy.fft`.
    layout : ArrayLayout or dict, optional
        The process grid, `restore`, and weights of the ranks.
    settings, tuning, exchange
        As for `FFT2`.

    Attributes
    ----------
    real, spectrum : ArraySpec
        The arrays of real space and of the spectrum: what this rank holds, and ``empty()`` ones.
    forward, backward : Transform
        Call them: ``spectrum = plan.forward(u, out=None)``, ``u = plan.backward(spectrum)``.
    grid : tuple of int
        Ranks along each axis of `split`.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad or differs between ranks. One axis alone, split over several ranks, can't
        be transformed: there must be another axis that is split meanwhile.

    Examples
    --------
    >>> with overlap.FFTN(comm, (3, 16, 8, 10), axes=(1, 3)) as plan:
    ...     u = plan.real.empty()
    ...     u[...] = 1.0
    ...     plan.forward(u).global_shape
    (3, 16, 8, 10)
    """

    _kind = "FFTN"

    def __init__(
        self,
        comm: PlanComm,
        shape: Sequence[int],
        dtype: DTypeLike = complex,
        *,
        axes: _Axes = None,
        split: _Axes = None,
        norm: str | None = None,
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
        self._dtype_given = dtype
        super().__init__(
            comm, shape, dtype, norm=norm, layout=layout, settings=settings, tuning=tuning, exchange=exchange
        )

    def _own_options(self) -> dict[str, Any]:
        return {"axes": self._wanted, "split": self._wanted_split}

    def _grid_problem(self, layout: ArrayLayout) -> str | None:
        count, wanted, split = len(self._names), self._wanted, self._wanted_split
        if not 1 <= len(self._lengths_given) <= MOST_AXES:
            return f"expected a shape of 1 to {MOST_AXES} axes, received {shown(self._lengths_given)}"
        if wanted is None:
            return f"expected axes from {-count} to {count - 1}, one or more and each once, received others"
        if split is not None and not 1 <= len(split) <= 2:
            return f"expected split to be one axis or two, each from {-count} to {count - 1}, received others"
        if problem := default_problem(layout, self._kind, ("order", "dealias")):
            return problem
        ranks, real = self.comm.size, np.dtype(self._dtype_given).kind == "f"
        chosen = self._chosen_split()
        grid = integers(layout.grid) if layout.grid is not None else None
        if layout.grid is not None and (grid is None or len(grid) != len(chosen) or prod(grid) != ranks):
            return (
                f"expected grid to be {len(chosen)} positive integers whose product is {ranks}, the number of ranks, "
                f"received {shown(layout.grid)}"
            )
        if ranks > 1 and real and wanted[-1] in chosen:
            return f"expected axis {wanted[-1]}, of half the spectrum, to be whole, received split={chosen}"
        if ranks > 1 and len(chosen) == count and set(chosen) & set(wanted):
            return (
                f"expected an axis that is not split, besides those of split={chosen}: an axis is transformed where it "
                "is whole"
            )
        return None

    def _chosen_split(self) -> tuple[int, ...]:
        """Return the axes that are split in real space."""
        if self._wanted_split is not None:
            return self._wanted_split
        wanted: Any = self._wanted
        spare = [axis for axis in range(len(self._names)) if axis not in wanted]
        enough = [axis for axis in spare if self._lengths_given[axis] >= self.comm.size]
        return (enough[0] if enough else wanted[0],)

    def _choose_grid(self) -> tuple[int, ...]:
        self.split = self._chosen_split()
        even = (self.comm.size,) if len(self.split) == 1 else _squarest(self.comm.size)
        self.grid: tuple[int, ...] = self._layout.grid or even
        return self.grid

    def _lines(self, fine: Sequence[int]) -> dict[int, Axis]:
        wanted: Any = self._wanted
        kinds = {wanted[-1]: "r2c"} if self._dtype.kind == "f" else {}
        return {axis + 1: Axis(self._points[axis], fine[axis], kinds.get(axis, "c2c")) for axis in sorted(wanted)}

    def _place(self) -> None:
        splits: list[int | None] = [None] * (len(self._names) + 1)
        for dimension, axis in enumerate(self.split):
            if self._grid[dimension] > 1 or len(self._grid) == 1:  # as of `FFT3`
                splits[axis + 1] = dimension
        self._here = Layout(tuple(splits), self._grid, self._weights)
        self._way, self._there = _route(self._wanted, self._here, self._layout.restore)
        self.real, self.spectrum = self._specs(())

    def _route(self, forward: bool) -> list[Any]:
        wanted: Any = self._wanted
        return for_stages(self._way, wanted[-1] + 1 if self._dtype.kind == "f" else None, forward)

    def _title(self) -> str:
        wanted: Any = self._wanted
        return f"FFTN {self._shape} {self._dtype} along {wanted}, split along {self.split}, {self._sharers()}"

    def wavenumbers(self) -> tuple[np.ndarray, ...]:
        """Mode numbers of this rank's part of the spectrum.

        Returns
        -------
        tuple of ndarray of float
            For each of `axes`, in the order given, an array of a shape that broadcasts to the local spectrum.
        """
        self._check_in_use()
        found, lines = [], self._lines(self._fine)
        for axis in self._wanted or ():
            modes = mode_numbers(lines[axis + 1].kind, self._points[axis])
            shape = [1] * len(self._points)
            shape[axis] = -1
            found.append(modes[self.spectrum.local_slice[axis]].reshape(shape))
        return tuple(found)

    def _operators_problem(self) -> str | None:
        if self._wanted == tuple(range(len(self._names))):
            return None
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
            ``function(*arrays)`` with this rank's parts in real space, read-only by convention; returns one, or a tuple
            of `outputs`. If it has a parameter ``out``, it is given what to fill instead.
        inputs : int, optional
            Number of spectral inputs; by default the function's positional parameters.
        outputs : int
        dealias : {None, "3/2"} or tuple of int
            Points of a finer grid, one number for each axis: along transformed axes the function sees the fields there,
            and modes beyond the resolved ones are dropped from what it returns. ``"3/2"``: ceil(3 n / 2) points.

        Returns
        -------
        FieldPointwise
            A `Transform` of the spectral inputs.
        """
        return self._act(function, (inputs, outputs, 0), dealias)

    def _pointwise(self, function: Function, fine: tuple[int, ...]) -> Transform:
        wanted: Any = self._wanted
        return super()._pointwise(
            function,
            tuple(length if axis in wanted else self._points[axis] for axis, length in enumerate(fine)),
        )


def _places(axes: Any, count: int) -> tuple[int, ...] | None:
    """Return one axis, or several, as of `axes_of_array`."""
    return axes_of_array((axes,) if integers((axes,)) else axes, count)


def _squarest(size: int) -> tuple[int, int]:
    """Return the grid of so many ranks that is as square as possible."""
    short = max(each for each in range(1, isqrt(size) + 1) if size % each == 0)
    return size // short, short


def _route(wanted: Any, here: Layout, restore: bool) -> tuple[Route, Layout]:
    """Return the forward route, as `arrays.stages` wants it, and the layout at its end.

    Axes that are whole are transformed first, then each that is split: it becomes whole in an exchange, and the axis
    that was transformed before is split instead.
    """
    axes = [axis + 1 for axis in reversed(wanted)]
    split = [axis for axis in axes if here.splits[axis] is not None] if prod(here.grid) > 1 else []
    route: Route = [tuple(axis for axis in axes if axis not in split)]
    free = [axis for axis in range(1, len(here.splits)) if here.splits[axis] is None]
    aligned = route[0][0] if route[0] else (free[0] if free else 0)
    there = here
    for axis in split:
        over = Transpose(axis, aligned)
        there = there.transposed(over)
        route += [over, (axis,)]
        aligned = axis
    if restore:
        for over in route[1::2][::-1]:
            there = there.transposed(over.reversed())
            route += [over.reversed(), ()]
    return route, there
