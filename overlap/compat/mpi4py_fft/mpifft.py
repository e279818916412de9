"""`PFFT`: parallel FFTs along any axes of arrays of any dimension, as pipelines.

A plan is a tuple of layouts with local FFTs in between: groups of axes, transformed from the last
group to the first, and before each group an exchange, if need be, that makes its last axis whole by
splitting that of the group before. This is what `overlap.fft.passage` runs for `FFT3`; here the way
(`_route`) follows from any axes on any grid.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from mpi4py import MPI

from ...decomp import Layout, Swap
from ...errors import InputError
from ...fft.fft2 import DTYPES, OVERLAPS
from ...fft.grids import subcomms
from ...fft.local import complex_of, zeros
from ...fft.passage import Passage
from ...fft.side import Side
from ...fft.sweep import Line
from ...fft.trials import choose_volume
from ...fft.volume import Volume
from ...runtime import Runtime
from .pencil import Pencil, Subcomm, grid_sizes

EFFORTS = {None: None, "FFTW_ESTIMATE": "estimate", "FFTW_MEASURE": "measure",
           "FFTW_PATIENT": "patient", "FFTW_EXHAUSTIVE": "patient"}
BACKENDS = ("fftw", "pyfftw")
PADDED = 1 + 1e-6  # smaller factors mean none


class PFFT:
    """A parallel FFT with mpi4py-fft's arguments, distributions and results.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm or Subcomm
    shape : sequence of int
        Global shape; of the resolved grid, with padding. By default that of `darray`.
    axes : None, int, or sequence of int or of sequences of int
        To be transformed, the last ones first; those of one group while all are whole. All by default.
        The last one is that of the real-to-complex transform.
    dtype : dtype
        Of the input: "f", "d", "F" or "D". Real input has half the modes along the last axis.
    grid : sequence of int, optional
        Ranks along every axis, 0 or less where MPI shall choose; 1 along missing ones. By default all
        axes but the last group's may be split.
    padding : False, number or sequence of numbers
        Factors, one per axis of the array, by which the input's grid is finer than the result's.
    collapse : bool
        Join neighbouring groups that need no exchange in between.
    backend : {"fftw", "pyfftw"}
    transforms : None
    darray : DistArray, optional
        Take shape, dtype and distribution of the input from this array.
    slab : bool or int, optional
        Split this axis only; True: the one after the last axis, cyclically.
    planner_effort : str, optional
        ``"FFTW_ESTIMATE"``, ...; by default what pays.
    threads : int
        Worker threads per rank.
    overlap : {"auto", "off", "block", "poll"}
        As of `overlap.FFT3`.
    deadline_s : float
        As of `Runtime`, of the first plan on `comm`.

    Attributes
    ----------
    forward, backward : Transform
        The forward transform divides by the number of points, unless called with
        ``normalize=False``; the backward one only with ``normalize=True``.
    axes : tuple of tuple of int
    subcomm : sequence of mpi4py.MPI.Comm
    pencil : list of Pencil
        Of the input and of the result.
    transfer : list of Transfer
        The exchanges between groups, each for itself; the transforms do not use them.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad, not supported, or differs between ranks.
    """

    def __init__(self, comm, shape=None, axes=None, dtype=float, grid=None, padding=False,
                 collapse=False, backend="fftw", transforms=None, darray=None, slab=False,
                 planner_effort=None, threads=1, overwrite_input=None, overlap="auto",
                 deadline_s=600.0, **unknown):
        parent = comm.parent if isinstance(comm, Subcomm) else comm
        if not isinstance(parent, MPI.Intracomm):
            raise InputError(f"expected an mpi4py.MPI.Intracomm or a Subcomm, received {comm!r}")
        request = problem = None
        try:
            _check_supported(backend, transforms, planner_effort, overlap, dtype, unknown)
            request = _request(comm, shape, axes, dtype, grid, padding, collapse, darray, slab)
        except InputError as error:
            problem = str(error)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            problem = f"expected the arguments of a PFFT, received some that fail: {error}"
        workers = threads if isinstance(threads, int) and threads > 0 else 1
        if workers != threads:
            problem = f"expected threads to be a positive integer, received {threads!r}"
        self._shared = _Shared.of(parent)
        self.runtime = self._shared.runtime(workers, deadline_s)
        try:
            self.runtime.preflight(problem, plan="PFFT", request=request, effort=planner_effort,
                                   overlap=overlap, workers=workers)
            self._make(comm, darray, request, EFFORTS[planner_effort], overlap)
        except InputError:
            self._shared.leave(workers)
            raise
        self.collapse = collapse
        self._workers = workers

    def _make(self, comm, darray, request, effort, overlap):
        if darray is not None:
            self.subcomm = darray.pencil.subcomm
        else:
            self.subcomm = comm if isinstance(comm, Subcomm) else Subcomm(comm, request.dims)
        self.axes = request.axes
        runtime = self.runtime
        order, grid, coordinates = _dimensions(runtime, self.subcomm)
        comms = subcomms(runtime, grid)
        splits = [order.index(axis) if axis in order else None
                  for axis in range(len(request.fine))]
        layouts = [Layout((None, *splits), grid)]
        route, ends = _route(request.axes, layouts[0], request.padded)
        layouts.append(ends)
        modes = list(request.fine)
        for axis, line in request.lines.items():
            modes[axis - 1] = line.length(True)
        self._dtypes = request.dtype, complex_of(request.dtype)
        self._shapes = request.fine, tuple(modes)
        self.pencil, self.transfer = self._pencils()
        sides = []
        for layout, shape, kind in zip(layouts, self._shapes, self._dtypes):
            where = layout.local_slice((1, *shape), coordinates)[1:]
            sides.append(Side(runtime.comm, (), shape, {
                axis - len(shape): part for axis, part in enumerate(where)}, kind))
        real = request.dtype.kind == "f"
        volumes = []
        for forward in (True, False):
            source, target = sides[::1 if forward else -1]
            passage = Passage(
                _for_legs(route, real, forward), layouts[not forward], request.lines, 1,
                source.global_shape, coordinates, source.dtype, forward, None, runtime.workers,
                effort)
            volumes.append(Volume(runtime, comms, passage, source, target, 1.0))
            choose_volume(volumes[-1], overlap)
        points = np.prod([float(line.fine) for line in request.lines.values()])
        arrays = _Arrays(sides)
        self.forward = Transform(volumes[0], arrays, (0, 1), self.pencil, 1 / points, True)
        self.backward = Transform(volumes[1], arrays, (1, 0), self.pencil[::-1], 1 / points, False)

    def _pencils(self):
        """The pencils of the input and of the result, and the transfers on the way."""
        shape = list(self._shapes[0])
        kind = self._dtypes[0]
        pencil = first = Pencil(self.subcomm, shape, self.axes[-1][-1])
        transfers = []
        for number, group in enumerate(reversed(self.axes)):
            if number:
                there = pencil.pencil(group[-1])
                transfers.append(pencil.transfer(there, kind))
                pencil = there
            for axis in group:
                shape[axis] = self._shapes[1][axis]
            kind = self._dtypes[1]
            pencil = Pencil(pencil.subcomm, shape, group[-1])
        return [first, pencil], transfers

    def destroy(self):
        """Free what the plan holds, and the communicators of `subcomm` (collective)."""
        if self._shared is None:
            return
        for transform in (self.forward, self.backward):
            transform.release()
        if isinstance(self.subcomm, Subcomm):
            self.subcomm.destroy()
        self._shared.leave(self._workers)
        self._shared = None

    def shape(self, forward_output=True):
        """Local shape of the result, or of the input."""
        return self.pencil[bool(forward_output)].subshape

    def local_slice(self, forward_output=True):
        """Where the local part of the result, or of the input, lies in the global array."""
        return self.pencil[bool(forward_output)].local_slice

    def global_shape(self, forward_output=False):
        """Global shape of the input, or of the result."""
        return self._shapes[bool(forward_output)]

    def dtype(self, forward_output=False):
        """Data type of the input, or of the result."""
        return self._dtypes[bool(forward_output)]

    @property
    def dimensions(self):
        """Number of axes."""
        return len(self._shapes[0])

    def describe(self):
        """The plan's choices, as text."""
        return "\n".join((self.forward.describe(), self.backward.describe()))


