"""FFTs as functions with `scipy.fft`'s names and arguments: plans are made when they are first needed, and kept.

``overlap.fft.fft2(u)`` transforms a `DistArray` and returns one; of a plain array, this rank's part of an array whose
first transformed axis is split over `comm`, the first parts one longer where that is uneven. A forward transform's result
is split along the next axis, and the backward ones take it so; an array that is split in another way is
refused (`DistArray.redistribute` mends that). All functions are collective.

The last eight plans of every communicator are kept; `close_plans` closes them, as does the end of the communicator or the
interpreter.
"""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays import DistArray, block, mask_problem
from ..errors import InputError
from ..runtime import Runtime
from .arguments import NORMS
from .engine.fftw import complex_of
from .fft2 import FFT2
from .fft3 import FFT3

KEPT = 8  # plans per communicator
_keyval: int | None = None
_all: list[_Plans] = []


class _Plans:
    """The plans of a communicator, those used last, and their runtimes by number of workers."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._runtimes: dict[int, Runtime] = {}
        self._plans: OrderedDict[tuple, FFT2 | FFT3] = OrderedDict()

    def find(
        self, kind: type[FFT2] | type[FFT3], shape: tuple[int, ...], dtype: np.dtype, norm: str | None, workers: int
    ) -> FFT2 | FFT3:
        key = kind, shape, dtype, norm, workers
        if key not in self._plans:
            runtime = self.runtime(workers)
            layout = {} if kind is FFT2 else {"layout": {"grid": (1, self._comm.size)}}
            self._plans[key] = kind(runtime, shape, dtype, norm=norm, **layout)  # type: ignore[arg-type]
            if len(self._plans) > KEPT:
                self._plans.popitem(last=False)[1].close()
        self._plans.move_to_end(key)
        return self._plans[key]

    def runtime(self, workers: int) -> Runtime:
        if workers not in self._runtimes:
            self._runtimes[workers] = Runtime(self._comm, workers=workers, deadline_s=600.0)
        return self._runtimes[workers]

    def close(self) -> None:
        while self._plans:
            self._plans.popitem()[1].close()
        while self._runtimes:
            self._runtimes.popitem()[1].close()


def close_plans() -> None:
    """Close the plans that the functions have kept (collective over every communicator that they were called on)."""
    for plans in _all:
        plans.close()


atexit.register(close_plans)


def _deleted(comm: MPI.Comm, key: int, plans: _Plans) -> None:
    """A communicator is freed, by all its ranks; the predefined ones at MPI's end, where nothing can be freed any more."""
    if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF):
        plans.close()
        _all.remove(plans)


def _plans_of(comm: MPI.Intracomm) -> _Plans:
    global _keyval
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval(delete_fn=_deleted)
    found: Any = comm.Get_attr(_keyval)
    if found is None:
        found = _Plans(comm)
        comm.Set_attr(_keyval, found)
        _all.append(found)
    return found


def _transform(
    x: Any,
    comm: MPI.Intracomm | None,
    forward: bool,
    real: bool,
    least: int,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    workers: int | None,
) -> DistArray:
    """Any of the functions."""
    array = x if isinstance(x, DistArray) else np.asarray(x)
    comm = getattr(array, "comm", None) if comm is None else comm
    if not isinstance(comm, MPI.Intracomm):
        raise InputError(f"expected a DistArray, or comm to be an mpi4py.MPI.Intracomm, received comm={comm!r}")
    threads = workers or 1
    plans = _plans_of(comm)
    runtime = plans.runtime(threads)
    with runtime.together("transforming an array"):  # what is wrong on one rank is refused on all
        if problem := mask_problem(x=x):
            raise InputError(problem)
        shape, dtype, count = _request(array, runtime, forward, real, least, s, axes, norm)
        plan = plans.find(FFT2 if count == 2 else FFT3, shape, dtype, norm, threads)
        source = plan.real if forward else plan.spectrum
        if isinstance(x, DistArray) and (x.comm is not None and x.local_slice != source.local_slice):
            raise InputError(
                f"expected an array whose local part is {source.local_slice}, received {x.local_slice}: "
                "use DistArray.redistribute"
            )
    run: Any = plan.forward if forward else plan.backward
    return run(np.asarray(array, source.dtype))


