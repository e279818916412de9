"""`PFFT`: parallel FFTs along any axes of arrays of any dimension, as pipelines.

A plan is a tuple of layouts with local FFTs in between: groups of axes, transformed from the last
group to the first, and before each group an exchange, if need be, that makes its last axis whole by
splitting that of the group before. This is what `overlap.fft.engine.passage` runs for `FFT3`; here the route
(see `route`) follows from any axes on any grid.
"""

import numpy as np
from mpi4py import MPI

from ...arrays import Layout, subcomms
from ...errors import InputError
from ...fft.array_spec import ArraySpec
from ...fft.engine.fftw import complex_of, zeros
from ...fft.engine.passage import Passage
from ...fft.planning.search import choose
from ...fft.planning.settings import Settings
from ...fft.volume import Volume
from ...runtime import Runtime
from .pencil import Pencil, Subcomm
from .request import EFFORTS, check_supported, understood
from .route import dimensions_of, for_stages, route_of


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
        Type of the input: "f", "d", "F" or "D". Real input has half the modes along the last axis.
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
    wait : {"auto", "off", "block", "poll"}
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
        The pencils of the input and of the result.
    transfer : list of Transfer
        The exchanges between groups, each for itself; the transforms do not use them.

    Raises
    ------
    InputError
        On all ranks, when an argument is bad, not supported, or differs between ranks.
    """

    def __init__(self, comm, shape=None, axes=None, dtype=float, grid=None, padding=False,
                 collapse=False, backend="fftw", transforms=None, darray=None, slab=False,
                 planner_effort=None, threads=1, overwrite_input=None, wait="auto",
                 deadline_s=600.0, **unknown):
        parent = comm.parent if isinstance(comm, Subcomm) else comm
        if not isinstance(parent, MPI.Intracomm):
            raise InputError(f"expected an mpi4py.MPI.Intracomm or a Subcomm, received {comm!r}")
        request = problem = None
        try:
            check_supported(backend, transforms, planner_effort, wait, dtype, unknown)
            request = understood(comm, shape, axes, dtype, grid, padding, collapse, darray, slab)
        except InputError as error:
            problem = str(error)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            problem = f"expected the arguments of a PFFT, received some that fail: {error}"
        workers = threads if isinstance(threads, int) and threads > 0 else 1
        if workers != threads:
            problem = f"expected threads to be a positive integer, received {threads!r}"
        self._shared = _Shared.of(parent)
        self._workers = workers
        self.collapse = collapse
        self.runtime = self._shared.runtime(workers, deadline_s)
        with self.runtime.together("making a PFFT", lambda: self._shared.leave(workers)):
            self.runtime.preflight(problem, plan="PFFT", request=request, effort=planner_effort,
                                   wait=wait, workers=workers)
            self._make(comm, darray, request, EFFORTS[planner_effort], wait)

    def _make(self, comm, darray, request, effort, wait):
        if darray is not None:
            self.subcomm = darray.pencil.subcomm
        else:
            self.subcomm = comm if isinstance(comm, Subcomm) else Subcomm(comm, request.dims)
        self.axes = request.axes
        runtime = self.runtime
        order, grid, coordinates = dimensions_of(runtime, self.subcomm)
        comms = subcomms(runtime, grid)
        splits = [order.index(axis) if axis in order else None
                  for axis in range(len(request.fine))]
        layouts = [Layout((None, *splits), grid)]
        route, ends = route_of(request.axes, layouts[0], request.padded)
        layouts.append(ends)
        modes = list(request.fine)
        for axis, each in request.transformed.items():
            modes[axis - 1] = each.length(True)
        self._dtypes = request.dtype, complex_of(request.dtype)
        self._shapes = request.fine, tuple(modes)
        self.pencil, self.transfer = self._pencils()
        specs = []
        for layout, shape, kind in zip(layouts, self._shapes, self._dtypes):
            where = layout.local_slice((1, *shape), coordinates)[1:]
            specs.append(ArraySpec(runtime.comm, (), shape, {
                axis - len(shape): part for axis, part in enumerate(where)}, kind))
        real = request.dtype.kind == "f"
        volumes = []
        for forward in (True, False):
            source, target = specs[::1 if forward else -1]
            passage = Passage(
                for_stages(route, real, forward), layouts[not forward], request.transformed, 1,
                source.global_shape, coordinates, source.dtype, forward, None, runtime.workers,
                effort)
            volumes.append(Volume(runtime, comms, passage, source, target, 1.0))
            choose(volumes[-1], Settings(wait))
        points = np.prod([float(each.fine) for each in request.transformed.values()])
        arrays = _Arrays(specs)
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

    def __init__(self, volume, arrays, specs, pencils, scale, normalize):
        self.input_pencil, self.output_pencil = pencils
        self._volume, self._arrays, self._specs = volume, arrays, specs
        self._scale, self._normalize = scale, normalize

    @property
    def input_array(self):
        return self._arrays[self._specs[0]]

    @property
    def output_array(self):
        return self._arrays[self._specs[1]]

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

    def __init__(self, specs):
        self._specs, self._made = specs, {}

    def __getitem__(self, number):
        if number not in self._made:
            side = self._specs[number]
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