class Transform:
    """One direction of a plan: call it.

    Attributes
    ----------
    input_array, output_array : ndarray
        The plan's own local arrays, used where a call gives none. What is the input of one direction is
        the output of the other.
    input_pencil, output_pencil : Pencil
    """

    def __init__(self, volume, arrays, sides, pencils, scale, normalize):
        self.input_pencil, self.output_pencil = pencils
        self._volume, self._arrays, self._sides = volume, arrays, sides
        self._scale, self._normalize = scale, normalize

    @property
    def input_array(self):
        return self._arrays[self._sides[0]]

    @property
    def output_array(self):
        return self._arrays[self._sides[1]]

    def __call__(self, input_array=None, output_array=None, *, normalize=None, **unknown):
        """Transform (collective).

        Parameters
        ----------
        input_array : array_like, optional
            The local part; unchanged. By default the plan's own.
        output_array : ndarray, optional
            Where to put the result. By default the plan's own, which the next call overwrites. (With an
            array given, the plan's own need not receive the result.)
        normalize : bool, optional
            Divide by the number of points.

        Returns
        -------
        ndarray
            `output_array`, or the plan's own.
        """
        problem = f"expected no option but normalize, received {sorted(unknown)}" if unknown else None
        source_side, target_side = self._volume.inputs[0], self._volume.outputs[0]
        target = output_array
        if target is None:
            target = self.output_array
        elif not isinstance(target, np.ndarray) or target.shape != target_side.shape or not (
                target.flags.writeable):
            problem = problem or (
                f"expected output_array to be a writeable array of local shape {target_side.shape}, "
                f"received {type(target).__name__} of {np.shape(target)}")
        if problem is None and target.dtype != target_side.dtype:
            target = self.output_array
        source = self.input_array if input_array is None else input_array
        if problem is None and not (isinstance(source, np.ndarray)
                                    and source_side.problem(source, "input_array") is None
                                    and not np.may_share_memory(source, target)):
            try:
                self.input_array[...] = source
            except (TypeError, ValueError) as error:
                problem = (f"expected input_array to fit a local shape of {source_side.shape}: "
                           f"{error}")
            source = self.input_array
            if np.may_share_memory(source, target):
                target = self.output_array
        if problem is not None:
            self._volume.refuse(problem)
        normalize = self._normalize if normalize is None else normalize
        self._volume.scale = self._scale if normalize else 1.0
        self._volume(source, out=np.asarray(target))
        if output_array is None:
            return target
        if target is not output_array:
            output_array[...] = target
        return output_array

    def describe(self):
        """What was chosen and what it costs, as text."""
        return self._volume.describe()

    def release(self):
        self._volume.release()