def _request(
    array: Any,
    runtime: Runtime,
    forward: bool,
    real: bool,
    least: int,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape and type in real space of the plan that is needed, and how many axes it transforms (collective)."""
    axes = tuple(range(array.ndim)) if axes is None else tuple(axes)
    count = len(axes)
    whole = (
        tuple(axis % array.ndim for axis in axes)
        if array.ndim and all(-array.ndim <= axis < array.ndim for axis in axes)
        else axes
    )
    if count not in (2, 3) or count < least or whole != tuple(range(array.ndim - count, array.ndim)):
        raise InputError(f"expected axes to be the last two or the last three, in order, received {axes}")
    if norm not in NORMS:
        raise InputError(f"expected norm to be one of {tuple(NORMS)}, received {norm!r}")
    shape = _global_shape(array, runtime, count, forward)
    length = shape[-1]
    if real and not forward:
        length = 2 * (length - 1) if s is None else int(s[-1])
        if length // 2 + 1 != shape[-1]:
            raise InputError(
                f"expected an output of {2 * shape[-1] - 2} or {2 * shape[-1] - 1} points along the last "
                f"axis, received s={s}: lengths are neither cut nor padded"
            )
    shape = (*shape[:-1], length)
    if s is not None and tuple(s) != shape[-count:]:
        raise InputError(f"expected s to be {shape[-count:]}, received {tuple(s)}: lengths are neither cut nor padded")
    dtype = np.result_type(array.dtype, np.float32)
    if real and forward and dtype.kind == "c":
        raise InputError(f"expected a real array, received {array.dtype}")
    return shape, (np.empty(0, complex_of(dtype)).real.dtype if real else complex_of(dtype)), count


def _global_shape(array: Any, runtime: Runtime, count: int, forward: bool) -> tuple[int, ...]:
    if isinstance(array, DistArray) and array.comm is not None:
        return tuple(array.global_shape)
    # In real space the first transformed axis is split. A spectrum is split along the next one.
    axis = array.ndim - count + (not forward)
    lengths = runtime.control.allgather(array.shape[axis])
    total = sum(lengths)
    if lengths != [part.stop - part.start for part in block(total, runtime.control.size)]:
        raise InputError(
            f"expected parts along axis {axis} of which the first are one longer where the split is uneven, "
            f"received {lengths}"
        )
    return (*array.shape[:axis], total, *array.shape[axis + 1 :])


def _function(name: str, forward: bool, real: bool, count: int | None) -> Any:
    default = None if count is None else tuple(range(-count, 0))

    def function(
        x: Any,
        comm: MPI.Intracomm | None = None,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = default,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
    ) -> DistArray:
        return _transform(x, comm, forward, real, count or 2, s, axes, norm, workers)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Transform as `scipy.fft.{name}` does, over MPI ranks (collective).

    Parameters
    ----------
    x : DistArray or ndarray
        Distributed, or this rank's part; unchanged.
    comm : mpi4py.MPI.Intracomm, optional
        By default that of `x`.
    s : sequence of int, optional
        Lengths of the transformed axes; only those that `x` has{"" if forward or not real else ", or its output"}.
    axes : sequence of int, optional
        The last two axes or the last three.
    norm : {{"backward", "ortho", "forward"}}, optional
    overwrite_x : bool
        Without effect.
    workers : int, optional
        Threads per rank; default: 1.

    Returns
    -------
    DistArray

    Raises
    ------
    InputError
        What is asked for cannot be served; the message names it.
    """
    return function


fft2 = _function("fft2", True, False, 2)
ifft2 = _function("ifft2", False, False, 2)
rfft2 = _function("rfft2", True, True, 2)
irfft2 = _function("irfft2", False, True, 2)
fftn = _function("fftn", True, False, None)
ifftn = _function("ifftn", False, False, None)
rfftn = _function("rfftn", True, True, None)
irfftn = _function("irfftn", False, True, None)
