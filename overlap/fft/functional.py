"""FFTs as functions with `scipy.fft`'s names and arguments: plans are made when they are first needed, and kept.

``overlap.fft.fft2(u)`` transforms a `DistArray` and returns one. A forward transform takes arrays that are split along
their first transformed axis; its result is split along the next one, and the inverse functions take it so. An array
that is split in another way is refused (`DistArray.redistribute` mends that).

A plain array, this rank's part with the first parts one longer where the split is uneven, does not say which axis is
split. The forward functions take it for the one they need. The inverse ones would be given rows for columns too
easily: they want to be told, ``ifft2(part, comm, split=-1)``, unless `comm` has one rank only. All functions are
collective.

The last eight plans of every communicator are kept; `close_plans` closes them, as does the end of the communicator or
the interpreter.
"""

from __future__ import annotations

import atexit
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arrays import DistArray, Distribution, block, mask_problem, same_ranks
from ..errors import InputError
from ..runtime import Runtime
from ..runtime.kept_with import KeptWith
from .arguments import NORMS, choice_problem, integers, shown
from .engine.fftw import complex_of
from .fft2 import FFT2
from .fft3 import FFT3

KEPT = 8  # plans per communicator


class _Plans:
    """The plans of a communicator, those used last, and their runtimes by number of workers."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._runtimes: dict[int, Runtime] = {}
        self._plans: OrderedDict[tuple, FFT2 | FFT3] = OrderedDict()

    def find(
        self, kind: type[FFT2] | type[FFT3], shape: tuple[int, ...], dtype: np.dtype, norm: str | None, workers: int
    ) -> FFT2 | FFT3:
        """Return the plan for a request, made now if it is not among those that are kept (collective)."""
        key = kind, shape, dtype, norm, workers
        if key not in self._plans:
            runtime = self.runtime(workers)
            layout: dict[str, Any] = {} if kind is FFT2 else {"layout": {"grid": (1, self._comm.size)}}
            self._plans[key] = kind(runtime, shape, dtype, norm=norm, **layout)
            if len(self._plans) > KEPT:
                self._plans.popitem(last=False)[1].close()
        self._plans.move_to_end(key)
        return self._plans[key]

    def runtime(self, workers: int) -> Runtime:
        """Return the runtime with so many workers, made now if there is none (collective)."""
        if workers not in self._runtimes:
            self._runtimes[workers] = Runtime(self._comm, workers=workers, deadline_s=600.0)
        return self._runtimes[workers]

    def close(self) -> None:
        """Close all plans, then all runtimes (collective)."""
        while self._plans:
            self._plans.popitem()[1].close()
        while self._runtimes:
            self._runtimes.popitem()[1].close()


_plans = KeptWith(_Plans)


def close_plans() -> None:
    """Close the plans that the functions have kept (collective over every communicator that they were called on).

    Examples
    --------
    >>> import overlap.fft
    >>> spectrum = overlap.fft.fft2(np.ones((2, 8, 8)), comm)
    >>> overlap.fft.close_plans()
    """
    for plans in _plans.every:
        plans.close()


atexit.register(close_plans)


@dataclass(frozen=True)
class _Kind:
    """One of the functions."""

    name: str
    forward: bool
    real: bool
    count: int | None  # of axes, by default

    def axis_to_split(self, dimensions: int, count: int) -> int:
        """Return the axis along which the function takes its argument split."""
        return dimensions - count + (not self.forward)


@dataclass(frozen=True)
class _Request:
    """What one rank asks for, checked as far as a rank can do that alone.

    Attributes
    ----------
    shape : tuple of int
        Shape of the local part.
    where : Distribution or None
        How the array is distributed, if it knows that.
    count : int
        Axes that are transformed.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    where: Distribution | None
    split: int
    count: int
    s: tuple[int, ...] | None
    norm: str | None
    workers: int

    def agreed(self) -> dict[str, Any]:
        """Return what must be the same on all ranks, by the arguments' names."""
        shape = list(self.shape) if self.where is None else list(self.where.global_shape)
        if self.where is None:
            shape[self.split] = -1
        return {
            "x": "an ndarray" if self.where is None else "a DistArray",
            "shape of x": shape,
            "dtype of x": self.dtype.str,
            "axes": self.count,
            "s": self.s,
            "norm": self.norm,
            "workers": self.workers,
        }