class _Arrays:
    """The plan's own arrays, zeros, made when they are asked for."""

    def __init__(self, sides):
        self._sides, self._made = sides, {}

    def __getitem__(self, number):
        if number not in self._made:
            side = self._sides[number]
            self._made[number] = zeros(side.shape, side.dtype)
        return self._made[number]


class _Shared:
    """The runtimes of a communicator, one per number of workers, while any plan uses them."""

    _key = None

    def __init__(self):
        self._used = {}  # [runtime, plans] by number of workers

    @classmethod
    def of(cls, comm):
        """That of `comm`; kept as its attribute, so that none outlives it for another."""
        if cls._key is None:
            cls._key = MPI.Comm.Create_keyval()
        found = comm.Get_attr(cls._key)
        if found is None:
            found = cls()
            comm.Set_attr(cls._key, found)
            found._comm = comm
        return found

    def runtime(self, workers, deadline_s):
        entry = self._used.get(workers)
        if entry is None:
            entry = self._used[workers] = [
                Runtime(self._comm, workers=workers, deadline_s=deadline_s), 0]
        entry[1] += 1
        return entry[0]

    def leave(self, workers):
        """A plan less; the last one closes the runtime (collective)."""
        entry = self._used[workers]
        entry[1] -= 1
        if entry[1] == 0:
            del self._used[workers]
            entry[0].close()


# ---- what is asked for -----------------------------------------------------------------------

@dataclass(frozen=True)
class _Request:
    """A plan's arguments, understood.

    Attributes
    ----------
    fine : tuple of int
        Global shape of the input.
    axes : tuple of tuple of int
    dtype : numpy.dtype
        Of the input.
    dims : tuple of int
        Ranks along every axis.
    lines : dict
        The `Line` of every transformed axis, counted from 1: axis 0 is a passage's batch.
    """

    fine: tuple
    axes: tuple
    dtype: np.dtype
    dims: tuple
    lines: dict

    @property
    def padded(self):
        return {axis for axis, line in self.lines.items() if line.fine > line.points}


def _check_supported(backend, transforms, planner_effort, overlap, dtype, unknown):
    if unknown:
        raise InputError(f"expected no options beyond those of PFFT, received {sorted(unknown)}")
    if backend not in BACKENDS:
        raise InputError(f"backend {backend!r} is not supported: expected one of {BACKENDS}")
    if transforms:
        raise InputError("transforms are not supported (cosine, sine or own serial transforms): "
                         f"expected None, received them for axes {list(transforms)}")
    if planner_effort not in EFFORTS:
        raise InputError(f"expected planner_effort to be one of {list(EFFORTS)[1:]}, received "
                         f"{planner_effort!r}")
    if overlap not in OVERLAPS:
        raise InputError(f"expected overlap to be one of {OVERLAPS}, received {overlap!r}")
    if np.dtype(dtype).char in "gG":
        raise InputError(f"dtype {np.dtype(dtype)} (long double) is not supported: expected one of "
                         f"{', '.join(map(str, DTYPES))}")


