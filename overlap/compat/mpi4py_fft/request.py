"""The arguments of a `PFFT`, checked and converted; its process grid, and its route through its exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays import AxisSwap, Layout
from ...arrays.stages import Route
from ...checks import WAITS
from ...errors import InputError, repr_of
from ...fft.arguments import DTYPES
from ...fft.engine.axis import REAL_KINDS, Axis
from ...runtime import Runtime
from .distarray import DistArray
from .fftw import dctn, dstn, get_fftw_lib, idctn, idstn
from .libfft import BACKENDS, PADDED, Padding, Pair, Transforms
from .pencil import Pencil, Subcomm, grid_sizes

# FFTW_MEASURE is the default of mpi4py-fft, so it does not express a choice of the user.
EFFORTS = {
    None: None,
    "FFTW_ESTIMATE": "estimate",
    "FFTW_MEASURE": None,
    "FFTW_PATIENT": "patient",
    "FFTW_EXHAUSTIVE": "patient",
}


Axes = int | Sequence[int | Sequence[int]] | None


@dataclass(frozen=True)
class TransformRequest:
    """The checked and converted arguments of a plan."""

    fine: tuple[int, ...]  # global shape of the input
    axes: tuple[tuple[int, ...], ...]
    dtype: np.dtype  # of the input
    dims: tuple[int, ...]  # ranks along every axis
    transformed: dict[int, Axis]  # by axis, counted from 1, because axis 0 of a staged transform is the batch

    @property
    def factors(self) -> list[float] | bool:
        """Return the padding factors of all axes after rounding to whole points; False if there is no padding."""
        if not self.padded:
            return False
        factors = [1.0] * len(self.fine)
        for axis, each in self.transformed.items():
            factors[axis - 1] = each.fine / each.points
        return factors

    @property
    def padded(self) -> set[int]:
        return {axis for axis, each in self.transformed.items() if each.fine > each.points}


def check_supported(
    backend: str,
    comm_backend: str,
    transforms: object,
    planner_effort: str | None,
    wait: str,
    unknown: Mapping[str, object],
) -> None:
    """Raise for features of mpi4py-fft that are not supported."""
    if unknown:
        raise InputError(f"expected no options beyond those of PFFT, received {sorted(unknown)}")
    if backend not in BACKENDS:
        raise InputError(f"backend {backend!r} is not supported: expected one of {BACKENDS}")
    if comm_backend != "MPI":
        raise InputError(f"expected comm_backend to be 'MPI', received {repr_of(comm_backend)}")
    if not isinstance(transforms, dict | None):
        raise InputError(
            f"expected transforms to be a dict of pairs of functions by axes or None, received {transforms!r}"
        )
    if planner_effort not in EFFORTS:
        raise InputError(f"expected planner_effort to be one of {list(EFFORTS)[1:]}, received {planner_effort!r}")
    if wait not in ("auto", *WAITS):
        raise InputError(f"expected wait to be one of {('auto', *WAITS)}, received {wait!r}")


def has_pipeline(request: TransformRequest, backend: str, transforms: Transforms | None) -> bool:
    """Return whether all local transforms are of the kinds that pipelines have."""
    others = [transforms[group] for group in request.axes if transforms and group in transforms]
    return (
        backend in ("fftw", "pyfftw")
        and request.dtype in DTYPES
        and (not others or (backend == "fftw" and all(map(_kind_of, others))))
        and all(
            axis.fine == axis.points >= 1 - REAL_KINDS[axis.kind].beyond
            for axis in request.transformed.values()
            if axis.kind in REAL_KINDS
        )
    )


def _kind_of(functions: Pair) -> str | None:
    """Return the kind of cosine or sine transform of a pair of functions of `fftw`, or None."""
    forward, backward = functions
    for name, forth, back in (("dct", dctn, idctn), ("dst", dstn, idstn)):
        number = _type_of(forward, forth)
        if number is not None and number == _type_of(backward, back):
            return f"{name}{number}"
    return None


def _type_of(function: Any, own: Callable[..., Any]) -> int | None:
    """Return the type of a transform function of `fftw`, with or without its argument `type`, or None."""
    if isinstance(function, partial) and not function.args and function.keywords.keys() == {"type"}:
        function, number = function.func, function.keywords["type"]
    else:
        number = 2
    return number if function is own and number in (1, 2, 3, 4) else None


def understood(
    comm: MPI.Intracomm | Subcomm,
    shape: Sequence[int] | None,
    axes: Axes,
    dtype: DTypeLike,
    grid: Sequence[int] | None,
    padding: Padding,
    collapse: bool,
    darray: DistArray | None,
    slab: bool | int | None,
    transforms: Transforms | None = None,
) -> TransformRequest:
    """Return the `TransformRequest`; raise `InputError` if an argument is wrong."""
    pencil = None
    if darray is not None:
        pencil = getattr(darray, "pencil", None)
        if pencil is None:
            raise InputError(f"expected darray to be a DistArray of two or more axes, received {type(darray).__name__}")
        shape, dtype = pencil.shape, darray.dtype
    if shape is None:
        raise InputError("expected shape or darray, received neither")
    dtype = np.dtype(dtype)
    if dtype.char not in "fdgFDG" or get_fftw_lib(dtype) is None:
        raise InputError(
            f"expected a dtype of {', '.join(map(str, DTYPES))}, or of long double where FFTW's library "
            f"has it, received {dtype}"
        )
    given, shape = shape, tuple(int(length) for length in shape)
    if len(shape) < 2 or min(shape) < 1 or shape != tuple(given):
        raise InputError(f"expected a shape of two or more positive integers, received {given!r}")
    groups = _groups(axes, len(shape), pencil)
    factors = _factors(padding, len(shape))
    flat = [axis for group in groups for axis in group]
    for group in groups:
        if len(group) > 1 and any(factors[axis] > PADDED for axis in group):
            raise InputError(f"expected padded axes in groups of their own, received {group}")
    points, fine = list(shape), list(shape)
    for axis in flat:
        if factors[axis] > PADDED:
            if pencil is None:
                fine[axis] = int(np.floor(shape[axis] * factors[axis]))
            else:
                points[axis] = int(np.round(shape[axis] / factors[axis]))
    dims = _dims(comm, groups, len(shape), grid, slab, pencil)
    if collapse:
        groups = _collapsed(groups, dims, factors)
    kinds = dict.fromkeys(flat, "c2c")
    for group in groups:
        functions = (transforms or {}).get(tuple(group))
        if functions is not None and (kind := _kind_of(functions)):
            kinds |= dict.fromkeys(group, kind)
    waves = [axis for axis in flat if kinds[axis] == "c2c"]
    if dtype.kind == "f" and waves:  # the axis that is transformed first
        kinds[waves[-1]] = "r2c"
    transformed = {axis + 1: _axis(points[axis], fine[axis], kinds[axis]) for axis in flat}
    request = TransformRequest(tuple(fine), tuple(map(tuple, groups)), dtype, dims, transformed)
    _check_whole(request.axes, dims)
    return request


def _axis(points: int, fine: int, kind: str) -> Axis:
    """Return the `Axis` of an axis, with the rule of mpi4py-fft for its highest mode, ``points // 2``.

    On a finer grid, if the number of modes is even, this mode is split between itself and its negative counterpart. For
    real data the number of modes is ``points // 2 + 1``, even if `points` is odd.
    """
    real = kind == "r2c"
    if fine == points or kind in REAL_KINDS:
        return Axis(points, fine, kind)
    even = (points // 2 + 1 if real else points) % 2 == 0
    return Axis(points, fine, kind, "split" if even else "keep" if real else "drop")


def _groups(axes: Axes, count: int, pencil: Pencil | None) -> list[list[int]]:
    """Return the groups of axes, each a list of axes from 0 to count - 1."""
    if axes is None:
        axes = range(count)
        if pencil is not None:  # the aligned axis is put last, so that it is transformed first
            axes = np.roll(axes, count - 1 - pencil.axis).tolist()
    groups = []
    for group in [axes] if isinstance(axes, (int, np.integer)) else axes:
        group = list(group) if isinstance(group, (list, tuple)) else [group]
        if not group or not all(isinstance(axis, (int, np.integer)) and -count <= axis < count for axis in group):
            raise InputError(f"expected axes from {-count} to {count - 1}, received {axes!r}")
        groups.append([int(axis) % count for axis in group])
    flat = [axis for group in groups for axis in group]
    if not flat or len(set(flat)) < len(flat):
        raise InputError(f"expected axes, each once, received {axes!r}")
    return groups


def _factors(padding: Padding, count: int) -> list[float]:
    """Return the padding factors of all axes."""
    if padding is False or padding is None:
        return [1.0] * count
    values = np.asarray(padding, float)
    factors = values.tolist() if values.ndim else [float(values)] * count
    if len(factors) != count or not all(1 <= factor < np.inf for factor in factors):
        raise InputError(
            f"expected padding to be False, a number, or {count} numbers of 1 or more, received {padding!r}"
        )
    return factors


def _dims(
    comm: MPI.Intracomm | Subcomm,
    groups: list[list[int]],
    count: int,
    grid: Sequence[int] | None,
    slab: bool | int | None,
    pencil: Pencil | None,
) -> tuple[int, ...]:
    """Return the ranks along every axis."""
    comms = comm if pencil is None else pencil.subcomm
    if not isinstance(comms, MPI.Comm):
        if grid is not None or (slab is not False and slab is not None):
            raise InputError(
                f"expected neither grid nor slab with a Subcomm or a darray, received grid={grid!r}, slab={slab!r}"
            )
        if len(comms) != count:
            raise InputError(f"expected a Subcomm of {count} axes, received {len(comms)}")
        return tuple(axis_comm.size for axis_comm in comms)
    if grid is not None:
        if slab is not False and slab is not None:
            raise InputError(f"expected grid or slab, received {grid!r} and {slab!r}")
        dims = list(grid) + [1] * (count - len(tuple(grid)))
        if len(dims) > count:
            raise InputError(f"expected a grid of at most {count} axes, received {grid!r}")
        return grid_sizes(comms.size, dims)
    if slab is False or slab is None:
        dims = [1 if axis in groups[-1] else 0 for axis in range(count)]
        if 0 in dims or comms.size == 1:
            return grid_sizes(comms.size, dims)
        raise InputError(
            f"expected an axis to split over {comms.size} ranks outside of the last group, received {groups}"
        )
    axis = (groups[-1][-1] + 1) % count if slab is True else slab
    if not -count <= axis < count:
        raise InputError(f"expected slab to be a bool or an axis, received {slab!r}")
    dims = [1] * count
    dims[axis] = comms.size
    return tuple(dims)


def _collapsed(groups: list[list[int]], dims: Sequence[int], factors: Sequence[float]) -> list[list[int]]:
    """Return the groups, with neighbours joined if no rank divides them."""
    if any(factor > PADDED for factor in factors):
        raise InputError(
            f"expected no padding with collapse=True, received {factors}: padded axes are groups of their own"
        )
    joined: list[list[int]] = [[]]
    for group in reversed(groups):
        if all(dims[axis] == 1 for axis in group):
            joined[0] = group + joined[0]
        else:
            joined.insert(0, group)
    return joined


def _check_whole(axes: Sequence[Sequence[int]], dims: Sequence[int]) -> None:
    """Raise unless every group is whole when it is transformed."""
    dims = list(dims)
    aligned = axes[-1][-1]
    for group in reversed(axes):
        dims[aligned], dims[group[-1]] = dims[group[-1]], dims[aligned]
        aligned = group[-1]
        if any(dims[axis] > 1 for axis in group):
            raise InputError(
                f"expected every group of axes to be whole when it is transformed, "
                f"received {axes}, with {dims} ranks per axis at group {group}"
            )


def dimensions_of(
    runtime: Runtime, comms: Sequence[MPI.Comm]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return axis and size of every dimension of the ranks' grid with more than one rank, and this rank's coordinates;
    that of the first dimension varies fastest with the rank.

    Collective, except for a `Subcomm`, whose ranks have a known order.
    """
    split = [axis for axis, comm in enumerate(comms) if comm.size > 1]
    sizes = [comm.size for comm in comms]
    all_coordinates = (
        list(np.ndindex(*sizes))
        if isinstance(comms, Subcomm)
        else runtime.coordinator.allgather([comm.rank for comm in comms])
    )
    for order in permutations(split):
        grid = tuple(sizes[axis] for axis in order)
        if all(
            rank == sum(where[axis] * int(np.prod(grid[:dimension], dtype=int)) for dimension, axis in enumerate(order))
            for rank, where in enumerate(all_coordinates)
        ):
            coordinates = all_coordinates[runtime.comm.rank]
            return order, grid, tuple(coordinates[axis] for axis in order)
    raise InputError(
        f"expected communicators of a Cartesian grid of {runtime.comm.size} ranks, received {sizes} ranks per axis"
    )


def route_of(groups: Sequence[Sequence[int]], layout: Layout, padded: set[int]) -> tuple[Route, Layout]:
    """Return the forward route, in the form of `arrays.stages`, and the layout at its end.

    A padded axis is alone in its group. None separates groups without an exchange.
    """
    route: Route = [()]
    aligned = groups[-1][-1] + 1
    for group in reversed(groups):
        axis = group[-1] + 1
        if layout.splits[axis] is not None:
            transpose = AxisSwap(axis, aligned)
            layout = layout.transposed(transpose)
            route += [transpose, ()]
        aligned = axis
        for axis in (axis + 1 for axis in reversed(group)):
            if route[-1] and padded & {axis, *route[-1]}:
                route += [None, ()]
            route[-1] += (axis,)
    return route, layout