def _transform(
    kind: _Kind,
    x: Any,
    comm: MPI.Intracomm | None,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    workers: int | None,
    split: int | None,
) -> DistArray:
    """Do what any of the functions does."""
    # Ranks whose array knows its communicator meet there: all of them are told if one was given another for `comm`.
    own = x.comm if isinstance(x, DistArray) else None
    rendezvous = comm if own is None else own
    if not isinstance(rendezvous, MPI.Intracomm) or rendezvous == MPI.COMM_NULL:
        raise InputError(f"expected a DistArray, or comm to be an mpi4py.MPI.Intracomm, received comm={shown(comm)}")
    plans = _plans.of(rendezvous)
    base = plans.runtime(1)  # whatever is asked for: ranks that ask for different things must meet somewhere
    with base.collective_section(f"transforming an array, {kind.name}"):  # what is wrong on one rank is refused on all
        if comm is not None and not same_ranks(comm, rendezvous):
            raise InputError(f"expected comm to be that of x, or None, received {shown(comm)}")
        if problem := mask_problem(x=x):
            raise InputError(problem)
        array: np.ndarray = x if isinstance(x, DistArray) else np.asarray(x)
        request = _request(kind, array, rendezvous.size, s, axes, norm, workers, split)
        base.preflight(**request.agreed())
        shape, dtype = _real_space(kind, request, base)
        given = array.astype(dtype if kind.forward else complex_of(dtype), copy=False)
    # All ranks ask for the same from here on: what they are refused, or what fails, the plan tells all of them.
    plan = plans.find(FFT2 if request.count == 2 else FFT3, shape, dtype, request.norm, request.workers)
    run: Any = plan.forward if kind.forward else plan.backward
    return run(given)


def _request(
    kind: _Kind,
    array: np.ndarray,
    ranks: int,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    workers: int | None,
    split: int | None,
) -> _Request:
    """Check the arguments of this rank."""
    dimensions = array.ndim
    chosen = integers(range(dimensions) if axes is None else axes)
    count = 0 if chosen is None else len(chosen)
    last = tuple(range(dimensions - count, dimensions))
    if count not in (2, 3) or count > dimensions or chosen not in (last, tuple(axis - dimensions for axis in last)):
        raise InputError(
            f"expected axes to be the last two or the last three, in order, received axes={shown(axes)} for an array "
            f"of {dimensions} axes"
        )
    if problem := choice_problem(norm=(norm, NORMS)):
        raise InputError(problem)
    lengths = None if s is None else integers(s)
    if s is not None and (lengths is None or len(lengths) != count):
        raise InputError(f"expected s to be {count} integers or None, received {shown(s)}")
    if array.dtype.kind not in "?biufc":
        raise InputError(f"expected an array of numbers, received {array.dtype}")
    if kind.real and kind.forward and array.dtype.kind == "c":
        raise InputError(f"expected a real array, received {array.dtype}")
    where = array.distribution if isinstance(array, DistArray) else None
    needed = kind.axis_to_split(dimensions, count)
    if ranks > 1 and where is None and not kind.forward and split is None:
        raise InputError(
            "expected a DistArray, or split to name the axis along which x is split over the ranks, received a plain "
            f"array: {kind.name} takes one split along axis {needed} of {dimensions}, split={needed}"
        )
    if split is not None:
        try:
            axis = range(dimensions)[index(split)]
        except (TypeError, IndexError):
            raise InputError(
                f"expected split to be one of {dimensions} axes, or None, received {shown(split)}"
            ) from None
        if ranks > 1 and axis != needed:
            raise InputError(
                f"expected x to be split along axis {needed}, received split={split}: make it a DistArray, "
                "and use DistArray.redistribute"
            )
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, Integral)):
        raise InputError(f"expected workers to be a positive integer or None, received {shown(workers)}")
    threads = 1 if workers is None else int(workers)
    return _Request(array.shape, array.dtype, where, needed, count, lengths, norm, threads)