def _request(comm, shape, axes, dtype, grid, padding, collapse, darray, slab):
    """A `_Request`, or an `InputError`."""
    if darray is not None:
        if getattr(darray, "pencil", None) is None:
            raise InputError("expected darray to be a DistArray of two or more axes, received "
                             f"{type(darray).__name__}")
        shape, dtype = darray.pencil.shape, darray.dtype
    if shape is None:
        raise InputError("expected shape or darray, received neither")
    dtype = np.dtype(dtype)
    if dtype not in DTYPES:
        raise InputError(f"expected a dtype of {', '.join(map(str, DTYPES))}, received {dtype}")
    given, shape = shape, tuple(int(length) for length in shape)
    if len(shape) < 2 or min(shape) < 1 or shape != tuple(given):
        raise InputError(f"expected a shape of two or more positive integers, received {given!r}")
    groups = _groups(axes, len(shape), darray)
    factors = _factors(padding, len(shape))
    flat = [axis for group in groups for axis in group]
    for group in groups:
        if len(group) > 1 and any(factors[axis] > PADDED for axis in group):
            raise InputError(f"expected padded axes in groups of their own, received {group}")
    points, fine = list(shape), list(shape)
    for axis in flat:
        if factors[axis] > PADDED:
            if darray is None:
                fine[axis] = int(np.floor(shape[axis] * factors[axis]))
            else:
                points[axis] = int(np.round(shape[axis] / factors[axis]))
    dims = _dims(comm, groups, len(shape), grid, slab, darray)
    if collapse:
        groups = _collapsed(groups, dims, factors)
    real = groups[-1][-1] if dtype.kind == "f" else None
    lines = {axis + 1: _line(points[axis], fine[axis], axis == real) for axis in flat}
    request = _Request(tuple(fine), tuple(map(tuple, groups)), dtype, dims, lines)
    _check_whole(request.axes, dims)
    return request


def _line(points, fine, real):
    """The `Line` of an axis, with mpi4py-fft's rule for its highest mode, ``points // 2``.

    On a finer grid it is split between itself and its twin where their number is even, the number of
    modes: for real data ``points // 2 + 1``, also where `points` is odd.
    """
    if fine == points:
        return Line(points, fine, real)
    even = (points // 2 + 1 if real else points) % 2 == 0
    return Line(points, fine, real, "split" if even else "keep" if real else "drop")


def _groups(axes, count, darray):
    """The groups of axes, each a list of axes from 0 to count - 1."""
    if axes is None:
        axes = range(count)
        if darray is not None:  # the aligned axis comes last, to be transformed first
            axes = np.roll(axes, count - 1 - darray.alignment)
    groups = []
    for group in [axes] if isinstance(axes, (int, np.integer)) else axes:
        group = list(group) if isinstance(group, (list, tuple)) else [group]
        if not group or not all(isinstance(axis, (int, np.integer)) and -count <= axis < count
                                for axis in group):
            raise InputError(f"expected axes from {-count} to {count - 1}, received {axes!r}")
        groups.append([int(axis) % count for axis in group])
    flat = [axis for group in groups for axis in group]
    if not flat or len(set(flat)) < len(flat):
        raise InputError(f"expected axes, each once, received {axes!r}")
    return groups


def _factors(padding, count):
    """Padding factors of all axes."""
    if padding is False or padding is None:
        return [1.0] * count
    factors = [float(factor) for factor in (padding if np.ndim(padding) else [padding] * count)]
    if len(factors) != count or not all(1 <= factor < np.inf for factor in factors):
        raise InputError(f"expected padding to be False, a number, or {count} numbers of 1 or more, "
                         f"received {padding!r}")
    return factors


def _dims(comm, groups, count, grid, slab, darray):
    """Ranks along every axis."""
    if darray is not None or isinstance(comm, Subcomm):
        if grid is not None or slab is not False and slab is not None:
            raise InputError("expected neither grid nor slab with a Subcomm or a darray, received "
                             f"grid={grid!r}, slab={slab!r}")
        comms = comm if darray is None else darray.pencil.subcomm
        if len(comms) != count:
            raise InputError(f"expected a Subcomm of {count} axes, received {len(comms)}")
        return tuple(one.size for one in comms)
    if grid is not None:
        if slab is not False and slab is not None:
            raise InputError(f"expected grid or slab, received {grid!r} and {slab!r}")
        dims = list(grid) + [1] * (count - len(tuple(grid)))
        if len(dims) > count:
            raise InputError(f"expected a grid of at most {count} axes, received {grid!r}")
        return grid_sizes(comm.size, dims)
    if slab is False or slab is None:
        dims = [1 if axis in groups[-1] else 0 for axis in range(count)]
        if 0 in dims or comm.size == 1:
            return grid_sizes(comm.size, dims)
        raise InputError(f"expected an axis to split over {comm.size} ranks outside of the last "
                         f"group, received {groups}")
    axis = (groups[-1][-1] + 1) % count if slab is True else slab
    if not -count <= axis < count:
        raise InputError(f"expected slab to be a bool or an axis, received {slab!r}")
    dims = [1] * count
    dims[axis] = comm.size
    return tuple(dims)


def _collapsed(groups, dims, factors):
    """Groups joined with the next one where no rank divides them."""
    if any(factor > PADDED for factor in factors):
        raise InputError("expected no padding with collapse=True, received "
                         f"{factors}: padded axes are groups of their own")
    found = [[]]
    for group in reversed(groups):
        if all(dims[axis] == 1 for axis in group):
            found[0] = group + found[0]
        else:
            found.insert(0, group)
    return found


def _check_whole(axes, dims):
    """Every group is whole when its turn comes."""
    dims = list(dims)
    aligned = axes[-1][-1]
    for group in reversed(axes):
        dims[aligned], dims[group[-1]] = dims[group[-1]], dims[aligned]
        aligned = group[-1]
        if any(dims[axis] > 1 for axis in group):
            raise InputError(f"expected every group of axes to be whole when it is transformed, "
                             f"received {axes}, with {dims} ranks per axis at group {group}")


# ---- the way through the exchanges -----------------------------------------------------------

def _dimensions(runtime, comms):
    """The dimensions of the ranks' grid (collective).

    Returns
    -------
    axes, grid, coordinates : tuple of int
        Axis and size of every dimension of more than one rank, and this rank's coordinate; the first
        dimension's runs fastest with the rank.
    """
    split = [axis for axis, comm in enumerate(comms) if comm.size > 1]
    sizes = [comm.size for comm in comms]
    everyone = runtime.comm.handle.allgather([comm.rank for comm in comms])
    for order in permutations(split):
        grid = tuple(sizes[axis] for axis in order)
        if all(rank == sum(where[axis] * int(np.prod(grid[:dimension], dtype=int))
                           for dimension, axis in enumerate(order))
               for rank, where in enumerate(everyone)):
            here = everyone[runtime.comm.rank]
            return order, grid, tuple(here[axis] for axis in order)
    raise InputError(f"expected communicators of a Cartesian grid of {runtime.comm.size} ranks, "
                     f"received {sizes} ranks per axis")


def _route(groups, layout, padded):
    """The forward way, as `decomp.legs` wants it, and the layout at its end.

    A padded axis is alone in its group. None separates groups without an exchange.
    """
    route = [()]
    aligned = groups[-1][-1] + 1
    for group in reversed(groups):
        axis = group[-1] + 1
        if layout.splits[axis] is not None:
            swap = Swap(axis, aligned)
            layout = layout.swapped(swap)
            route += [swap, ()]
        aligned = axis
        for axis in (axis + 1 for axis in reversed(group)):
            if route[-1] and padded & {axis, *route[-1]}:
                route += [None, ()]
            route[-1] += (axis,)
    return route, layout


def _for_legs(route, real, forward):
    """The way in one direction, so cut that a pipeline can run along some axis."""
    if len(route) == 1:
        *first, last = route[0]
        if not first:
            return [(last,), None, ()]
        return ([(last,), None, tuple(first[::-1])] if real and not forward else
                [tuple(first), None, (last,)])
    if forward:
        return route
    route = [step.reversed() if isinstance(step, Swap) else
             step if step is None else step[::-1] for step in route[::-1]]
    if isinstance(route[1], Swap) and len(route[0]) > 1:
        kept = tuple(axis for axis in route[0] if axis == route[1].split)
        others = tuple(axis for axis in route[0] if axis not in kept)
        if real:  # its axis comes last
            return [others, None, kept, *route[1:]]
        return [kept, route[1], (*route[2], *others), *route[3:]]
    return route