def _real_space(kind: _Kind, request: _Request, runtime: Runtime) -> tuple[tuple[int, ...], np.dtype]:
    """Find shape and type in real space of the plan that is needed (collective)."""
    shape = _global_shape(request, runtime)
    length, count, s = shape[-1], request.count, request.s
    if kind.real and not kind.forward:
        length = 2 * (length - 1) if s is None else s[-1]
        if length // 2 + 1 != shape[-1]:
            raise InputError(
                f"expected an output of {2 * shape[-1] - 2} or {2 * shape[-1] - 1} points along the last "
                f"axis, received s={s}: lengths are neither cut nor padded"
            )
    shape = (*shape[:-1], length)
    if s is not None and s != shape[-count:]:
        raise InputError(f"expected s to be {shape[-count:]}, received {s}: lengths are neither cut nor padded")
    dtype = request.dtype.newbyteorder("=")
    if dtype.kind not in "fc":  # as scipy does
        dtype = np.dtype(float)
    elif dtype == np.float16:
        dtype = np.dtype(np.float32)
    spectral = complex_of(dtype)
    return shape, np.empty(0, spectral).real.dtype if kind.real else spectral


def _global_shape(request: _Request, runtime: Runtime) -> tuple[int, ...]:
    """Find the shape of the whole array (collective)."""
    if request.where is not None:
        return request.where.global_shape
    shape, axis = request.shape, request.split
    lengths = runtime.coordinator.allgather(shape[axis])
    total = sum(lengths)
    if lengths != [part.stop - part.start for part in block(total, runtime.coordinator.size)]:
        raise InputError(
            f"expected parts along axis {axis} of which the first are one longer where the split is uneven, "
            f"received {lengths}"
        )
    return (*shape[:axis], total, *shape[axis + 1 :])


_SHAPES = {(True, True): (4, 8, 5), (True, False): (4, 8, 14)}  # of the example in the docstring
_OUTPUT = {False: "", True: ", or its output"}


def _function(kind: _Kind) -> Callable[..., DistArray]:
    default = None if kind.count is None else tuple(range(-kind.count, 0))

    def function(
        x: Any,
        comm: MPI.Intracomm | None = None,
        *,
        s: Sequence[int] | None = None,
        axes: Sequence[int] | None = default,
        norm: str | None = None,
        overwrite_x: bool = False,
        workers: int | None = None,
        split: int | None = None,
    ) -> DistArray:
        return _transform(kind, x, comm, s, axes, norm, workers, split)

    function.__name__ = function.__qualname__ = kind.name
    function.__doc__ = f"""Transform as `scipy.fft.{kind.name}` does, over MPI ranks (collective).

    Parameters
    ----------
    x : DistArray or ndarray
        Distributed, or this rank's part; unchanged.
    comm : mpi4py.MPI.Intracomm, optional
        By default that of `x`.
    s : sequence of int, optional
        Lengths of the transformed axes; only those that `x` has{_OUTPUT[kind.real and not kind.forward]}.
    axes : sequence of int, optional
        The last two axes or the last three.
    norm : {{"backward", "ortho", "forward"}}, optional
    overwrite_x : bool
        Without effect.
    workers : int, optional
        Threads per rank; default: 1.
    split : int, optional
        The axis of a plain array `x` that is split over the ranks: {_split_in_words(kind)}

    Returns
    -------
    DistArray

    Raises
    ------
    InputError
        What is asked for cannot be served, or the ranks ask for different things; the message names it.

    Examples
    --------
    >>> import overlap.fft
    >>> result = overlap.fft.{kind.name}(np.ones((4, 8, 8)), comm)
    >>> result.global_shape
    {_SHAPES.get((kind.real, kind.forward), (4, 8, 8))}
    >>> overlap.fft.close_plans()
    """
    return function


def _split_in_words(kind: _Kind) -> str:
    if kind.forward:
        return "only the first transformed one, which is the default."
    return "only the second transformed one; on several ranks it must be given."


fft2 = _function(_Kind("fft2", True, False, 2))
ifft2 = _function(_Kind("ifft2", False, False, 2))
rfft2 = _function(_Kind("rfft2", True, True, 2))
irfft2 = _function(_Kind("irfft2", False, True, 2))
fftn = _function(_Kind("fftn", True, False, None))
ifftn = _function(_Kind("ifftn", False, False, None))
rfftn = _function(_Kind("rfftn", True, True, None))
irfftn = _function(_Kind("irfftn", False, True, None))
